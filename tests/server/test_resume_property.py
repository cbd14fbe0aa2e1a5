"""R19: whatever ends a run and wherever it strikes, the session goes on.

From the snapshot that the run returned, with a new prompt or, after a deferred call, with its results; from the one
before where it returned none, which is so exactly when the layers were not entered or not left.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import trio
from hypothesis import HealthCheck, event, given, settings
from tests.server.clients import Api
from tests.server.harness import BOUND_SECONDS, Server, StoreServer, launched, serving
from tests.server.packages import install_package
from tests.server.resume_plans import STEPS, Ending, Session, sessions, sweep
from tests.server.resume_sessions import Events, Play, events_when

pytestmark = pytest.mark.slow

PROJECT = """\
[project]
name = "diary"
version = "1"
[project.entry-points."dify_agent.layers"]
"test.diary" = "resume_layer:DiaryLayer"
"""
BRIEF = {"run_timeout_seconds": 0.2}
STRICT = {"enter_timeout_seconds": 0.15, "exit_timeout_seconds": 0.15, "cancel_timeout_seconds": 0.6}
DOOMED = {"exit_timeout_seconds": 2.0}
LEFT_BEHIND = "run ignores cancellation, left behind"


class Replicas:
    """Processes on one store: one for most runs, two for deadlines, and as many doomed ones as are taken.

    Deadlines of the agent loop and of the layers' hooks have a replica each, so that a slow machine cannot make a run
    meet the other one.
    """

    def __init__(self, stack: ExitStack, store: StoreServer, env: dict[str, str]) -> None:
        self._stack = stack
        self._url = store.url
        self._settings = {"env": env, "stream_text_delta_flush_interval_ms": 1}
        self.patient = self._stack.enter_context(serving(self._url, **self._settings))
        self._settings["prefix"] = self.patient.prefix
        self.brief = self._stack.enter_context(serving(self._url, **BRIEF, **self._settings))
        self.strict = self._stack.enter_context(serving(self._url, announced=[LEFT_BEHIND], **STRICT, **self._settings))
        self._spare: Server | None = None

    def take(self) -> Server:
        """A replica to be stopped by the taker. The next one starts meanwhile."""
        taken, self._spare = self._spare or self._launch(), self._launch()
        taken.wait_listening()
        return taken

    def _launch(self) -> Server:
        return self._stack.enter_context(launched(self._url, **DOOMED, **self._settings))


@pytest.fixture(scope="module")
def replicas(store: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    source = Path(__file__).with_name("resume_layer.py").read_text()
    env = install_package(tmp_path_factory.mktemp("package"), PROJECT, {"resume_layer.py": source})
    with ExitStack() as stack:
        yield Replicas(stack, store, env)


@asynccontextmanager
async def client(server: Server) -> AsyncIterator[Api]:
    # A TLS context, which none of this needs, costs more than an example.
    async with httpx2.AsyncClient(base_url=server.url, timeout=BOUND_SECONDS, verify=False) as opened:
        yield Api(opened)


async def cancelled(play: Play, api: Api) -> Events:
    """The disturbed run, cancelled where its session says."""
    if play.session.entered and not play.session.leaves:
        run_id = await api.create(play.disturbed())
        await events_when(api, run_id, play.is_struck)
        await api.cancel(run_id)
        return await api.finished(run_id)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        run_id = await api.create(play.disturbed(listener.socket.getsockname()[1]))
        async with await listener.accept():
            await api.cancel(run_id)
        return await api.finished(run_id)


async def shut_down(plays: list[Play], api: Api, doomed: Server) -> list[Events]:
    """The disturbed runs of some sessions, ended by the end of their replica."""
    run_ids = []
    async with client(doomed) as there:
        for play in plays:
            run_ids.append(await there.create(play.disturbed()))
            await events_when(there, run_ids[-1], play.is_struck)
    assert doomed.stop() == 0
    doomed.check_log()
    return [await api.finished(run_id) for run_id in run_ids]


async def disturbed(play: Play, api: Api, replicas: Replicas) -> Events:
    match play.session.ending:
        case "cancel":
            return await cancelled(play, api)
        case "deadline":
            hooks = not play.session.entered or play.session.leaves
            async with client(replicas.strict if hooks else replicas.brief) as there:
                return await there.run(play.disturbed())
        case "shutdown":
            return (await shut_down([play], api, replicas.take()))[0]
    return await api.run(play.disturbed())


async def check(session: Session, replicas: Replicas) -> None:
    async with client(replicas.patient) as api:
        play = Play(session, api)
        await play.begin()
        await play.finish(await disturbed(play, api, replicas))


EXAMPLES: dict[Ending, int] = {"cancel": 76, "deadline": 30, "failure": 68, "question": 22, "shutdown": 4}
"""A shutdown costs a process, but the sweep has one for many sessions."""
QUIET = settings(deadline=None, print_blob=True, database=None, suppress_health_check=list(HealthCheck))


def check_examples(ending: Ending, replicas: Replicas, chosen: settings) -> None:
    @settings(chosen)
    @given(session=sessions(ending))
    def goes_on(session: Session) -> None:
        event(session.step)
        trio.run(check, session, replicas)

    goes_on()


@pytest.mark.timeout(600)  # a failure is shrunk, which takes longer than all examples
@pytest.mark.parametrize("ending", EXAMPLES)
def test_a_session_goes_on(replicas: Replicas, ending: Ending):
    check_examples(ending, replicas, settings(QUIET, max_examples=EXAMPLES[ending], derandomize=True))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ending", EXAMPLES)
def test_many_sessions_go_on(replicas: Replicas, ending: Ending):
    check_examples(ending, replicas, settings(QUIET, max_examples=EXAMPLES[ending] * 10))


@pytest.mark.full
@pytest.mark.parametrize("ending", ["cancel", "deadline", "failure", "question"])
async def test_every_step_of_an_ending(replicas: Replicas, ending: Ending):
    """What the examples may miss: each step, whichever they drew."""
    slots = trio.Semaphore(4)

    async def check_one(session: Session) -> None:
        async with slots:
            await check(session, replicas)

    async with trio.open_nursery() as nursery:
        for session in sweep(ending):
            nursery.start_soon(check_one, session, name=str(session))


@pytest.mark.parametrize(
    "steps", [{"leave question"}, pytest.param(set(STEPS["shutdown"]), marks=pytest.mark.full)], ids=["question", "all"]
)
async def test_every_step_of_a_shutdown(replicas: Replicas, steps: set[str]):
    """One process ends under the disturbed runs of all the sessions. The few examples above may draw no question."""
    async with client(replicas.patient) as api:
        chosen = [session for session in sweep("shutdown") if session.step in steps]
        # Those that hang while they leave come last: their exit is bounded, and is to last until the signal.
        plays = [Play(session, api) for session in sorted(chosen, key=lambda each: each.leaves)]
        for play in plays:
            await play.begin()
        endings = await shut_down(plays, api, replicas.take())
        for play, events in zip(plays, endings, strict=True):
            await play.finish(events)
