"""The digest by which a repeat of a create request is told from another request under the same idempotency key.

Canonical form: the validated request as JSON, defaults filled in, without ``idempotency_key``, members sorted by name,
no white space, everything beyond ASCII escaped. So member order, spacing and left-out defaults make no difference;
everything else does: ``metadata``, ``1`` for ``1.0``, a config as JSON text instead of an object.
"""

import hashlib
import json
from typing import Any, Final

import trio
from pydantic import BaseModel

from dify_agent.protocol.schemas import CreateRunRequest

SMALL: Final = 64 * 1024
"""Characters and values, counted together. A request up to here is digested at once, in a few milliseconds; a larger
one in a worker thread, since bodies may have many millions of bytes."""

_DIGEST_THREADS: Final = 1
"""Digesting keeps the interpreter's lock: a second one beside the first would gain nothing."""


def digest_of(request: CreateRunRequest) -> str:
    """SHA-256 of the request's canonical form, in hex."""
    value = request.model_dump(mode="json", exclude={"idempotency_key"}, warnings=False)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class RequestDigests:
    """Digests of requests of any size, without holding up the event loop."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(_DIGEST_THREADS)

    async def of(self, request: CreateRunRequest) -> str:
        """`digest_of`."""
        if is_small(request):
            return digest_of(request)
        return await trio.to_thread.run_sync(digest_of, request, limiter=self._threads, abandon_on_cancel=True)


def is_small(value: Any) -> bool:
    """Whether ``value`` has at most `SMALL` characters and values. Looks at no more than that."""
    left, stack = SMALL, [value]
    while stack and left >= 0:
        item = stack.pop()
        left -= 1
        if isinstance(item, str | bytes):
            left -= len(item)
        elif isinstance(item, BaseModel):
            stack.append(vars(item))
        elif isinstance(item, dict):
            left -= len(item)
            if left >= 0:
                stack += item
                stack += item.values()
        elif isinstance(item, list | tuple):
            left -= len(item)
            if left >= 0:
                stack += item
    return left >= 0
