"""Domain errors and the reason strings that ``run_failed`` events carry.

Every message says what happened, what it means for the run, and which setting or field to change. No message may
carry a secret.
"""

from enum import StrEnum
from typing import Final, Literal

EMPTY_PROMPT: Final = "run.user_prompts must not be empty"
"""Detail of the 422, and text of the failed run where the 422 could not be decided (decision D1)."""


class Reason(StrEnum):
    """Value of ``run_failed.data.reason`` for kinds of failure this server decides itself (specification R6)."""

    SHUTDOWN = "shutdown"
    OWNER_LOST = "owner_lost"
    STORE_UNAVAILABLE = "store_unavailable"
    PHASE_TIMEOUT = "phase_timeout"
    INCOMPLETE_STREAM = "incomplete_stream"
    MODEL_REQUEST_TIMEOUT = "model_request_timeout"
    BINDING_LOST = "binding_lost"
    CANCELLATION_OBSERVER = "cancellation_observer"
    HISTORY_TOO_LONG = "history_too_long"
    TOO_MANY_TOOL_CALLS = "too_many_tool_calls"


class DifyAgentError(Exception):
    """Base of every error this project raises on purpose."""


class NamesSetting:
    """Mixed into errors that only an operator can mend: a wrong key or address, a bound that is too low."""

    setting: str | None = None
    """Variables to look at, separated by ", "; None when the cause is not among this server's settings."""


def setting_of(error: BaseException | None) -> str | None:
    """What ``error``, or the one it was raised from, names; None when no operator can mend it by a setting."""
    while error is not None:
        if isinstance(error, NamesSetting) and error.setting:
            return error.setting
        error = error.__cause__
    return None


class RunNotFoundError(DifyAgentError, LookupError):
    """The run has no record: never created, or expired. HTTP 404."""

    def __init__(self, run_id: str) -> None:
        super().__init__("run not found")
        self.run_id = run_id


class RunCancellationConflictError(DifyAgentError):
    """A cancel request reached a run that had already succeeded or failed. HTTP 409."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(f"run already finished with status '{status}'")
        self.run_id = run_id
        self.status = status


class SchedulerStoppingError(DifyAgentError):
    """The process is shutting down and accepts no new run. HTTP 503."""

    def __init__(self) -> None:
        super().__init__("run scheduler is shutting down")


ActiveRunsLimit = Literal["process", "tenant"]


class TooManyActiveRunsError(DifyAgentError):
    """This replica, or the tenant on it, has as many runs as it may have. Nothing was stored. HTTP 429."""

    def __init__(self, limit: ActiveRunsLimit = "process") -> None:
        super().__init__("too many active runs")
        self.limit: Final = limit
        """Which limit is reached; not for callers of the API, who can do the same about either."""


class IdempotencyConflictError(DifyAgentError):
    """The idempotency key stands for another request. HTTP 409."""

    def __init__(self) -> None:
        super().__init__("idempotency_key was used with a different request")


class StoreUnavailableError(DifyAgentError):
    """The store did not answer, or refused for a reason that may pass (down, loading, out of memory). HTTP 503.

    Whether the operation took effect is unknown; every store operation is safe to repeat.
    """

    def __init__(self, cause: str, *, sent: bool = True, advice: str | None = None) -> None:
        super().__init__("run store is unavailable")
        self.cause = cause
        self.sent = sent
        """False when it is certain that the store was not even asked."""
        self.advice = advice
        """What an operator can do about it, where the cause tells. Not for callers of the API."""


class AgentRunValidationError(DifyAgentError, ValueError):
    """A request-shaped failure found after the request was accepted: the run fails with this text, reason null."""


class RunFailedError(DifyAgentError, NamesSetting):
    """Ends a run as failed with a text and, when set, a machine-readable reason."""

    def __init__(self, message: str, *, reason: str | None = None, setting: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.setting = setting


class ModelNotAllowedError(AgentRunValidationError):
    """The request names a model endpoint that the operator has not allowed."""
