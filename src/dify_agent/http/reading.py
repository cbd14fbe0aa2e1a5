"""Taking a request's body: how much of it for whom, and on which thread it is judged."""

from math import inf
from typing import Final

import trio
from quart.wrappers import Request
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout

from dify_agent.http.body import SMALL_BODY_BYTES, ModelT, parse_body, read_model
from dify_agent.http.errors import HttpError

PREAUTH_BODY_BYTES: Final = SMALL_BODY_BYTES
"""How much of a body is read and judged for a request without credentials. No more than is judged at once, so that a
stranger can hold neither the memory nor the event loop."""

_BODY_THREADS: Final = 1
"""Judging keeps the interpreter's lock most of the time: a second body beside the first would gain nothing, and may
need twenty times its size in memory."""


class BodyReader:
    """Reads request bodies. Large ones are judged in a worker thread, one after the other."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(_BODY_THREADS)

    async def read(self, request: Request, model: type[ModelT]) -> ModelT:
        """The body as ``model``.

        Raises:
            HttpError: 422.
            RequestEntityTooLarge: it is longer than any body may be.
            RequestTimeout: it did not arrive in time.
        """
        outcome = await self._judge(request, model)
        if isinstance(outcome, HttpError):
            raise outcome
        return outcome

    async def _judge(self, request: Request, model: type[ModelT]) -> ModelT | HttpError:
        raw = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        content_type = request.headers.get("Content-Type")
        if len(raw) <= SMALL_BODY_BYTES:
            return _outcome(model, raw, content_type)
        return await trio.to_thread.run_sync(
            _outcome, model, raw, content_type, limiter=self._threads, abandon_on_cancel=True
        )

    async def refuse(self, request: Request, refusal: HttpError) -> HttpError:
        """What answers a request whose credentials were refused with ``refusal``: the refusal, at once and with the
        end of the connection if the body is longer than `PREAUTH_BODY_BYTES`.

        Raises:
            HttpError: 422, the body is not JSON, which is said before anything about credentials (quirk Q6).
            RequestTimeout: it did not arrive in time.
        """
        # The body's own count of what arrived begins anew with each piece that is taken, so its limit is applied here.
        raw = await _read_up_to(request, min(PREAUTH_BODY_BYTES, request.max_content_length or PREAUTH_BODY_BYTES))
        if raw is None:
            return HttpError(refusal.status, refusal.detail, {**(refusal.headers or {}), "Connection": "close"})
        parse_body(raw, request.headers.get("Content-Type"))
        return refusal


def _outcome(model: type[ModelT], raw: bytes, content_type: str | None) -> ModelT | HttpError:
    """The model, or the refusal without its past: the frames of a traceback would keep the body and all that was made
    of it until the garbage collector comes by."""
    try:
        return read_model(model, raw, content_type)
    except HttpError as refusal:
        refusal.__context__ = None
        return refusal.with_traceback(None)


async def _read_up_to(request: Request, limit: int) -> bytes | None:
    """The body, or None as soon as it is known to be longer than ``limit`` or than any body may be."""
    if (request.content_length or 0) > limit:
        return None
    raw = bytearray()
    with trio.move_on_after(request.body_timeout or inf) as arriving:
        try:
            async for piece in request.body:
                raw += piece
                if len(raw) > limit:
                    return None
        except RequestEntityTooLarge:
            return None
    if arriving.cancelled_caught:
        raise RequestTimeout
    return bytes(raw)
