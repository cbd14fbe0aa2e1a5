"""The parts of a response as they grow, and the events that tell of it (agent-loop 3.1, integrations 3.7)."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections import deque
from typing import Any, Final

from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    FinalResultEvent,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import ModelRequestParameters

from dify_agent.model.dify.chunks import MalformedLineError, MessageChunk, ToolCallChunk
from dify_agent.model.dify.thinking import Piece, ThinkingSplitter, whole_spans
from dify_agent.model.dify.tool_calls import ToolCallDraft, call_id, call_index, is_blank, name_and_arguments
from dify_agent.model.final_result import final_result

MAX_ANSWER_BYTES: Final = 16 << 20
"""Of all that one answer says, with what it costs to keep. The specification sets none. The longest answers of models
have some hundred thousand tokens, half of this in pieces of one token; and what is said is held several times over, in
events, history and snapshot. Lines are not counted: the Dify API repeats the prompt in each, so that a long answer to a
long prompt has gigabytes of them."""

MAX_PARTS: Final = 4096
"""Of one answer. Each becomes several events, and one line may hold 100,000 (measured: 130 µs of the loop for each)."""

_PIECE_BYTES: Final = 64
"""Of a piece of text beside its characters."""
_PART_BYTES: Final = 512
"""Of a part beside what it says, and of its events."""
_MEDIA: Final = frozenset({"image", "audio", "video", "document"})

_Growing = list[str] | ToolCallDraft | FilePart
"""Text and thinking as their pieces, a tool call as its draft, a file as it is."""


class AnswerTooLargeError(ValueError):
    """An answer has more than it may have."""

    def __init__(self, limit: str) -> None:
        """``limit``: number and unit."""
        super().__init__(f"the answer has more than {limit}")
        self.limit = limit


class ResponseParts:
    """Takes what chunks say and appends events to ``events``. Nothing here waits."""

    def __init__(self, parameters: ModelRequestParameters) -> None:
        self.events: Final[deque[ModelResponseStreamEvent]] = deque()
        self.final_result: FinalResultEvent | None = None
        self._parameters: Final = parameters
        self._splitter: Final = ThinkingSplitter()
        self._parts: list[_Growing] = []
        self._kinds: list[str] = []
        self._calls: dict[str, ToolCallDraft] = {}
        self._calls_by_index: dict[int, ToolCallDraft] = {}
        self._last_call: ToolCallDraft | None = None
        self._kept_bytes = 0
        self._last = -1
        """Index of the part that was started last, which is not the newest when a call was replaced."""

    def take(self, message: MessageChunk, number: int) -> None:
        """What one chunk says; ``number`` is its ordinal in the answer, from 0.

        Raises:
            MalformedLineError: a file cannot be read, or arguments belong to no call.
            AnswerTooLargeError: with this the answer is too large.
        """
        content = message.get("content")
        if isinstance(content, str):
            self._say(self._splitter.feed(content))
        elif content is not None:
            for item in content:
                self._take_item(item)
        for position, call in enumerate(message.get("tool_calls") or ()):
            self._take_call(call, f"chunk-{number}-tool-{position}")

    def finish(self) -> None:
        """The answer is over: what was held back is text after all, and the last part ends."""
        self._say(self._splitter.flush())
        self._end(None)

    def snapshot(self) -> list[ModelResponsePart]:
        """The parts so far."""
        return [self._part(index) for index in range(len(self._parts))]

    def _take_item(self, item: dict[str, Any]) -> None:
        kind = item.get("type")
        if kind in _MEDIA:
            self._take_file(item)
            return
        data = item.get("data")
        if kind != "text" or not isinstance(data, str):
            raise MalformedLineError("a content part of an unknown type")
        if not self._splitter.at_rest:
            self._say(self._splitter.feed(data))
            return
        for text, thinking in whole_spans(data):
            self._say(self._splitter.feed(text))
            if thinking is not None:
                self._say(self._splitter.flush())
                if thinking:
                    self._count(_size(thinking))
                    self._begin("thinking", [thinking])

    def _take_file(self, item: dict[str, Any]) -> None:
        if item.get("url"):
            raise MalformedLineError("a file by address, where only its bytes can be taken")
        encoded = item.get("base64_data")
        if not encoded:
            return
        try:
            data = b64decode("".join(encoded.split()), validate=True)
        except (Base64Error, AttributeError, ValueError):
            raise MalformedLineError("a file that is not base64") from None
        media_type = item.get("mime_type")
        if not isinstance(media_type, str) or not media_type:
            raise MalformedLineError("a file without mime_type")
        self._say(self._splitter.flush())
        self._count(len(data))
        self._begin("file", FilePart(BinaryContent(data=data, media_type=media_type)))

    def _take_call(self, call: ToolCallChunk, made_id: str) -> None:
        given = call_id(call)
        name, arguments = name_and_arguments(call)
        known = self._calls.get(given) if given else None
        draft = known if known is not None or name else self._call_before(call_index(call))
        if draft is None and not name:
            if is_blank(arguments):
                return
            raise MalformedLineError("arguments of a tool call that has no name")
        if draft is None:
            self._say(self._splitter.flush())
            self._count(_size(given) + _size(name) + _size(arguments))
            draft = ToolCallDraft(len(self._parts), given or made_id, name, arguments)
            self._calls[draft.call_id] = draft
            self._note(draft, call)
            self._begin("tool-call", draft)
            return
        if draft.is_nothing_new(name, arguments):
            return
        self._count(_PIECE_BYTES + _size(arguments))
        self._note(draft, call)
        if known is None or draft.goes_on_with(name):
            draft.append(arguments)
            delta = ToolCallPartDelta(args_delta=arguments, tool_call_id=draft.call_id)
            self.events.append(PartDeltaEvent(index=draft.index, delta=delta))
        else:
            self._end("tool-call")
            draft.begin(name or draft.name, arguments)
            self._start(draft.index)

    def _call_before(self, index: int | None) -> ToolCallDraft | None:
        """The call that a fragment without a name, with no id or an unknown one, belongs to: that with its index, else
        the one before. A call without a name can never be made, so the fragment is no call of its own; and what it
        says is not lost where that call is complete: the arguments are wrong then, and the model is told so."""
        draft = None if index is None else self._calls_by_index.get(index)
        return draft or self._last_call

    def _note(self, draft: ToolCallDraft, call: ToolCallChunk) -> None:
        self._last_call = draft
        index = call_index(call)
        if index is not None:
            self._calls_by_index[index] = draft

    def _count(self, size: int) -> None:
        self._kept_bytes += size
        if self._kept_bytes > MAX_ANSWER_BYTES:
            raise AnswerTooLargeError(f"{MAX_ANSWER_BYTES} bytes")

    def _say(self, pieces: list[Piece]) -> None:
        for thinking, text in pieces:
            self._count(_PIECE_BYTES + _size(text))
            kind = "thinking" if thinking else "text"
            index = len(self._parts) - 1
            if index < 0 or self._kinds[index] != kind:
                self._begin(kind, [text])
                continue
            growing = self._parts[index]
            assert isinstance(growing, list)
            growing.append(text)
            delta = ThinkingPartDelta(content_delta=text) if thinking else TextPartDelta(text)
            self.events.append(PartDeltaEvent(index=index, delta=delta))

    def _begin(self, kind: str, part: _Growing) -> None:
        """End the part before and start ``part``."""
        if len(self._parts) >= MAX_PARTS:
            raise AnswerTooLargeError(f"{MAX_PARTS} parts")
        self._count(_PART_BYTES)
        self._end(kind)
        self._parts.append(part)
        self._kinds.append(kind)
        self._start(len(self._parts) - 1)

    def _start(self, index: int) -> None:
        previous: Any = self._kinds[self._last] if self._last >= 0 else None
        part = self._part(index)
        self.events.append(PartStartEvent(index=index, part=part, previous_part_kind=previous))
        self._last = index
        if self.final_result is None:
            self.final_result = final_result(part, self._parameters)
            if self.final_result is not None:
                self.events.append(self.final_result)

    def _end(self, next_kind: str | None) -> None:
        if self._last >= 0 and self._kinds[self._last] != "file":
            following: Any = next_kind
            part: Any = self._part(self._last)
            self.events.append(PartEndEvent(index=self._last, part=part, next_part_kind=following))

    def _part(self, index: int) -> ModelResponsePart:
        growing = self._parts[index]
        if isinstance(growing, FilePart):
            return growing
        if isinstance(growing, ToolCallDraft):
            return ToolCallPart(growing.name, growing.arguments, growing.call_id)
        text = "".join(growing)
        growing[:] = [text]
        return ThinkingPart(text) if self._kinds[index] == "thinking" else TextPart(text)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
