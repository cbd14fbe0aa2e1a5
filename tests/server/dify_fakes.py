"""The fakes of Dify on a Trio of their own: they outlive the test functions, as the server that asks them does."""

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import trio
from tests.server.harness import START_SECONDS, STOP_SECONDS, until

from dify_agent.testing import Fakes, Outcome, RecordedRequest, open_fakes

MODEL_PATH: Final = "/inner/api/agent/llm/invoke"
CORE_TOOL_PATH: Final = "/inner/api/agent/tools/invoke"
PLUGIN_TOOL_PATH: Final = "/plugin/tenant-1/dispatch/tool/invoke"
KNOWLEDGE_PATH: Final = "/inner/api/knowledge/retrieve"
DAEMON_MODEL_PATH: Final = "/plugin/tenant-1/dispatch/llm/invoke"


class FakeDify:
    """Fakes in another thread. Made by `fake_dify`."""

    def __init__(self, fakes: Fakes, token: trio.lowlevel.TrioToken, stop: trio.Event) -> None:
        self._fakes = fakes
        self._token = token
        self._stop = stop

    @property
    def environment(self) -> dict[str, str]:
        return self._fakes.environment

    async def play(self, **script: Any) -> None:
        """Forget what was asked so far, and answer from this script."""
        await trio.to_thread.run_sync(partial(trio.from_thread.run_sync, self._play, script, trio_token=self._token))

    def _play(self, script: dict[str, Any]) -> None:
        self._fakes.play(script)
        self._fakes.requests.clear()

    def stop(self) -> None:
        self._token.run_sync_soon(self._stop.set)

    def to(self, path: str) -> list[RecordedRequest]:
        """The requests whose path contains ``path``, in order of arrival."""
        return [request for request in self._fakes.requests if path in request.path]

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [request.body for request in self.to(path)]

    async def asked(self, path: str, count: int = 1) -> None:
        await until(lambda: len(self.to(path)) >= count, f"{count} requests to {path}")

    async def left(self, path: str) -> None:
        """Return when the caller has let go of the last request there."""
        await until(lambda: self.to(path)[-1].outcome is Outcome.LEFT, f"the caller leaves {path}")


@contextmanager
def fake_dify(**options: Any) -> Iterator[FakeDify]:
    """Serve in a thread while the block runs; options are those of `open_fakes`."""
    running: Future[FakeDify] = Future()

    async def serve() -> None:
        async with open_fakes(**options) as fakes:
            stop = trio.Event()
            running.set_result(FakeDify(fakes, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

    with ThreadPoolExecutor(1) as executor:
        served = executor.submit(trio.run, serve)
        served.add_done_callback(lambda _: running.cancel())  # a start that fails ends the wait for it
        try:
            fakes = running.result(START_SECONDS)
        except CancelledError:
            served.result()
            raise
        try:
            yield fakes
        finally:
            fakes.stop()
            served.result(STOP_SECONDS)
