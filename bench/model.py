"""The model that `Agent` and our loop are both given: text in equal pieces. It awaits anyio only, so it runs on both.

It goes through Pydantic AI's own stream class and parts manager, as an SDK adapter does, with one checkpoint a piece.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

PIECE = "tok "
EVENTS_AROUND_DELTAS = 3
"""Part start, final result, part end."""


@dataclass
class PiecesStream(StreamedResponse):
    """One answer: the start of a text part, then the deltas."""

    deltas: int = field(kw_only=True)
    _began: datetime = field(default_factory=lambda: datetime.now(UTC), init=False)

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for _ in range(1 + self.deltas):
            await anyio.lowlevel.checkpoint()
            for event in self._parts_manager.handle_text_delta(vendor_part_id=0, content=PIECE):
                yield event
        self.finish_reason = "stop"

    async def close_stream(self) -> None:
        """Nothing is open."""

    @property
    def model_name(self) -> str:
        """Always ``pieces``."""
        return "pieces"

    @property
    def provider_name(self) -> str:
        """Always ``bench``."""
        return "bench"

    @property
    def provider_url(self) -> None:
        """There is none."""

    @property
    def timestamp(self) -> datetime:
        """When the answer began."""
        return self._began


class PiecesModel(Model[Any]):
    """Answers every request with the same text of ``deltas`` deltas."""

    def __init__(self, deltas: int) -> None:
        super().__init__()
        self._deltas = deltas

    @property
    def model_name(self) -> str:
        """Always ``pieces``."""
        return "pieces"

    @property
    def system(self) -> str:
        """Always ``bench``."""
        return "bench"

    async def request(self, *_: Any, **__: Any) -> ModelResponse:
        """Both sides stream."""
        raise AssertionError("only streams are measured")

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """The answer as a stream."""
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        yield PiecesStream(model_request_parameters=parameters, deltas=self._deltas)
