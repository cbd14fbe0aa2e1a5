"""Every failure of a service of Dify, on a real server: what becomes of the run, in what words, and how soon.

The run has ended `PROMPT_SECONDS` after the cause at the latest, whatever that is; no key is in what anybody reads.
"""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import escape
from typing import Any, Final

import pytest
from tests.docs.pages import ROOT, links, table_under
from tests.server.clients import open_api
from tests.server.dify_bodies import dify_run
from tests.server.dify_fakes import MODEL_PATH, FakeDify, fake_dify
from tests.server.dify_faults import (
    DAEMON_KEY_VALUE,
    DAEMON_MODEL,
    FAULTS,
    FIRST_SEARCH,
    GATEWAY,
    GATEWAY_MODEL,
    INNER_KEY,
    MODEL_SECRET,
    NO_CONNECTION_FREE,
    PLUGIN_TOOL,
    READ_TIMEOUT_SECONDS,
    REFUSED,
    TOOL_SECRET,
    WRONG_KEYS,
    Asked,
    Fails,
    Fault,
    Observes,
)
from tests.server.dify_results import ended, failure, observations
from tests.server.endings import moment
from tests.server.harness import Server, StoreServer, serving, until

from dify_agent.testing import RecordedRequest

pytestmark = pytest.mark.slow

PROMPT_SECONDS: Final = 2.0
POOL_TIMEOUT_SECONDS: Final = 0.5

WRONG_KEY: Final = "wrong-key-of-this-test"
SECRETS: Final = (INNER_KEY, DAEMON_KEY_VALUE, WRONG_KEY, MODEL_SECRET, TOOL_SECRET)

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def dify() -> Iterator[FakeDify]:
    with fake_dify(inner_key=INNER_KEY, daemon_key=DAEMON_KEY_VALUE) as fakes:
        yield fakes


@pytest.fixture(scope="module")
def refused_url() -> Iterator[str]:
    """An address that nobody listens at, and that nobody else can be given meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


Replica = Callable[..., Server]

_SETTINGS: Final = {
    "outbound_http_pool_timeout": POOL_TIMEOUT_SECONDS,
    "outbound_http_max_connections": 1,
}
"""One connection: a failure that does not give it back would fail every test behind it."""


@pytest.fixture(scope="module")
def replica(store: StoreServer, dify: FakeDify, refused_url: str) -> Iterator[Replica]:
    """Servers by what is wrong with their services, each started when it is first needed."""
    servers: dict[tuple[object, ...], Server] = {}

    def environment(inner: str, daemon: str) -> dict[str, str]:
        env = dify.environment
        for service, state in (("INNER_API", inner), ("PLUGIN_DAEMON", daemon)):
            if state == "refuses":
                env[f"DIFY_AGENT_{service}_URL"] = refused_url
            elif state == "wrong key":
                name = "INNER_API_KEY" if service == "INNER_API" else "PLUGIN_DAEMON_API_KEY"
                env[f"DIFY_AGENT_{name}"] = WRONG_KEY
        return env

    with ExitStack() as stack:

        def start(transport: str, inner: str = "well", daemon: str = "well", read_timeout: float = 60) -> Server:
            key = (transport, inner, daemon, read_timeout)
            if key not in servers:
                chosen = {**_SETTINGS, "llm_transport": transport, "outbound_http_read_timeout": read_timeout}
                started = serving(store.url, env=environment(inner, daemon), **chosen)
                servers[key] = stack.enter_context(started)
            return servers[key]

        yield start


class Watched:
    """One run on a server: its events, and what the server logged meanwhile."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = len(server.log)
        self.events: Events = []
        self._record: dict[str, Any] = {}
        self._metrics = ""

    async def run(self, body: dict[str, Any]) -> Events:
        async with open_api(self._server) as api:
            self.events = await api.run(body)
            self._record = await api.status(self.events[0]["run_id"])
            self._metrics = (await api.client.get("/metrics")).text
        return self.events

    @property
    def log(self) -> str:
        return self._server.log[self._before :]

    def assert_no_secret(self) -> None:
        shown = [json.dumps(self.events), json.dumps(self._record), self._metrics, self.log]
        for secret in SECRETS:
            written = json.dumps(secret)[1:-1]
            for form in (secret, written, json.dumps(written)[1:-1], escape(written)):
                assert all(form not in text for text in shown), form

    def assert_prompt(self, cause: float) -> None:
        """The end of the run was written soon after the cause, a Unix time."""
        late = moment(self.events[-1]).timestamp() - cause
        assert late <= PROMPT_SECONDS, f"{late:.2f} s after the cause"

    async def assert_logged(self, setting: str | None) -> None:
        """One warning names the setting; where none can mend the failure there is no such warning."""

        def told() -> list[dict[str, Any]]:
            return [json.loads(line) for line in self.log.splitlines()]

        warned = [record for record in told() if record["event"] != "run failed" and record.get("setting")]
        if self.events[-1]["type"] == "run_failed":
            assert warned == []
            run_id = self.events[0]["run_id"]
            await until(lambda: any(_tells_failure(record, run_id) for record in told()), "the failure is logged")
            (line,) = (record for record in told() if _tells_failure(record, run_id))
            assert (line["level"], line.get("setting")) == ("info" if setting is None else "warning", setting)
            return
        told_of = [(record["level"], record["setting"], record["run_id"]) for record in warned]
        assert told_of == ([("warning", setting, self.events[0]["run_id"])] if setting else [])

    def assert_outcome(self, outcome: Fails | Observes, observed: Callable[[], str]) -> None:
        if isinstance(outcome, Fails):
            reason, text = failure(self.events)
            assert reason == outcome.reason
            for part in outcome.says:
                assert part in text
            return
        assert ended(self.events)["output"] == "Done."
        found = observed()
        assert outcome.start in found
        assert outcome.length in (None, len(found))
        assert outcome.logged in self.log


def _tells_failure(record: dict[str, Any], run_id: str) -> bool:
    return record["event"] == "run failed" and record["run_id"] == run_id


def messages(dify: FakeDify, asked: Asked) -> list[dict[str, Any]]:
    """The prompt messages of the last model call."""
    body = dify.bodies(asked.model_path)[-1]
    return list(body.get("target", body.get("data"))["prompt_messages"])


def read_by_model(dify: FakeDify, asked: Asked) -> str:
    """What the model read about the failure: the tool's message, or the prompt that the search is in."""
    told = messages(dify, asked)[-1]
    assert told["role"] == ("user" if asked is FIRST_SEARCH else "tool")
    return str(told["content"])


def stays_open(fault: Fault) -> bool:
    """Whether the service keeps the answer open until the server leaves."""
    return fault.step.get("end") in ("hang", "silent")


def cause_of(fault: Fault, request: RecordedRequest) -> float:
    """When the failure was complete, Unix time: the answer had come, or had broken off, or silence had lasted."""
    if fault.waits:
        return request.arrived + READ_TIMEOUT_SECONDS
    return request.arrived + (0 if stays_open(fault) else request.seconds or 0)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_a_failure_while_asked(replica: Replica, dify: FakeDify, fault: Fault) -> None:
    asked = fault.asked
    await dify.play(**asked.script(fault.step))
    # Only where silence is the cause is little of it enough: elsewhere a busy machine must not look silent.
    server = replica(asked.transport, read_timeout=READ_TIMEOUT_SECONDS) if fault.waits else replica(asked.transport)
    watched = Watched(server)
    await watched.run(asked.body())
    watched.assert_outcome(fault.outcome, lambda: read_by_model(dify, asked))
    await watched.assert_logged(fault.outcome.setting)
    (request,) = dify.to(asked.path)  # a call is never repeated
    watched.assert_prompt(cause_of(fault, request))
    if fault.waits:
        took = moment(watched.events[-1]) - moment(watched.events[0])
        assert took.total_seconds() >= READ_TIMEOUT_SECONDS, "given up too early"
    if stays_open(fault):
        await until(lambda: request.left, "the server leaves what has not ended", PROMPT_SECONDS)
    watched.assert_no_secret()


@pytest.mark.parametrize("asked", [GATEWAY_MODEL, DAEMON_MODEL], ids=str)
async def test_a_line_of_a_million_characters_is_read(replica: Replica, dify: FakeDify, asked: Asked) -> None:
    """Half of what the fault "long line" has, which is too long."""
    await dify.play(**asked.script({"text": "", "long_line_bytes": 1_000_000}))
    watched = Watched(replica(asked.transport))
    assert ended(await watched.run(asked.body()))["output"] == "x" * 1_000_000


def broken(replica: Replica, asked: Asked, state: str) -> Server:
    """A server whose service for this is in a state; the other one is in the other, to need fewer servers."""
    other = "wrong key" if state == "refuses" else "refuses"
    by_daemon = asked in (DAEMON_MODEL, PLUGIN_TOOL)
    return replica(asked.transport, inner=other if by_daemon else state, daemon=state if by_daemon else other)


def observed_in_events(events: Events) -> str:
    """What the scripted model read: results of tools, and what the knowledge layer keeps of its first search."""
    layers = ended(events)["session_snapshot"]["layers"]
    first = [
        each["observation"] for layer in layers for each in (layer["runtime_state"] or {}).get("eager_results", ())
    ]
    return "".join([*first, *observations(events).values()])


@pytest.mark.parametrize("fault", REFUSED + WRONG_KEYS, ids=str)
async def test_a_service_that_is_away_or_refuses_the_key(replica: Replica, dify: FakeDify, fault: Fault) -> None:
    await dify.play()
    watched = Watched(broken(replica, fault.asked, "refuses" if fault in REFUSED else "wrong key"))
    events = await watched.run(fault.asked.scripted_body())
    watched.assert_outcome(fault.outcome, lambda: observed_in_events(events))
    watched.assert_prompt(moment(events[0]).timestamp())
    await watched.assert_logged(fault.outcome.setting)
    watched.assert_no_secret()


@pytest.mark.parametrize("fault", NO_CONNECTION_FREE, ids=str)
async def test_no_connection_is_free(replica: Replica, dify: FakeDify, fault: Fault) -> None:
    """Another run's model holds the only connection; the error names the setting (decision R10)."""
    server = replica(GATEWAY)
    await dify.play(llm=[{"steps": [{"chunks": 1, "end": "hang"}]}])
    async with open_api(server) as api:
        holder = await api.create(dify_run())
        await dify.asked(MODEL_PATH)
        watched = Watched(server)
        events = await watched.run(fault.asked.scripted_body())
        await api.cancel(holder)
    watched.assert_outcome(fault.outcome, lambda: observed_in_events(events))
    watched.assert_prompt(moment(events[0]).timestamp() + POOL_TIMEOUT_SECONDS)
    await watched.assert_logged(fault.outcome.setting)
    watched.assert_no_secret()
    assert len(dify.to("/")) == 1, "nobody was asked"
    await dify.left(MODEL_PATH)


def documented(rows: Iterator[list[str]], column: int) -> set[str]:
    return {name for row in rows for name in row[column].split("`")[1::2]}


def test_every_reason_is_documented() -> None:
    """The page about Dify lists what tools and knowledge come to, and points at the table for models."""
    page = ROOT / "docs" / "dify.md"
    assert "protocol.md#failed-model-requests" in links(page)
    of_models = documented(table_under(ROOT / "docs" / "protocol.md", "Failed model requests"), 0)
    of_others = documented(table_under(page, "What failures look like"), 1)
    for fault in (*FAULTS, *REFUSED, *WRONG_KEYS, *NO_CONNECTION_FREE):
        if isinstance(fault.outcome, Fails) and not fault.outcome.named_by_dify:
            is_model = fault.asked in (GATEWAY_MODEL, DAEMON_MODEL)
            known = of_models | of_others if is_model else of_others
            assert fault.outcome.reason in known, str(fault)


def test_no_cell_is_forgotten() -> None:
    """Everything that a run asks for is tried with each of these; a reason never stands for two kinds of cause."""
    cells = {(each.asked.name, each.cause) for each in (*FAULTS, *REFUSED, *WRONG_KEYS)}
    names = {name for name, _ in cells}
    assert len(names) == 6
    kinds = ("reset", "closed", "page", "silent", "429", "quota", "refused", "wrong key", "long line", "elsewhere")
    kinds += ("echo", "echo of its own")
    assert {(name, kind) for name in names for kind in kinds} <= cells
    for asked in (GATEWAY_MODEL, DAEMON_MODEL):
        alike = {
            "closed": "reset",
            "silent after text": "silent",
            "quota": "429",
            "wrong key": "page",
            "elsewhere": "page",
        }
        alike |= {"page that does not end": "page", "page that breaks off": "page"}
        alike["error in a stream that stays open"] = "error in the stream"
        alike["echo"] = "page"
        reasons = {
            alike.get(each.cause, each.cause): each.outcome.reason
            for each in (*FAULTS, *REFUSED, *WRONG_KEYS)
            if each.asked is asked and isinstance(each.outcome, Fails)
        }
        assert len(set(reasons.values())) == len(reasons), reasons
