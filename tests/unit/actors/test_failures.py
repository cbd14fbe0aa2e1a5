"""From an exception to `run_failed`: the table of layers 3.7."""

from typing import Any

import pytest
import trio
from pydantic_ai.exceptions import ModelHTTPError, ModelRequestTimeout, UnexpectedModelBehavior, UsageLimitExceeded
from tests.unit.actors.world import BOUNDS

from dify_agent.actors.failures import RunDeadlineExceededError, describe_failure, overdue, phase_timeout
from dify_agent.actors.lifecycle import Phase
from dify_agent.actors.messages import Failed
from dify_agent.errors import AgentRunValidationError, Reason, RunFailedError
from dify_agent.protocol.schemas import RunFailureType

LIMIT = RunFailureType.AGENT_RUN_LIMIT_EXCEEDED


def http(status: int, body: Any) -> ModelHTTPError:
    return ModelHTTPError(status, "m", body)


TABLE: list[tuple[BaseException, Failed]] = [
    (UsageLimitExceeded("too many"), Failed(str(UsageLimitExceeded("too many")), LIMIT)),
    (RunDeadlineExceededError(3600.0), Failed("Agent run exceeded the configured limit of 3600 seconds", LIMIT)),
    (RunDeadlineExceededError(900.5), Failed("Agent run exceeded the configured limit of 900.5 seconds", LIMIT)),
    (RunFailedError("cut", reason=Reason.INCOMPLETE_STREAM), Failed("cut", reason="incomplete_stream")),
    (RunFailedError("no reason"), Failed("no reason")),
    (
        ModelRequestTimeout("m", 0.3),
        Failed(
            "The model 'm' did not end its answer within 0.3 seconds, so the run fails "
            "(model_settings.request_timeout of the layer 'llm').",
            reason="model_request_timeout",
        ),
    ),
    (
        ModelRequestTimeout("m", 90, setting="first_event_timeout"),
        Failed(
            "The model 'm' did not say anything within 90 seconds, so the run fails "
            "(model_settings.first_event_timeout of the layer 'llm').",
            reason="model_request_timeout",
        ),
    ),
    (
        http(400, {"message": "bad", "error_type": "InvokeBadRequestError"}),
        Failed("bad", reason="InvokeBadRequestError"),
    ),
    (http(429, {"message": "slow", "error_type": "Other"}), Failed("slow", reason="Other")),
    (http(429, {"message": "slow"}), Failed("slow", reason="InvokeRateLimitError")),
    (http(429, {"message": "slow", "error_type": ""}), Failed("slow", reason="InvokeRateLimitError")),
    (http(429, {"message": "slow", "error_type": 7}), Failed("slow", reason="InvokeRateLimitError")),
    (http(500, {"message": "oops"}), Failed("oops")),
    (
        http(500, {"message": "", "error_type": "X"}),
        Failed("status_code: 500, model_name: m, body: {'message': '', 'error_type': 'X'}"),
    ),
    (http(500, {"message": 7}), Failed("status_code: 500, model_name: m, body: {'message': 7}")),
    (http(429, "text"), Failed("status_code: 429, model_name: m, body: text", reason="InvokeRateLimitError")),
    (http(503, None), Failed("status_code: 503, model_name: m, body: None")),
    (AgentRunValidationError("run.user_prompts must not be empty"), Failed("run.user_prompts must not be empty")),
    (UnexpectedModelBehavior("odd"), Failed("odd")),
    (ValueError(), Failed("ValueError")),
    (TimeoutError(), Failed("TimeoutError")),
    (trio.TooSlowError(), Failed("TooSlowError")),
    (KeyError("x"), Failed("'x'")),
    (ExceptionGroup("g", [ExceptionGroup("h", [ValueError("first")]), KeyError("second")]), Failed("first")),
    (ExceptionGroup("g", [http(500, {"message": "inside"})]), Failed("inside")),
]


@pytest.mark.parametrize(
    ("error", "failed"), TABLE, ids=[f"{type(error).__name__}-{i}" for i, (error, _) in enumerate(TABLE)]
)
def test_describe_failure(error: BaseException, failed: Failed) -> None:
    assert describe_failure(error) == failed


def test_phase_timeout_names_the_setting() -> None:
    failed = describe_failure(phase_timeout("exit", "EXIT_TIMEOUT_SECONDS", 60.0))
    assert failed == Failed(
        "The run's exit did not end within 60 seconds (DIFY_AGENT_EXIT_TIMEOUT_SECONDS).",
        reason="phase_timeout",
        setting="DIFY_AGENT_EXIT_TIMEOUT_SECONDS",
    )


def test_a_setting_of_the_cause_counts() -> None:
    error = ValueError("outer")
    error.__cause__ = RunFailedError("inner", setting="DIFY_AGENT_X")
    assert describe_failure(error) == Failed("outer", setting="DIFY_AGENT_X")
    assert describe_failure(ExceptionGroup("g", [error])).setting == "DIFY_AGENT_X"


@pytest.mark.parametrize(
    ("phase", "fragment", "reason", "error_type"),
    [
        (Phase.ENTERING, "DIFY_AGENT_ENTER_TIMEOUT_SECONDS", "phase_timeout", None),
        (Phase.RUNNING, "limit of 3600 seconds", None, LIMIT),
        (Phase.EXITING, "DIFY_AGENT_EXIT_TIMEOUT_SECONDS", "phase_timeout", None),
    ],
)
def test_overdue(phase: Phase, fragment: str, reason: str | None, error_type: RunFailureType | None) -> None:
    failed = overdue(phase, BOUNDS)
    assert fragment in failed.error
    assert (failed.reason, failed.error_type) == (reason, error_type)
