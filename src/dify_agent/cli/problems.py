"""What stopped a start, as one log line per problem that names what to change."""

import errno
import re
import socket
from typing import Any, Final

import structlog
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dify_agent.errors import DifyAgentError, StoreUnavailableError
from dify_agent.main import authority
from dify_agent.settings import ENV_PREFIX, ServerSettings

_BIND_ERRORS: Final = {errno.EADDRINUSE: "--port", errno.EACCES: "--port", errno.EADDRNOTAVAIL: "--host"}
_VARIABLE: Final = re.compile(rf"\b{ENV_PREFIX}[A-Z0-9_]*[A-Z0-9]")
_LONGEST_VALUE: Final = 100
_REFUSALS: Final = {
    "int_parsing": "is no whole number",
    "int_parsing_size": "has too many digits",
    "int_type": "is no whole number",
    "int_from_float": "is no whole number",
    "float_parsing": "is no number",
    "float_type": "is no number",
    "finite_number": "is no finite number",
    "greater_than": "is not above {gt:g}",
    "greater_than_equal": "is below {ge:g}",
    "less_than_equal": "is above {le:g}",
    "bool_parsing": "is neither true nor false",
    "bool_type": "is neither true nor false",
    "literal_error": "is not {expected}",
}
"""By pydantic's type of error; with what it gives as context."""

_log = structlog.get_logger()


def log_invalid_settings(invalid: ValidationError) -> None:
    """One line per setting that is refused. Its value is repeated only where it cannot be a secret."""
    variables = ServerSettings.variables()
    fields = {variable: name for name, variable in variables.items()}
    for item in invalid.errors(include_url=False):
        name = str(item["loc"][0]) if item["loc"] else None
        name = name if name is None else fields.get(name.upper(), name)
        problem = _refusal(item, shown=name in ServerSettings.shown_fields())
        setting = _named_in(problem) if name is None else variables.get(name, name.upper())
        _log.error("invalid setting", **_given(setting=setting, problem=problem))


def _refusal(item: ErrorDetails, *, shown: bool) -> str:
    """What is wrong with a value, which is in the text only if ``shown``."""
    error = item.get("ctx", {}).get("error") if item["type"] == "value_error" else None
    problem = item["msg"] if error is None else str(error)
    if not shown:
        return problem
    value = repr(item["input"])
    if len(value) > _LONGEST_VALUE:
        value = f"{value[:_LONGEST_VALUE]}…"
    if (words := _REFUSALS.get(item["type"])) is not None:
        return f"{value} {words.format_map(item.get('ctx', {}))}"
    return f"{value}: {problem}"


def log_failed_start(error: BaseException, host: str, port: int) -> None:
    """One line on an error that ended the process, with a traceback if nobody expected it."""
    if (option := _option_of(error)) is not None:
        problem = f"cannot listen on {authority(host, port)}: {_words(error)}"
        _log.error("cannot serve", problem=problem, setting=option)
    else:
        log_failure("cannot serve", error)


def log_failure(event: str, error: BaseException) -> None:
    """One line that says what to change, with a traceback if nobody expected this error."""
    problem = _words(error)
    if isinstance(error, StoreUnavailableError):
        setting = f"{ENV_PREFIX}REDIS_URL"
        _log.error(event, problem=problem, **_given(cause=error.cause, advice=error.advice, setting=setting))
        return
    expected = isinstance(error, OSError | ValueError | DifyAgentError)
    _log.error(event, problem=problem, **_given(setting=_named_in(problem)), exc_info=not expected)


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
