"""All tool calls of one response: functions and outputs in the order the model made them, then the external ones.

Functions before an output call finish before it is looked at, functions behind it run although it was accepted. Calls
for the outside come last wherever the model put them. Rules and texts: specification, agent-loop 3.2.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from pydantic_ai.exceptions import ApprovalRequired, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import (
    DeferredToolRequestsEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelRequestPart,
    OutputToolCallEvent,
    OutputToolResultEvent,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.tools import DeferredToolRequests, ToolApproved

from dify_agent.loop import texts
from dify_agent.loop.batch import run_batch
from dify_agent.loop.calls import Answered, Deferral, Deferred, Ready, given_result, validate_call
from dify_agent.loop.history import SKIP, Answers
from dify_agent.loop.results import retried, status
from dify_agent.loop.retries import OUTPUT_RETRIES
from dify_agent.loop.state import Run
from dify_agent.loop.toolbox import Toolbox, validate_output


@dataclass(frozen=True, slots=True)
class Final:
    """What the run ends with."""

    value: Any


@dataclass(slots=True)
class ToolRound:
    """The calls of one response and what has become of them. ``parts`` is whole at every ending."""

    run: Run
    toolbox: Toolbox
    calls: Sequence[ToolCallPart]
    answers: Answers | None
    parts: list[ModelRequestPart]
    final: Final | None = None
    _accepted: ToolReturnPart | None = None
    _function_retried: bool = False
    _invalid_outputs: int = 0
    _external: list[ToolCallPart] = field(default_factory=list)
    _approvals: list[ToolCallPart] = field(default_factory=list)
    _metadata: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def process(self) -> Final | None:
        """Answer the calls.

        Returns:
            The run's end, or None when the model has to be asked again.

        Raises:
            UserError: given results do not match the calls, or a call is deferred although the run may not end so.
            UnexpectedModelBehavior: a retry budget is spent, or one id is used twice.
            Exception: what a tool, a check or the sink raised.
        """
        results = self._given()
        await self._in_order(results)
        self.run.output_retries.used += self._invalid_outputs
        self._revoke()
        if self.answers is None:
            await self._outside()
        if self.final is None and (self._external or self._approvals):
            await self._defer()
        return self.final

    def _given(self) -> dict[str, Any] | None:
        """Results to use on a resume, without those the history already holds; None when this is no resume."""
        if self.answers is None:
            return None
        eligible = [call.tool_call_id for call in self.calls if self.toolbox.kind(call.tool_name) != "output"]
        if doubles := _doubles(eligible):
            raise UserError(texts.duplicate_results(doubles))
        every = {call.tool_call_id for call in self.calls}
        if not set(eligible) <= self.answers.results.keys() <= every:
            raise UserError(texts.results_mismatch(eligible, self.answers.results))
        return {call_id: result for call_id, result in self.answers.results.items() if result != SKIP}

    async def _in_order(self, results: dict[str, Any] | None) -> None:
        functions: list[ToolCallPart] = []
        for call in self.calls:
            if results is not None and call.tool_call_id not in results:
                continue
            kind = self.toolbox.kind(call.tool_name)
            if kind == "output":
                await self._functions(functions, results)
                functions = []
                await self._output(call)
            elif results is not None or kind in ("function", "unknown"):
                functions.append(call)
        await self._functions(functions, results)

    async def _functions(self, calls: list[ToolCallPart], results: dict[str, Any] | None) -> None:
        if not calls:
            return
        if doubles := _doubles(call.tool_call_id for call in calls):
            raise UnexpectedModelBehavior(texts.duplicate_calls(doubles))
        batch = [await self._prepare(call, results) for call in calls]
        for ready, outcome in zip(batch, await run_batch(self.run, batch, self.parts), strict=True):
            if isinstance(outcome, Deferred):
                self._set_aside(ready.call, outcome.reason)
            elif isinstance(outcome, Answered) and outcome.part.outcome == "retried":
                # A call of an unknown tool is no work that has to be finished before an output counts.
                self._function_retried |= self.toolbox.kind(ready.call.tool_name) == "function"

    async def _prepare(self, call: ToolCallPart, results: dict[str, Any] | None) -> Ready:
        result = results.get(call.tool_call_id) if results is not None else None
        if result is not None and not isinstance(result, ToolApproved):
            ready: Ready | UnexpectedModelBehavior = given_result(call, result)
        else:
            ready = await self._validated(call, result)
            if isinstance(ready, UnexpectedModelBehavior):
                self.run.refuse_cut_call()
        return await self._announce(call, ready)

    async def _validated(
        self, call: ToolCallPart, approved: ToolApproved | None = None
    ) -> Ready | UnexpectedModelBehavior:
        """The validated call, or the error that ends the run once the call's event is out."""
        metadata = None
        if approved is not None and self.answers is not None:
            metadata = self.answers.metadata.get(call.tool_call_id)
        try:
            return await validate_call(self.run, self.toolbox, call, approved=approved, metadata=metadata)
        except UnexpectedModelBehavior as error:
            return error

    async def _announce(self, call: ToolCallPart, ready: Ready | UnexpectedModelBehavior) -> Ready:
        valid = ready.valid if isinstance(ready, Ready) else False
        await self.run.emit(FunctionToolCallEvent(call, args_valid=valid))
        if isinstance(ready, UnexpectedModelBehavior):
            raise ready
        return ready

    async def _output(self, call: ToolCallPart) -> None:
        """Accept an output call, ask for another one, or skip it because one was accepted before."""
        if self.final is not None:
            await self._answer_output(call, status(call, texts.OUTPUT_SKIPPED), valid=None)
            return
        contract = self.run.request.output
        assert contract is not None, "only a run with an output contract offers the output tool"
        try:
            value = validate_output(contract, call)
        except ValidationError as error:
            await self._answer_output(call, self._refuse_output(call, error), valid=False)
            return
        self.run.tool_retries.succeed(call.tool_name)
        self.final = Final(value)
        self._accepted = status(call, texts.FINAL_RESULT_PROCESSED)
        await self._answer_output(call, self._accepted, valid=True)

    def _refuse_output(self, call: ToolCallPart, error: ValidationError) -> ToolReturnPart:
        try:
            attempt = self.run.tool_retries.charge(call.tool_name, OUTPUT_RETRIES, error)
        except UnexpectedModelBehavior:
            self.run.refuse_cut_call()
            raise UnexpectedModelBehavior(texts.output_retries_exhausted(OUTPUT_RETRIES)) from error
        self._invalid_outputs += 1
        return retried(call, error, attempt=attempt, max_retries=OUTPUT_RETRIES)

    async def _answer_output(self, call: ToolCallPart, part: ToolReturnPart, *, valid: bool | None) -> None:
        self.parts.append(part)
        await self.run.emit(OutputToolCallEvent(call, args_valid=valid))
        await self.run.emit(OutputToolResultEvent(part))

    def _revoke(self) -> None:
        """An accepted output does not stand while a function of the same response asks for another call."""
        if self._function_retried and self._accepted is not None:
            position = next(index for index, part in enumerate(self.parts) if part is self._accepted)
            self.parts[position] = replace(self._accepted, content=texts.OUTPUT_REVOKED)
            self.final = None

    async def _outside(self) -> None:
        """Look at the calls that are executed elsewhere."""
        kinds = [(call, self.toolbox.kind(call.tool_name)) for call in self.calls]
        outside = [call for call, kind in kinds if kind == "external"]
        outside += [call for call, kind in kinds if kind == "unapproved"]
        for call in outside:
            if self.final is not None:
                part = status(call, texts.TOOL_SKIPPED)
                self.parts.append(part)
                await self.run.emit(FunctionToolCallEvent(call))
                await self.run.emit(FunctionToolResultEvent(part))
            else:
                await self._outside_call(call)

    async def _outside_call(self, call: ToolCallPart) -> None:
        ready = await self._announce(call, await self._validated(call))
        if isinstance(ready.outcome, Answered):
            self.parts.append(ready.outcome.part)
            await self.run.emit(FunctionToolResultEvent(ready.outcome.part))
        elif isinstance(ready.outcome, Deferred):
            self._set_aside(call, ready.outcome.reason)
        elif self.toolbox.kind(call.tool_name) == "external":
            self._external.append(call)
        else:
            self._approvals.append(call)

    def _set_aside(self, call: ToolCallPart, reason: Deferral) -> None:
        (self._approvals if isinstance(reason, ApprovalRequired) else self._external).append(call)
        if reason.metadata is not None:
            self._metadata[call.tool_call_id] = reason.metadata

    async def _defer(self) -> None:
        """End the run with the calls left for the outside."""
        if doubles := _doubles(call.tool_call_id for call in (*self._approvals, *self._external)):
            raise UnexpectedModelBehavior(texts.duplicate_deferred(doubles))
        requests = DeferredToolRequests(calls=self._external, approvals=self._approvals, metadata=self._metadata)
        await self.run.emit(DeferredToolRequestsEvent(requests))
        if not self.run.request.allow_deferred:
            raise UserError(texts.DEFERRAL_REFUSED)
        self.final = Final(requests)


def _doubles(ids: Iterable[str]) -> list[str]:
    """Ids that occur more than once, in the order their first repetition is met."""
    seen: set[str] = set()
    found: list[str] = []
    for call_id in ids:
        if call_id in seen and call_id not in found:
            found.append(call_id)
        seen.add(call_id)
    return found
