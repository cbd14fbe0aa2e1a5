"""Store URLs, parsed into a frozen value.

Forms: ``redis://`` and ``rediss://[user:password@]host[:port][/db]``, ``unix://[user:password@]/path[?db=n]``,
``redis+cluster://host:port,host:port``, ``redis+sentinel://host:port,.../<master>[/<db>]``. Both are there with
``rediss`` as well: TLS to all nodes, or to the sentinels and the data servers. Options of the forms with TLS:
``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``, ``ssl_cert_reqs`` (``required``, ``optional``, ``none``),
``ssl_check_hostname`` (``true``, ``false``).
"""

from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

Scheme = Literal["redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"]
Deployment = Literal["server", "cluster", "sentinel"]

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"})


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where the store is and how to log in. ``repr`` and ``str`` never show the password."""

    scheme: Scheme
    hosts: tuple[tuple[str, int], ...] = ()
    path: str | None = None
    """The unix socket."""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    master: str | None = None
    """Name of the primary that the sentinels watch."""
    tls: tuple[tuple[str, str], ...] = ()
    """Options by name, sorted."""

    @property
    def deployment(self) -> Deployment:
        """What is behind the addresses."""
        return _deployment(self.scheme)

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return _encrypted(self.scheme)

    def __str__(self) -> str:
        if self.path is not None:
            return f"{self.scheme}://{self.path}?db={self.db}"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.scheme}://{hosts}{f'/{self.master}' if self.master else ''}/{self.db}"


def parse_store_url(text: str) -> StoreUrl:
    """Read a store URL.

    Raises:
        ValueError: the text names ``DIFY_AGENT_REDIS_URL`` and never repeats the URL, which may hold a password.
    """
    try:
        return _parse(text)
    except ValueError as error:
        raise ValueError(f"DIFY_AGENT_REDIS_URL: {error}") from None


def _parse(text: str) -> StoreUrl:
    # The netloc is split by hand: several hosts separated by commas are no port to urllib.
    parts = urlsplit(text)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    login, _, netloc = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    credentials = (unquote(username) or None, unquote(password) or None)
    if parts.scheme in get_args(Scheme):
        scheme = cast("Scheme", parts.scheme)
        if scheme == "unix":
            return _unix(netloc, unquote(parts.path), options, credentials)
        return _network(scheme, netloc, parts.path, options, credentials)
    raise ValueError("the scheme must be redis, rediss, unix, redis[s]+cluster or redis[s]+sentinel")


def _unix(netloc: str, path: str, options: dict[str, str], credentials: tuple[str | None, str | None]) -> StoreUrl:
    if netloc or not path.startswith("/"):
        raise ValueError("a unix URL must be unix:///absolute/path")
    db = _database(options.pop("db", "0"))
    _refuse(options)
    return StoreUrl("unix", path=path, db=db, username=credentials[0], password=credentials[1])


def _network(
    scheme: Scheme, netloc: str, path: str, options: dict[str, str], credentials: tuple[str | None, str | None]
) -> StoreUrl:
    deployment = _deployment(scheme)
    default_port = _SENTINEL_PORT if deployment == "sentinel" else _PORT
    hosts = tuple(_host(item, default_port) for item in netloc.split(","))
    segments = [unquote(segment) for segment in path.split("/") if segment]
    master = None
    if deployment == "sentinel":
        if not segments:
            raise ValueError(f"a sentinel URL must name the master: {scheme}://host:port/<master>/<db>")
        master = segments.pop(0)
    elif deployment == "server" and len(hosts) > 1:
        raise ValueError(f"{scheme}:// takes one host; several need {scheme}+cluster:// or {scheme}+sentinel://")
    if len(segments) > 1:
        raise ValueError("the path has too many parts")
    db = _database(options.pop("db", segments[0] if segments else "0"))
    if deployment == "cluster" and db:
        raise ValueError("a cluster has only database 0")
    tls_names = sorted(_TLS_OPTIONS & options.keys()) if _encrypted(scheme) else []
    tls = tuple((name, options.pop(name)) for name in tls_names)
    if dict(tls).get("ssl_cert_reqs", "required") not in ("required", "optional", "none"):
        raise ValueError("ssl_cert_reqs must be required, optional or none")
    _refuse(options)
    return StoreUrl(
        scheme, hosts=hosts, db=db, username=credentials[0], password=credentials[1], master=master, tls=tls
    )


def _deployment(scheme: Scheme) -> Deployment:
    if scheme.endswith("+cluster"):
        return "cluster"
    return "sentinel" if scheme.endswith("+sentinel") else "server"


def _encrypted(scheme: Scheme) -> bool:
    return scheme.startswith("rediss")


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("a port must be a number from 1 to 65535") from None
    if port == 0:
        raise ValueError("a port must be a number from 1 to 65535")
    return parts.hostname, port or default_port


def _database(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("the database must be a number from 0")
    return int(text)


def _refuse(options: dict[str, str]) -> None:
    if options:
        raise ValueError(f"unknown option {', '.join(sorted(options))}")
