"""What an operator can do about a store that cannot be used, as far as its words tell."""

import re
import socket
import ssl
from typing import Final

import anyio
from coredis import exceptions as coredis_errors

from dify_agent.store.urls import StoreUrl

NO_SERVER: Final = (
    "start Redis or Valkey there, or set DIFY_AGENT_REDIS_URL; without a store of your own: dify-agent dev, which "
    "brings one where that is not set"
)
NO_TLS: Final = (
    "if the server has no TLS, its handshake never ends: redis:// in place of rediss:// in DIFY_AGENT_REDIS_URL; "
    "otherwise see whether the address can be reached"
)
NO_REDIS: Final = "what answers there is no Redis: check host and port in DIFY_AGENT_REDIS_URL"
WANTS_TLS: Final = "what answers there speaks TLS: rediss:// in place of redis:// in DIFY_AGENT_REDIS_URL"
SPEAKS_NO_TLS: Final = "what answers there speaks no TLS: redis:// in place of rediss:// in DIFY_AGENT_REDIS_URL"
CLOSED: Final = (
    "what answers there closed the connection while it was set up: it is no Redis, or one that wants TLS (rediss://), "
    "or that refuses this address; check DIFY_AGENT_REDIS_URL"
)
LOGIN: Final = "put user and password into DIFY_AGENT_REDIS_URL: redis://user:password@host:port/database"
WRONG_LOGIN: Final = "correct user and password in DIFY_AGENT_REDIS_URL, percent-encoded where they hold : / @ or %"
IS_CLUSTER: Final = "a cluster answers there: redis+cluster:// in DIFY_AGENT_REDIS_URL, and database 0"
NO_DATABASE: Final = (
    "end DIFY_AGENT_REDIS_URL with a database that the server has, such as /0, "
    "or raise `databases` in the server's configuration"
)
EVICTION: Final = "the store deletes keys when its memory is full, and each is a lost run"
NO_EVICTION: Final = "CONFIG SET maxmemory-policy noeviction, and in the server's configuration"

_CUT: Final = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    ConnectionResetError,
    BrokenPipeError,
)
_NO_DATABASE: Final = re.compile("DB index|not an integer or out of range")

_BY_TYPE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (coredis_errors.InvalidResponse, NO_REDIS),
    (coredis_errors.AuthenticationRequiredError, LOGIN),
    (coredis_errors.AuthenticationError, WRONG_LOGIN),
    (coredis_errors.AuthorizationError, "give the user in DIFY_AGENT_REDIS_URL the right to do so (ACL SETUSER)"),
    (coredis_errors.AskError, IS_CLUSTER),
    (coredis_errors.ReadOnlyError, "DIFY_AGENT_REDIS_URL must lead to the primary; a replica answers there"),
    (coredis_errors.BusyLoadingError, "wait until the server has loaded its data"),
    (
        ssl.SSLCertVerificationError,
        "name the CA's file in DIFY_AGENT_REDIS_URL: ?ssl_ca_certs=FILE (docs/operations.md has all options)",
    ),
    (socket.gaierror, "check the host in DIFY_AGENT_REDIS_URL"),
)
_BY_WORDS: Final = (
    ("data type: '\\x15'", WANTS_TLS),  # the first byte of what a TLS server answers to plain text
    ("WRONG_VERSION_NUMBER", SPEAKS_NO_TLS),
    ("CERTIFICATE_REQUIRED", "name a client certificate in DIFY_AGENT_REDIS_URL: ?ssl_certfile=FILE&ssl_keyfile=FILE"),
    ("cluster support disabled", "that is one server: redis:// in place of redis+cluster:// in DIFY_AGENT_REDIS_URL"),
    ("not allowed in cluster mode", IS_CLUSTER),
    ("unknown command 'SENTINEL'", "that is no sentinel: redis:// for the server itself in DIFY_AGENT_REDIS_URL"),
    ("unknown command 'HELLO'", "the server is too old: Redis 6.2 or later, or Valkey"),
)


def advice_on(root: BaseException, url: StoreUrl | None = None, *, setup: bool = False) -> str | None:
    """What to do about the fault ``root``, None where its own words say all there is to say.

    Args:
        root: from the server, the operating system or TLS.
        url: what the connection was for.
        setup: whether it was still being set up.
    """
    if setup and missing_database(root, url):
        return NO_DATABASE
    known = _by_words(str(root)) or next((advice for kind, advice in _BY_TYPE if isinstance(root, kind)), None)
    if known is not None or isinstance(root, coredis_errors.ResponseError | ssl.SSLError):
        return known
    if isinstance(root, TimeoutError):
        return no_answer(url)
    if isinstance(root, _CUT) or str(root).startswith("Connection lost"):
        return CLOSED if setup and not (url is not None and url.encrypted) else NO_SERVER
    return NO_SERVER if isinstance(root, OSError) else None


def _by_words(text: str) -> str | None:
    return next((advice for words, advice in _BY_WORDS if words in text), None)


def no_answer(url: StoreUrl | None) -> str:
    """What to do when there is no connection in time."""
    return NO_TLS if url is not None and url.encrypted else NO_SERVER


def missing_database(root: BaseException, url: StoreUrl | None) -> str | None:
    """What is wrong when the server refuses to select the URL's database for want of it; else None."""
    if url is None or not url.db or not isinstance(root, coredis_errors.ResponseError):
        return None
    return f"the database {url.db} does not exist there" if _NO_DATABASE.search(str(root)) else None
