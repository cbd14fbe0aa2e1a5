"""What stopped a start, as one log line per problem that names what to change."""

import errno
import re
import socket
from typing import Any, Final

import structlog
from pydantic import ValidationError

from dify_agent.errors import DifyAgentError, StoreUnavailableError
from dify_agent.main import authority
from dify_agent.settings import ENV_PREFIX, ServerSettings

_BIND_ERRORS: Final = {errno.EADDRINUSE: "--port", errno.EACCES: "--port", errno.EADDRNOTAVAIL: "--host"}
_VARIABLE: Final = re.compile(rf"\b{ENV_PREFIX}[A-Z0-9_]*[A-Z0-9]")

_log = structlog.get_logger()


def log_invalid_settings(invalid: ValidationError) -> None:
    """One line per setting that is refused. Its value is never repeated: it may be a secret."""
    variables = ServerSettings.variables()
    for item in invalid.errors(include_url=False, include_input=False):
        refusal = item.get("ctx", {}).get("error") if item["type"] == "value_error" else None
        problem = item["msg"] if refusal is None else str(refusal)
        name = str(item["loc"][0]) if item["loc"] else None
        setting = _named_in(problem) if name is None else variables.get(name, name.upper())
        _log.error("invalid setting", **_given(setting=setting, problem=problem))


def log_failed_start(error: BaseException, host: str, port: int) -> None:
    """One line on an error that ended the process, with a traceback if nobody expected it."""
    if (option := _option_of(error)) is not None:
        problem = f"cannot listen on {authority(host, port)}: {_words(error)}"
        _log.error("cannot serve", problem=problem, setting=option)
        return
    expected = isinstance(error, OSError | ValueError | DifyAgentError)
    problem = _words(error)
    setting = f"{ENV_PREFIX}REDIS_URL" if isinstance(error, StoreUnavailableError) else _named_in(problem)
    cause = getattr(error, "cause", None)
    _log.error("cannot serve", **_given(problem=problem, cause=cause, setting=setting), exc_info=not expected)


def _option_of(error: BaseException) -> str | None:
    """The option to change when the address cannot be bound, else None. The store's errors do not come this way."""
    if isinstance(error, UnicodeError):
        return "--host" if "idna" in str(error) else None  # a host name with an empty or endless label
    if isinstance(error, socket.gaierror):
        return "--host"
    if isinstance(error, OSError) and error.filename is None:
        return _BIND_ERRORS.get(error.errno or 0)
    return None


def _words(error: BaseException) -> str:
    words = error.strerror if isinstance(error, OSError) and error.filename is None else None
    return words or str(error) or type(error).__name__


def _named_in(text: str) -> str | None:
    """The variables that ``text`` names, in its order."""
    return ", ".join(dict.fromkeys(_VARIABLE.findall(text))) or None


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
