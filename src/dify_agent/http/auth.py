"""Bearer authentication of the control plane (protocol 1.2). There is no 403."""

import hmac
from typing import Final

from dify_agent.http.errors import HttpError

_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}


class BearerAuth:
    """Checks the ``Authorization`` header against one token; lets everything through when there is none."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    @property
    def required(self) -> bool:
        """Whether there is a token to present."""
        return self._token is not None

    @staticmethod
    def refusal(detail: str) -> HttpError:
        """The 401 with ``detail``."""
        return HttpError(401, detail, _CHALLENGE)

    def judge(self, header: str | None) -> HttpError | None:
        """The 401, with one of three texts, unless ``header``, as the HTTP library decoded it (latin-1), carries the
        token."""
        try:
            self.check(header)
        except HttpError as refusal:
            return refusal
        return None

    def check(self, header: str | None) -> None:
        """Return if ``header`` carries the token.

        Raises:
            HttpError: 401.
        """
        if self._token is None:
            return
        if header is None:
            raise self.refusal("missing authorization header")
        # Bytes, because the token's own bytes are UTF-8, and because str.strip would also take latin-1's blanks.
        scheme, _, token = header.encode("latin-1", "replace").partition(b" ")
        token = token.strip()
        if scheme.lower() != b"bearer" or not token:
            raise self.refusal("invalid authorization scheme")
        self.check_token(token)

    def check_token(self, token: bytes) -> None:
        """Return if ``token`` is the one.

        Raises:
            HttpError: 401.
        """
        if self._token is not None and not hmac.compare_digest(token, self._token):
            raise self.refusal("invalid bearer token")
