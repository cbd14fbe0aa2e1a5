"""A run's log over a WebSocket (specification, table 'WebSocket'; decisions R3, R4, R13, R23).

Two ways to authenticate. A client that can send headers uses ``Authorization`` and gets refusals as HTTP answers, as on
the other routes. A browser cannot send that header, nor read such answers: it offers its token as a subprotocol, and
gets a refusal as a close frame.
"""

import binascii
import logging
from base64 import urlsafe_b64decode
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

import trio
from quart import request, websocket
from quart.wrappers import Response
from werkzeug.datastructures import Headers
from wsproto.frame_protocol import CloseReason

from dify_agent.concurrency.groups import first_error
from dify_agent.errors import RunCancellationConflictError, RunNotFoundError, StoreUnavailableError
from dify_agent.events.envelope import splice_id
from dify_agent.http.auth import BearerAuth
from dify_agent.http.body import read_model
from dify_agent.http.errors import JSON, HttpError, error_body, json_response, log_unreadable
from dify_agent.http.query import parse_stream_cursor
from dify_agent.http.settings import HttpSettings
from dify_agent.http.streams import pieces
from dify_agent.metrics import Metrics
from dify_agent.protocol.schemas import CancelRunRequest
from dify_agent.store.base import KeyUnreadableError
from dify_agent.supervisor.handle import RunService, Tail, TailBatch, TailEnd

logger = logging.getLogger(__name__)

SUBPROTOCOL: Final = "dify-agent.v1"
TOKEN_PREFIX: Final = "bearer."

CANCEL_ACCEPTED: Final = b'{"control":"cancel_accepted"}'

ANSWER_SECONDS: Final = 1.0
"""How long the close waits for the answer to a message that is being dealt with: a cancel ends the stream it came on,
and its sender should see that it was accepted."""

CLOSES: Final[dict[TailEnd, tuple[CloseReason, str]]] = {
    "terminal": (CloseReason.NORMAL_CLOSURE, ""),
    "expired": (CloseReason.NORMAL_CLOSURE, "expired"),
    "drain": (CloseReason.GOING_AWAY, "the server is shutting down"),
}

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class ClientMessage(CancelRunRequest):
    """What a client may send: a cancel, with the members of ``POST /runs/{run_id}/cancel``."""

    type: Literal["cancel"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What the subprotocols of a handshake say."""

    subprotocol: str | None
    """The one to select; never the one that carries the token."""
    token: bytes | None
    """Set when the client authenticates as browsers do; empty when it was not base64url."""


class WebSocketRoute:
    """Handlers of ``/runs/{run_id}/events/ws``."""

    def __init__(self, service: RunService, settings: HttpSettings, metrics: Metrics) -> None:
        self._service = service
        self._metrics = metrics
        self._auth = BearerAuth(settings.token)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in settings.allowed_origins)

    async def stream(self, run_id: str) -> None:
        """The handshake, and the stream if it succeeds."""
        headers = websocket.headers
        offer = read_offer(headers)
        try:
            self._authorize(headers, offer)
            after = parse_stream_cursor(websocket.query_string, headers.get("Last-Event-ID"))
            tail = await self._service.open_tail(run_id, after)
        except (HttpError, RunNotFoundError, StoreUnavailableError) as error:
            if offer.token is None:
                raise
            await websocket.accept(subprotocol=offer.subprotocol)
            await websocket.close(CloseReason.POLICY_VIOLATION, _short(error))
            return
        except KeyUnreadableError as error:
            if offer.token is None:
                raise
            log_unreadable(error)
            await websocket.accept(subprotocol=offer.subprotocol)
            await websocket.close(CloseReason.INTERNAL_ERROR, str(error))
            return
        with closing(tail):
            await websocket.accept(subprotocol=offer.subprotocol)
            self._metrics.stream_opened("websocket")
            try:
                await _Session(self._service, run_id, tail).run()
            finally:
                self._metrics.stream_closed("websocket")

    async def upgrade_required(self, run_id: str) -> Response:
        """The answer to a request that is no handshake."""
        self._auth.check(request.headers.get("Authorization"))
        headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
        return json_response(error_body("this route speaks WebSocket"), 426, headers)

    def _authorize(self, headers: Headers, offer: Offer) -> None:
        """Origin first: a foreign page does not learn whether a token is right."""
        if not self._auth.required:
            return
        origin = headers.get("Origin")
        if origin is not None and not is_origin_allowed(origin, headers.get("Host"), self._origins):
            raise self._auth.refusal("origin is not allowed")
        if offer.token is None:
            self._auth.check(headers.get("Authorization"))
        else:
            self._auth.check_token(offer.token)


class _Session:
    """An accepted WebSocket: one task writes the log, one answers messages; both end with the tail or the client."""

    def __init__(self, service: RunService, run_id: str, tail: Tail) -> None:
        self._service = service
        self._run_id = run_id
        self._tail = tail
        self._answering = trio.Lock()

    async def run(self) -> None:
        """Carry the stream to its end and say why it ended. A fault is logged and closes with 1011."""
        code, reason = CloseReason.INTERNAL_ERROR, ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                code, reason = CLOSES[await self._write_events()]
                with trio.move_on_after(ANSWER_SECONDS):
                    await self._answering.acquire()  # and keep it: no further message is answered
                nursery.cancel_scope.cancel(reason="the stream is over")
        except* KeyUnreadableError as group:
            unreadable = first_error(group)
            assert isinstance(unreadable, KeyUnreadableError)
            log_unreadable(unreadable)
            code, reason = CloseReason.INTERNAL_ERROR, str(unreadable)
        except* Exception as group:
            code, reason = CloseReason.INTERNAL_ERROR, ""
            logger.error("a WebSocket stream failed; the client got 1011", exc_info=group)
        await websocket.close(code, reason)

    async def _write_events(self) -> TailEnd:
        while True:
            batch = await self._tail.next()
            for piece in pieces(encode_batch(batch)):
                await _send(*piece)
            if batch.end is not None:
                return batch.end

    async def _listen(self) -> None:
        while True:
            text = await websocket.receive()
            async with self._answering:
                await _send(await self._answer(cast(str, text)))

    async def _answer(self, text: str) -> bytes:
        """The control frame that answers a message. None of a client's mistakes is fatal."""
        detail: Any
        try:
            message = read_model(ClientMessage, text.encode(), JSON)
            await self._service.cancel(self._run_id, CancelRunRequest(reason=message.reason, message=message.message))
        except HttpError as error:
            detail = error.detail
        except (RunNotFoundError, RunCancellationConflictError, StoreUnavailableError) as error:
            detail = str(error)
        except KeyUnreadableError as error:
            log_unreadable(error)
            detail = str(error)
        else:
            return CANCEL_ACCEPTED
        return b'{"control":"error",%b' % error_body(detail)[1:]


def encode_batch(batch: TailBatch) -> Iterator[bytes]:
    """The frames of a batch; the notice of missing events comes first."""
    if batch.trimmed:
        yield b'{"control":"trimmed","count":%d}' % batch.trimmed
    for event in batch.events:
        yield splice_id(str(event.id), event.payload)


async def _send(*texts: bytes) -> None:
    """Write text frames in one piece; returns when the socket has taken them."""
    await websocket.send(cast(Any, texts))


def read_offer(headers: Headers) -> Offer:
    """The subprotocols that a handshake offers. An ``Authorization`` header makes a token among them irrelevant."""
    offered = [item.strip() for value in headers.getlist("Sec-WebSocket-Protocol") for item in value.split(",")]
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in offered else None
    tokens = [item.removeprefix(TOKEN_PREFIX) for item in offered if item.startswith(TOKEN_PREFIX)]
    if not tokens or "Authorization" in headers:
        return Offer(subprotocol, None)
    try:
        token = urlsafe_b64decode(tokens[0] + "=" * (-len(tokens[0]) % 4))
    except (binascii.Error, ValueError):
        token = b""
    return Offer(subprotocol, token)


def is_origin_allowed(origin: str, host: str | None, allowed: Collection[str]) -> bool:
    """Whether a page of ``origin`` may open a WebSocket on ``host``.

    Same origin means the same host and port; the scheme is the proxy's business, behind which this server sees no TLS.
    ``allowed`` holds origins in lower case, without a slash at the end.
    """
    origin = origin.lower()
    if origin in allowed:
        return True
    try:
        page = urlsplit(origin)
        own = urlsplit(f"{page.scheme}://{(host or '').lower()}")
        default = _PORTS[page.scheme]
        ours = (own.hostname, own.port or default)
        return page.hostname is not None and ours == (page.hostname, page.port or default)
    except (KeyError, ValueError):
        return False


def _short(error: Exception) -> str:
    """A refusal's detail as the reason of a close frame, which the frame's serialiser cuts to 123 bytes."""
    detail = error.detail if isinstance(error, HttpError) else str(error)
    return detail if isinstance(detail, str) else ", ".join(str(item["msg"]) for item in detail)
