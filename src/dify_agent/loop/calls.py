"""One tool call: validate its arguments, run the tool, say what became of it."""

import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import trio
from pydantic import ValidationError
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import RetryPromptPart, ToolCallPart, ToolReturnPart
from pydantic_ai.tools import RunContext, ToolApproved, ToolDenied

from dify_agent.loop.results import UnknownToolError, UserExtra, failed, retried, returned
from dify_agent.loop.retries import DEFAULT_TOOL_RETRIES
from dify_agent.loop.state import Run
from dify_agent.loop.texts import timed_out, unknown_tool
from dify_agent.loop.threads import ThreadCall
from dify_agent.loop.toolbox import Toolbox, ToolEntry

Deferral = CallDeferred | ApprovalRequired


@dataclass(frozen=True, slots=True)
class Answered:
    """The call has a result."""

    part: ToolReturnPart
    extra: UserExtra = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """The call is left for the outside."""

    reason: Deferral


@dataclass(frozen=True, slots=True)
class Broken:
    """The call ends the run."""

    error: Exception


Outcome = Answered | Deferred | Broken


@dataclass(slots=True)
class Ready:
    """A call to execute, or one whose outcome is known without executing it."""

    call: ToolCallPart
    valid: bool | None
    """What its event says of the arguments; None when nothing was validated."""
    outcome: Outcome | None = None
    entry: ToolEntry | None = None
    args: dict[str, Any] | None = None
    context: RunContext[Any] | None = None


async def validate_call(
    run: Run,
    toolbox: Toolbox,
    call: ToolCallPart,
    *,
    approved: ToolApproved | None = None,
    metadata: Any = None,
) -> Ready:
    """Validate a call's arguments and run the tool's own check of them.

    Raises:
        UnexpectedModelBehavior: they are invalid and the tool's retries are spent.
        UserError: the check of an external tool asks for an approval, which nobody here can give.
        Exception: whatever else the check raises.
    """
    entry = toolbox.entries.get(call.tool_name)
    if entry is None:
        return Ready(call, False, Answered(_refuse_unknown(run, toolbox, call)))
    context = _context(run, entry, call, approved=approved is not None, metadata=metadata)
    override = approved.override_args if approved is not None else None
    ready = Ready(call, True, entry=entry, context=context)
    try:
        ready.args = entry.validate(call.args if override is None else override)
        await entry.check(context, ready.args)
    except (CallDeferred, ApprovalRequired) as deferral:
        if isinstance(deferral, ApprovalRequired) and entry.definition.kind == "external":
            raise UserError(
                f"The check of external tool {call.tool_name!r} asked for an approval, but its calls are executed "
                "outside the run. Raise `CallDeferred` instead, and approve the call where it is executed."
            ) from deferral
        ready.outcome = Deferred(deferral)
    except (ValidationError, ModelRetry) as error:
        return Ready(call, False, Answered(_charge(run, call, error, entry.max_retries)), entry)
    except ToolFailed as error:
        return Ready(call, False, Answered(failed(call, error)), entry)
    return ready


def given_result(call: ToolCallPart, result: Any) -> Ready:
    """A call that the caller of the run supplied the result of."""
    match result:
        case ToolDenied():
            part = ToolReturnPart(
                tool_name=call.tool_name, content=result.message, tool_call_id=call.tool_call_id, outcome="denied"
            )
            return Ready(call, None, Answered(part))
        case ToolFailed():
            return Ready(call, None, Answered(failed(call, result)))
        case ModelRetry():
            return Ready(call, None, Answered(retried(call, result)))
        case RetryPromptPart():
            content = result.content if isinstance(result.content, str) else result.model_response()
            return Ready(call, None, Answered(retried(call, ModelRetry(content))))
        case _:
            return Ready(call, None, Answered(*returned(call, result)))


async def execute(run: Run, ready: Ready) -> Outcome:
    """Run the tool of a validated call. Raises only ``trio.Cancelled`` and its like, never an ``Exception``."""
    call, entry = ready.call, ready.entry
    try:
        assert entry is not None
        assert ready.context is not None
        assert ready.args is not None
        if entry.definition.kind == "external":
            return Broken(RuntimeError(f"External tool {call.tool_name!r} cannot be executed in the run."))
        value = await _within_timeout(run, ready, entry)
        return _succeeded(run, call, value)
    except (CallDeferred, ApprovalRequired) as deferral:
        return Deferred(deferral)
    except ToolFailed as error:
        return Answered(failed(call, error))
    except (ValidationError, ModelRetry) as error:
        return _asked_again(run, ready, error)
    except Exception as error:  # noqa: BLE001 - the tool's error ends the run; the batch raises it when its tasks are gone
        return Broken(error)


def _succeeded(run: Run, call: ToolCallPart, value: Any) -> Answered:
    run.capture.usage.tool_calls += 1
    run.tool_retries.succeed(call.tool_name)
    return Answered(*returned(call, value))


def _asked_again(run: Run, ready: Ready, error: ValidationError | ModelRetry) -> Outcome:
    limit = ready.entry.max_retries if ready.entry is not None else DEFAULT_TOOL_RETRIES
    try:
        return Answered(_charge(run, ready.call, error, limit))
    except Exception as exhausted:  # noqa: BLE001 - see `execute`
        return Broken(exhausted)


async def _within_timeout(run: Run, ready: Ready, entry: ToolEntry) -> Any:
    seconds = entry.definition.timeout
    if seconds is None:
        return await _invoke(run, ready, entry, grace=run.request.cancel_timeout)
    try:
        with trio.move_on_after(seconds):
            # A thread past its timeout is left alone at once: its result is not wanted any more.
            return await _invoke(run, ready, entry, grace=0)
    except TimeoutError:
        pass
    raise ModelRetry(timed_out(seconds))


async def _invoke(run: Run, ready: Ready, entry: ToolEntry, *, grace: float) -> Any:
    schema = entry.tool.function_schema
    keywords = dict(ready.args or {})
    positional: list[Any] = [ready.context] if schema.takes_ctx else []
    positional.extend(keywords.pop(name) for name in schema.positional_fields)
    if schema.var_positional_field:
        positional.extend(keywords.pop(schema.var_positional_field))
    function = partial(schema.function, *positional, **keywords)
    if schema.is_async:
        return await function()
    thread = ThreadCall(function)
    try:
        value = await thread.run(limiter=run.request.tool_threads, grace=grace)
    except trio.Cancelled:
        if thread.finished:
            ready.outcome = _late(run, ready.call, thread)
        raise
    return await value if inspect.isawaitable(value) else value


def _late(run: Run, call: ToolCallPart, thread: ThreadCall) -> Outcome | None:
    """Keep what a thread finished with after its run was cancelled; an error of it is nobody's any more."""
    try:
        return _succeeded(run, call, thread.result())
    except Exception:  # noqa: BLE001 - the run is cancelled, and that is what it reports
        return None


def _refuse_unknown(run: Run, toolbox: Toolbox, call: ToolCallPart) -> ToolReturnPart:
    error = UnknownToolError(unknown_tool(call.tool_name, toolbox.names()))
    attempt = run.tool_retries.charge(call.tool_name, DEFAULT_TOOL_RETRIES, None)
    return retried(call, error, attempt=attempt, max_retries=DEFAULT_TOOL_RETRIES)


def _charge(run: Run, call: ToolCallPart, error: ValidationError | ModelRetry, limit: int) -> ToolReturnPart:
    attempt = run.tool_retries.charge(call.tool_name, limit, error)
    return retried(call, error, attempt=attempt, max_retries=limit)


def _context(run: Run, entry: ToolEntry, call: ToolCallPart, *, approved: bool, metadata: Any) -> RunContext[Any]:
    if not entry.tool.takes_ctx and entry.tool.args_validator is None:
        return run.context
    return replace(
        run.context,
        tool_name=call.tool_name,
        tool_call_id=call.tool_call_id,
        retry=run.tool_retries.counts.get(call.tool_name, 0),
        max_retries=entry.max_retries,
        tool_call_approved=approved,
        tool_call_metadata=metadata,
    )
