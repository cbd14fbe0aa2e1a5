"""Variables that look like settings and are none: a misspelt one would be ignored without a word."""

import re
from difflib import get_close_matches
from typing import Final

import structlog
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource

from dify_agent.settings import ENV_PREFIX, ServerSettings

OTHERS: Final = frozenset({"DIFY_AGENT_STUB_AUTH_JWE"})
"""Names that begin like settings and mean something else in a sandbox (protocol, Agent Stub)."""
_SERVICE_LINK: Final = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)
"""What Kubernetes sets in every container for a Service whose name begins with ``dify-agent``."""
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")
_CLOSE: Final = 0.8

_log = structlog.get_logger()


def warn_of_unknown_settings() -> None:
    """One line per variable that begins as settings do and is none, never with its value. Before the start, once."""
    known = ServerSettings.known_variables()
    try:
        unknown = sorted(_unknown(known))
    except (OSError, ValueError):  # a file that cannot be read: the start fails of it, and says so
        return
    for name in unknown:
        close = get_close_matches(name.upper(), sorted(known), n=1, cutoff=_CLOSE)
        _log.warning("unknown setting ignored", setting=name, **({"did_you_mean": close[0]} if close else {}))


def _unknown(known: frozenset[str]) -> set[str]:
    # As settings are read, but with names as they are written.
    sources = [kind(ServerSettings, case_sensitive=True) for kind in (EnvSettingsSource, DotEnvSettingsSource)]
    return {
        name
        for source in sources
        for name, value in source.env_vars.items()
        if name.upper().startswith(ENV_PREFIX)
        and name.upper() not in known | OTHERS
        and value  # an empty variable counts as unset, whatever its name
        and not _is_service_link(name.upper(), value)
    }


def _is_service_link(name: str, value: str) -> bool:
    return _SERVICE_LINK.search(name) is not None or (name.endswith("_PORT") and bool(_SERVICE_URL.match(value)))
