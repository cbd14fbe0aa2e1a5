"""Signed URLs of the data plane: no state is kept for one that was handed out (integrations 9.7)."""

import hmac
import json
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

from dify_agent.testing.refusals import Refused, refusal

ACCESS_SECONDS: Final = 300
"""For how long a URL may be used: the Dify API's ``FILES_ACCESS_TIMEOUT``, its default."""


class UrlSigner:
    """Signs with a key of its own: URLs of another process are refused."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._key: Final = secrets.token_bytes(32)
        self._now = now

    def signed(self, path: str, bound: tuple[str, ...], **query: str | None) -> str:
        """``path`` with a query that proves it, and what of ``query`` is not None.

        ``bound`` is what the holder of the URL cannot change, and has to repeat where it is not in the URL.
        """
        proof = {"timestamp": str(int(self._now())), "nonce": secrets.token_hex(8)}
        proof["sign"] = self._sign(proof, bound)
        given = {name: value for name, value in query.items() if value is not None}
        return f"{path}?{urlencode({**proof, **given})}"

    def check(self, query: Mapping[str, str], bound: tuple[str, ...]) -> None:
        """Return when the query is that of a URL for the same ``bound``.

        Raises:
            Refused: 403, it is not, or it is too old.
        """
        expected = self._sign(query, bound)
        if not hmac.compare_digest(query.get("sign", "").encode(errors="replace"), expected.encode()):
            raise forbidden("the signature does not fit")
        # Signed, so it is a number that `signed` has written.
        if self._now() - int(query["timestamp"]) > ACCESS_SECONDS:
            raise forbidden("the URL has expired")

    def _sign(self, query: Mapping[str, str], bound: tuple[str, ...]) -> str:
        text = json.dumps([query.get("timestamp"), query.get("nonce"), *bound])
        return urlsafe_b64encode(hmac.digest(self._key, text.encode(), "sha256")).decode()


def forbidden(message: str) -> Refused:
    """What the data plane says to whoever has no valid URL."""
    return refusal(403, "forbidden", message)
