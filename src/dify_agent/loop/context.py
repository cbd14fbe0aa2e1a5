"""Before a request: make the history fit the model (layers 2.5)."""

from functools import partial

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestParameters

from dify_agent.loop.compaction import compacted
from dify_agent.loop.limits import add_usage, storable_usage
from dify_agent.loop.state import Run
from dify_agent.loop.timeouts import RequestTimeouts


async def fit_context(run: Run) -> None:
    """Replace a history that is too long for the model by a shorter one, whole or not at all.

    Raises:
        UsageLimitExceeded: the summaries have used the request limit up.
        ModelAPIError: the model failed to summarise, or took longer than the settings allow.
        RunFailedError: likewise, or the history is too long to be summarised.
    """
    budget = run.request.context_budget
    if budget is None:
        return
    shorter = await compacted(run.messages, budget, partial(_summarise, run))
    if shorter is not None:
        run.messages[:] = shorter
        run.limits.check_before_request(run.capture.usage)


async def _summarise(run: Run, messages: list[ModelMessage]) -> ModelResponse:
    """Ask the run's own model; the request counts like any other (layers 2.5)."""
    run.limits.check_before_request(run.capture.usage)
    model = run.request.model
    timeouts = RequestTimeouts.start(model, run.settings)
    response: ModelResponse | None = None
    with timeouts.scope:
        response = await model.request(messages, run.settings, ModelRequestParameters())
    timeouts.check()
    assert response is not None
    add_usage(run.capture.usage, storable_usage(response.usage))
    run.capture.usage.requests += 1
    return response
