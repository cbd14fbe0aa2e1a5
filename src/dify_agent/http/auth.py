"""Bearer authentication of the control plane (protocol 1.2). There is no 403."""

import hmac
from typing import Final

from dify_agent.http.errors import HttpError

_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}


class BearerAuth:
    """Checks the ``Authorization`` header against one token; lets everything through when there is none."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def check(self, header: str | None) -> None:
        """Return if ``header``, as the HTTP library decoded it (latin-1), carries the token.

        Raises:
            HttpError: 401 with one of three texts.
        """
        if self._token is None:
            return
        if header is None:
            raise HttpError(401, "missing authorization header", _CHALLENGE)
        # Bytes, because the token's own bytes are UTF-8, and because str.strip would also take latin-1's blanks.
        scheme, _, token = header.encode("latin-1", "replace").partition(b" ")
        token = token.strip()
        if scheme.lower() != b"bearer" or not token:
            raise HttpError(401, "invalid authorization scheme", _CHALLENGE)
        if not hmac.compare_digest(token, self._token):
            raise HttpError(401, "invalid bearer token", _CHALLENGE)
