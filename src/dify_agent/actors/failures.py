"""From an exception to what ``run_failed`` carries (layers 3.7)."""

from dataclasses import replace
from typing import Final

from pydantic_ai.exceptions import ModelHTTPError, ModelRequestTimeout, UsageLimitExceeded

from dify_agent.actors.environment import RunBounds
from dify_agent.actors.lifecycle import Phase
from dify_agent.actors.messages import Failed
from dify_agent.concurrency.groups import first_error
from dify_agent.errors import Reason, RunFailedError, setting_of
from dify_agent.protocol.schemas import RunFailureType

MAX_ERROR_CHARACTERS: Final = 8 * 1024
RATE_LIMITED: Final = 429
RATE_LIMIT_REASON: Final = "InvokeRateLimitError"


class RunDeadlineExceededError(Exception):
    """The agent loop took longer than ``DIFY_AGENT_RUN_TIMEOUT_SECONDS``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Agent run exceeded the configured limit of {seconds:g} seconds")


def phase_timeout(phase: str, setting: str, seconds: float) -> RunFailedError:
    """A phase outlived its bound; the run fails, and the text names the setting that bounds it."""
    variable = f"DIFY_AGENT_{setting}"
    text = f"The run's {phase} did not end within {seconds:g} seconds ({variable})."
    return RunFailedError(text, reason=Reason.PHASE_TIMEOUT, setting=variable)


def overdue(phase: Phase, bounds: RunBounds) -> Failed:
    """The failure of a run whose work ignores cancellation: the phase's own bound, as if it had ended in time."""
    error: Exception
    match phase:
        case Phase.ENTERING:
            error = phase_timeout("entry", "ENTER_TIMEOUT_SECONDS", bounds.enter_timeout_seconds)
        case Phase.RUNNING:
            error = RunDeadlineExceededError(bounds.run_timeout_seconds)
        case _:
            error = phase_timeout("exit", "EXIT_TIMEOUT_SECONDS", bounds.exit_timeout_seconds)
    return describe_failure(error)


def bounded(text: str) -> str:
    """``text``, cut where it would fill the record, the log and every answer about the run: Pydantic lists each of a
    hundred thousand violations, and names are quoted whole."""
    if len(text) <= MAX_ERROR_CHARACTERS:
        return text
    return f"{text[:MAX_ERROR_CHARACTERS]}… ({len(text) - MAX_ERROR_CHARACTERS} more characters)"


def describe_failure(error: BaseException) -> Failed:
    """The failure of a run: text, stable type, reason, and the setting that could mend it."""
    error = first_error(error)
    return replace(_described(error), setting=setting_of(error))


def _described(error: BaseException) -> Failed:
    text = bounded(str(error)) or type(error).__name__
    if not isinstance(error, Exception):
        text = bounded(f"The run's work was ended by {type(error).__name__}: {error}")
    if isinstance(error, UsageLimitExceeded | RunDeadlineExceededError):
        return Failed(text, error_type=RunFailureType.AGENT_RUN_LIMIT_EXCEEDED)
    if isinstance(error, RunFailedError):
        return Failed(text, reason=error.reason)
    if isinstance(error, ModelRequestTimeout):
        return _request_timeout(error)
    if isinstance(error, ModelHTTPError):
        return _model_failure(error)
    return Failed(text)


def _request_timeout(error: ModelRequestTimeout) -> Failed:
    """Of a bound that the caller set, not the operator: so it is named as a field of the request."""
    missed = "say anything" if error.setting == "first_event_timeout" else "end its answer"
    text = (
        f"The model {error.model_name!r} did not {missed} within {error.timeout:g} seconds, so the run fails "
        f"(model_settings.{error.setting} of the layer 'llm')."
    )
    return Failed(bounded(text), reason=Reason.MODEL_REQUEST_TIMEOUT)


def _model_failure(error: ModelHTTPError) -> Failed:
    reason = RATE_LIMIT_REASON if error.status_code == RATE_LIMITED else None
    body = error.body
    if isinstance(body, dict):
        message, kind = body.get("message"), body.get("error_type")
        if isinstance(message, str) and message:
            if isinstance(kind, str) and kind:
                reason = kind
            return Failed(bounded(message), reason=reason)
    text = f"status_code: {error.status_code}, model_name: {error.model_name}, body: {body}"
    return Failed(bounded(text), reason=reason)
