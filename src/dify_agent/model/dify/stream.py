"""An answer of Dify as Pydantic AI's stream of events."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from pydantic_ai.messages import FinishReason, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import StreamedResponse
from pydantic_ai.usage import RequestUsage

from dify_agent.model.dify.answer import Answer
from dify_agent.model.dify.chunks import ErrorEnvelopeError, MalformedLineError, parse_chunk
from dify_agent.model.dify.errors import answer_too_large, cut_stream, malformed, stream_error
from dify_agent.model.dify.parts import AnswerTooLargeError, ResponseParts
from dify_agent.model.dify.usage import call_usage, request_usage
from dify_agent.protocol.usage import AgentRunUsage

_FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "error": "error",
    "tool_call": "tool_call",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "function_calls": "tool_call",
}


def finish_reason(given: str) -> FinishReason:
    """Dify's finish reason as Pydantic AI's; what is unknown is an error."""
    return _FINISH_REASONS.get(given.lower(), "error")


@dataclass
class DifyStream(StreamedResponse):
    """One answer. A flat iterator: the base class's nested generators cost more than the rest."""

    answer: Answer = field(kw_only=True)
    model: str = field(kw_only=True)
    provider: str = field(kw_only=True)
    on_completed: Callable[[AgentRunUsage], None] = field(kw_only=True)
    """Told the usage of the call when the answer was read to its end."""

    def __post_init__(self) -> None:
        self._timestamp = datetime.now(UTC)
        self._grown = ResponseParts(self.model_request_parameters)
        self._events = self._grown.events
        self._chunks = 0
        self._reported: dict[str, Any] | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        """The stream is its own iterator: nothing is left to close when the consumer stops early."""
        return self

    async def __anext__(self) -> ModelResponseStreamEvent:
        """The next event.

        Raises:
            ModelHTTPError: the provider or the connection failed.
            RunFailedError: so did they, in a way that has no HTTP status; or the answer ended early.
        """
        events = self._events
        while not events:
            if self._ended or self.cancelled:
                raise StopAsyncIteration
            payload = await self.answer.next_payload()
            if payload is None:
                self._finish()
            else:
                self._take(payload)
        return events.popleft()

    def get(self) -> ModelResponse:
        """What has arrived so far; ``incomplete`` until the answer is over."""
        return ModelResponse(
            parts=self._grown.snapshot(),
            model_name=self.model,
            provider_name=self.provider,
            timestamp=self._timestamp,
            usage=self.usage,
            finish_reason=self.finish_reason,
            state="complete" if self._ended else "interrupted" if self.cancelled else "incomplete",
        )

    @property
    def usage(self) -> RequestUsage:
        """The token counts that the provider has reported last; they are cumulative."""
        return request_usage(self._reported)

    @property
    def model_name(self) -> str:
        """The configured model."""
        return self.model

    @property
    def provider_name(self) -> str:
        """The way and the plugin."""
        return self.provider

    @property
    def provider_url(self) -> None:
        """None: where the provider is, Dify knows."""

    @property
    def timestamp(self) -> datetime:
        """When the answer began."""
        return self._timestamp

    async def close_stream(self) -> None:
        """Close the HTTP answer."""
        await self.answer.aclose()

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        async for event in self:
            yield event

    def _take(self, payload: bytes) -> None:
        try:
            delta = parse_chunk(payload)["delta"]
            message = delta.get("message")
            if message is not None:
                self._grown.take(message, self._chunks)
        except MalformedLineError as error:
            raise malformed(str(error), peer=self.answer.peer) from None
        except AnswerTooLargeError as error:
            raise answer_too_large(error.limit, peer=self.answer.peer) from None
        except ErrorEnvelopeError as error:
            raise stream_error(
                error.code, error.message, model_name=self.model, redactor=self.answer.redactor
            ) from None
        self._chunks += 1
        self.final_result_event = self._grown.final_result
        usage = delta.get("usage")
        if usage is not None:
            self._reported = usage
        reason = delta.get("finish_reason")
        if reason is not None:
            self.finish_reason = finish_reason(reason)

    def _finish(self) -> None:
        if self.finish_reason is None and self._reported is None:
            raise cut_stream(peer=self.answer.peer)
        usage = None
        if self._reported is not None:
            try:
                usage = call_usage(self._reported)
            except MalformedLineError as error:
                raise malformed(str(error), peer=self.answer.peer) from None
        self._grown.finish()
        self._ended = True
        if usage is not None:
            self.on_completed(usage)
