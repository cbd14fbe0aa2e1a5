"""The scripted model and the scripted tools, used by both sides. They await anyio only."""

import copy
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import anyio
from jsonschema import Draft202012Validator
from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_ai.exceptions import (
    CallDeferred,
    ModelAPIError,
    ModelHTTPError,
    ModelRetry,
    ToolFailed,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponseStreamEvent,
    ToolReturn,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, Tool, ToolDefinition
from pydantic_ai.usage import RequestUsage
from pydantic_core import PydanticCustomError, core_schema

from tests.oracle.layers import human_layer
from tests.oracle.scenario import OutputSpec, Piece, Step, ToolSpec, Turn

TICK = 1 / 64
"""Seconds per tick: a power of two, so that sums of ticks are exact on a clock that starts at 0."""

ERRORS: dict[str, Any] = {
    "http": lambda: ModelHTTPError(status_code=503, model_name="scripted", body={"message": "overloaded"}),
    "api": lambda: ModelAPIError("scripted", "connection reset"),
    "value": lambda: ValueError("bad value"),
    "timeout": lambda: TimeoutError("took too long"),
    "unexpected": lambda: UnexpectedModelBehavior("odd answer"),
    "runtime": lambda: RuntimeError("broken"),
    "key": lambda: KeyError("missing"),
}

_PARAMETERS: TypeAdapter[ModelRequestParameters] = TypeAdapter(ModelRequestParameters)


async def _pause(item: list[Any]) -> bool:
    """Do a waiting or raising item; whether it was one."""
    match item:
        case ["delay", ticks]:
            await anyio.sleep(ticks * TICK)
        case ["hang"]:
            await anyio.sleep_forever()
        case ["error" | "raise", kind]:
            raise ERRORS[kind]()
        case _:
            return False
    return True


@dataclass
class ScriptedStream(StreamedResponse):
    """Plays one turn through the base class, whose event rules are the reference."""

    turn: Turn = field(default_factory=Turn)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for piece in self.turn.pieces:
            await anyio.lowlevel.checkpoint()
            if not await _pause(piece):
                for event in self._events(piece):
                    yield event
        self.finish_reason = self.turn.finish  # type: ignore[assignment]

    def _events(self, piece: Piece) -> Iterator[ModelResponseStreamEvent]:
        parts = self._parts_manager
        match piece:
            case ["text", key, content]:
                yield from parts.handle_text_delta(vendor_part_id=key, content=content)
            case ["thinking", key, content, signature]:
                provider = "scripted" if signature else None
                yield from parts.handle_thinking_delta(
                    vendor_part_id=key, content=content, signature=signature, provider_name=provider
                )
            case ["call", key, name, args, id_]:
                args = copy.deepcopy(args)
                yield from parts.handle_tool_call_delta_events(
                    vendor_part_id=key, tool_name=name, args=args, tool_call_id=id_
                )
            case ["args", key, more]:
                yield from parts.handle_tool_call_delta_events(vendor_part_id=key, args=more)
            case ["file", key]:
                part = FilePart(content=BinaryContent(b"png", media_type="image/png"))
                yield parts.handle_part(vendor_part_id=key, part=part)
            case ["state", state]:
                self.state = state
            case ["usage", input_tokens, output_tokens]:
                self._usage = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
            case _:
                raise AssertionError(f"unknown piece: {piece}")

    async def close_stream(self) -> None:
        """Nothing to close."""

    @property
    def model_name(self) -> str:
        return "scripted"

    @property
    def provider_name(self) -> str | None:
        return "scripted"

    @property
    def provider_url(self) -> str | None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.started


class ScriptedModel(Model[Any]):
    """Answers with the given turns, one per request, and records what it was asked."""

    def __init__(self, turns: list[Turn], settings: dict[str, Any] | None = None) -> None:
        super().__init__(settings=settings)  # type: ignore[arg-type]
        self._turns = iter(turns)
        self.asked: list[dict[str, Any]] = []

    @property
    def model_name(self) -> str:
        return "scripted"

    @property
    def system(self) -> str:
        return "scripted"

    async def request(self, *_: Any, **__: Any) -> ModelResponse:
        raise AssertionError("only streams are scripted")

    def _record(
        self, messages: list[ModelMessage], settings: ModelSettings | None, given: ModelRequestParameters
    ) -> None:
        self.asked.append(
            {
                "messages": ModelMessagesTypeAdapter.dump_python(messages, mode="json"),
                "settings": None if settings is None else dict(settings),
                "parameters": _PARAMETERS.dump_python(given, mode="json"),
            }
        )

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        self._record(messages, model_settings, model_request_parameters)
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        turn = next(self._turns, None) or Turn(pieces=[["text", 0, "(script ended)"]])
        await anyio.lowlevel.checkpoint()
        for item in turn.opening:
            await _pause(item)
        yield ScriptedStream(model_request_parameters=parameters, turn=turn)


class ToolScript:
    """Plays a tool's calls and notes, in a list shared by all tools, when each started and with what."""

    def __init__(self, spec: ToolSpec, log: list[list[Any]]) -> None:
        self._spec = spec
        self._log = log
        self._started = 0
        self._checked = 0

    def _next_call(self, kwargs: dict[str, Any]) -> list[Step]:
        self._log.append([self._spec.name, kwargs])
        self._started += 1
        return self._spec.calls[min(self._started, len(self._spec.calls)) - 1]

    @staticmethod
    def _end(step: Step) -> Any:
        match step:
            case ["context"]:
                return "context"
            case ["return", value]:
                return copy.deepcopy(value)
            case ["rich", value, content, metadata]:
                return ToolReturn(return_value=value, content=content, metadata=metadata)
            case ["retry", message]:
                raise ModelRetry(message)
            case ["fail", message]:
                raise ToolFailed(message)
            case ["raise", kind]:
                raise ERRORS[kind]()
            case ["defer", metadata]:
                raise CallDeferred(metadata)
        raise AssertionError(f"unknown step: {step}")

    async def run(self, **kwargs: Any) -> Any:
        """One call."""
        steps = self._next_call(kwargs)
        for step in steps[:-1]:
            if step == ["swallow"]:
                try:
                    await anyio.sleep_forever()
                except anyio.get_cancelled_exc_class():  # noqa: ASYNC103 - a tool that ignores its cancel
                    self._log.append([self._spec.name, "swallowed"])
            else:
                await _pause(step)
        if steps[-1] == ["hang"]:
            await anyio.sleep_forever()
        return self._end(steps[-1])

    def run_sync(self, **kwargs: Any) -> Any:
        """One call of a sync tool."""
        return self._end(self._next_call(kwargs)[-1])

    def check(self, _context: RunContext[Any], **kwargs: Any) -> None:
        """The argument check."""
        script = self._spec.check or [[]]
        self._log.append([self._spec.name, "checked", kwargs])
        self._checked += 1
        for step in script[min(self._checked, len(script)) - 1]:
            self._end(step)


def _seen(context: RunContext[Any]) -> dict[str, Any]:
    """What a tool is told about its run."""
    return {
        "tool": [context.tool_name, context.tool_call_id, context.retry, context.max_retries],
        "run": [context.run_step, context.prompt, len(context.messages), context.usage.requests, context.retries],
    }


def _with_signature(script: ToolScript, spec: ToolSpec) -> Any:
    """The function of a tool, with the parameters its kind has."""
    run, run_sync = script.run, script.run_sync

    async def two_args(x: int, y: str = "d") -> Any:
        return await run(x=x, y=y)

    def two_args_sync(x: int, y: str = "d") -> Any:
        return run_sync(x=x, y=y)

    async def with_context(context: RunContext[Any], x: int) -> Any:
        value = await run(x=x)
        return _seen(context) if value == "context" else value

    async def two_required(p: int, q: int) -> Any:
        return await run(p=p, q=q)

    async def open_args(**kwargs: Any) -> Any:
        return await run(**kwargs)

    async def ask_outside(question: str, options: list[str] | None = None) -> Any:
        return await run(question=question, options=options)  # shows in the record: it must never be executed

    return {
        "function": two_args_sync if spec.sync else two_args,
        "two": two_required,
        "context": with_context,
        "open": open_args,
        "schema": open_args,
        "external": ask_outside,
    }[spec.kind]


def _prepare_external(_context: RunContext[Any], definition: ToolDefinition) -> ToolDefinition:
    return replace(definition, kind="external")


def build_tool(spec: ToolSpec, log: list[list[Any]]) -> Tool[Any]:
    """The Pydantic AI tool of a specification."""
    if spec.kind == "human":
        [tool] = human_layer(spec).tools
        return tool
    script = ToolScript(spec, log)
    function = _with_signature(script, spec)
    check = None if spec.check is None else _check_like(function, script)
    if spec.kind == "schema":
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        return Tool.from_schema(function, name=spec.name, description=f"Tool {spec.name}.", json_schema=schema)
    return Tool(
        function,
        name=spec.name,
        description=f"Tool {spec.name}.",
        max_retries=spec.max_retries,
        sequential=spec.sequential,
        timeout=None if spec.timeout is None else spec.timeout * TICK,
        args_validator=check,
        prepare=_prepare_external if spec.kind == "external" else None,
    )


def _check_like(function: Any, script: ToolScript) -> Any:
    """The argument check: Pydantic AI calls it with the tool's own parameters."""

    def check(context: RunContext[Any], **kwargs: Any) -> None:
        script.check(context, **kwargs)

    check.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return check


def _path(parts: Any) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def output_type(spec: OutputSpec, *, with_description: bool) -> Any:
    """A dict type that shows the schema to the model and checks the arguments against it."""
    validator = Draft202012Validator(spec.json_schema)
    shown: dict[str, Any] = {**spec.json_schema, "title": "final_output"}
    if with_description and spec.description is not None:
        shown["description"] = spec.description

    def check(value: dict[str, Any]) -> dict[str, Any]:
        for found in sorted(validator.iter_errors(value), key=lambda e: [str(part) for part in e.path]):
            text = f"Output does not match JSON Schema: {_path(found.path)}: {found.message}"
            raise PydanticCustomError("json_schema_validation", "{text}", {"text": text})  # type: ignore[type-var]
        return value

    class Output(dict[str, Any]):
        __is_model_like__ = True

        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
            plain = core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
            return core_schema.no_info_after_validator_function(check, plain)

        @classmethod
        def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
            return dict(shown)

    return Output
