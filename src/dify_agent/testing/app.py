"""The ASGI app of the fakes: reads a request, records it, lets a service answer, and sees clients leave.

A plain ASGI app and not a Quart one: it needs three things of the server, a body, a stream and the moment at which the
client leaves, which ASGI gives in as many messages, and a framework in between would cost a load test most of its time.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

import trio
from pydantic import ValidationError

from dify_agent.testing.answers import Answer, Send, json_answer, send_answer
from dify_agent.testing.choosing import Chooser
from dify_agent.testing.dify_api import FakeDifyApi
from dify_agent.testing.kept import STATE_BYTES, KeptState
from dify_agent.testing.plugin_daemon import HEALTH, PREFIX, FakePluginDaemon
from dify_agent.testing.record import Outcome, RecordedRequest, Recorder
from dify_agent.testing.refusals import Refused, problems
from dify_agent.testing.script import Script

CONTROL: Final = "/__fake/"
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
PAGE_REQUESTS: Final = 1000

Receive = Callable[[], Awaitable[Any]]
"""ASGI's."""

logger = logging.getLogger(__name__)


class FakeApp:
    """Both services behind one port, told apart by their paths, and the control endpoints beside them."""

    def __init__(
        self, script: Script, *, inner_key: str, daemon_key: str, recorder: Recorder, state_bytes: int = STATE_BYTES
    ) -> None:
        self.chooser = Chooser(script)
        self.recorder = recorder
        self.stopping = False
        """From then on an answer that does not end is the fakes' own doing, not the client's."""
        self._state = KeptState(state_bytes)
        self._dify_api = FakeDifyApi(self.chooser, inner_key, self._state)
        self._plugin_daemon = FakePluginDaemon(self.chooser, daemon_key)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        body = await _read_body(receive)
        if body is None:
            return
        path = scope["raw_path"].decode()
        if path.startswith(CONTROL):
            request = RecordedRequest(0, scope["method"], path, {}, body)
            await send_answer(self._control(scope, body), request, send, _ignore)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope["query_string"].decode("latin-1")
        request = self.recorder.add(scope["method"], path, headers, body, query)
        await self._send(self._answer(request), request, receive, send)

    def play(self, script: Script) -> None:
        """Answer from another script, from its beginning. Answers in progress go on as they began."""
        self.chooser.script = script
        self.chooser.restart()

    def reset(self) -> None:
        """Forget the requests and what callers have stored, and play the script from its beginning."""
        self.chooser.restart()
        self.recorder.clear()
        self._state.clear()

    def _answer(self, request: RecordedRequest) -> Answer:
        if len(request.raw_body) > MAX_BODY_BYTES:
            return _told("the body is too large", 413)
        to_daemon = request.path.startswith(PREFIX) or request.path == HEALTH
        service = self._plugin_daemon if to_daemon else self._dify_api
        try:
            return service.answer(request)
        except Refused as refused:
            logger.info("refused %s %s: %s", request.method, request.path, refused)
            return refused.answer

    async def _send(self, answer: Answer, request: RecordedRequest, receive: Receive, send: Send) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, request, receive, nursery.cancel_scope)
                await send_answer(answer, request, send, partial(self.recorder.end, request))
                nursery.cancel_scope.cancel(reason="the answer is complete")
        finally:
            self.recorder.end(request, Outcome.STOPPED)

    async def _watch(self, request: RecordedRequest, receive: Receive, answering: trio.CancelScope) -> None:
        """End the answer when the client leaves; after its last message, which looks the same, there is nothing to end.

        Cancelling then would take the steps that end the response away from the server.
        """
        while (await receive())["type"] != "http.disconnect":
            pass
        if request.outcome is Outcome.OPEN:
            self.recorder.end(request, Outcome.STOPPED if self.stopping else Outcome.LEFT)
            answering.cancel(reason="the client has left")

    def _control(self, scope: Any, body: bytes) -> Answer:
        match scope["method"], scope["raw_path"].decode().removeprefix(CONTROL):
            case "GET", "requests":
                return self._requests(parse_qs(scope["query_string"].decode(errors="replace")))
            case "GET", "script":
                return json_answer(self.chooser.script.as_json())
            case "POST", "script":
                return self._replace_script(body)
            case "POST", "reset":
                self.reset()
                return json_answer({})
            case _:
                return _told("no such control", 404)

    def _replace_script(self, body: bytes) -> Answer:
        try:
            script = Script.model_validate_json(body)
        except ValidationError as invalid:
            return _told(problems(invalid), 422)
        self.play(script)
        return json_answer(script.as_json())

    def _requests(self, query: dict[str, list[str]]) -> Answer:
        """Kept requests behind the number ``after``, at most ``limit``, optionally of one ``path`` or ``outcome``."""
        given = {name: values[-1] for name, values in query.items()}
        try:
            after, limit = int(given.get("after", "0")), int(given.get("limit", PAGE_REQUESTS))
        except ValueError:
            return _told("after and limit are whole numbers", 422)
        path, outcome = given.get("path", ""), given.get("outcome")
        found = [
            request
            for request in self.recorder.to(path)
            if request.number > after and outcome in (None, request.outcome)
        ]
        page = [request.as_json() for request in found[: max(limit, 0)]]
        return json_answer({"requests": page, "total": self.recorder.total})


def _told(detail: str, status: int) -> Answer:
    return json_answer({"detail": detail}, status)


def _ignore(_outcome: Outcome) -> None:
    pass


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body; None when the client left while sending it. Of one that is too large no more is kept than
    shows that it is."""
    parts: list[bytes] = []
    size = 0
    while (message := await receive())["type"] == "http.request":
        part = message.get("body", b"")
        if size <= MAX_BODY_BYTES:
            parts.append(part)
            size += len(part)
        if not message.get("more_body", False):
            return b"".join(parts)
    return None
