"""A layer type for the resume tests: its state is a diary, and its hooks do what the request says.

The server process imports a copy of this file, as an installed package.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Literal, Self

import trio
from pydantic import BaseModel, ConfigDict

from agenton.layers import LayerConfig, NoLayerDeps, PlainLayer

Trouble = Literal["none", "hang", "fail", "gate", "stubborn"]

STUBBORN_SECONDS = 2.0
"""For so long a stubborn hook ignores that it was cancelled."""


class DiaryConfig(LayerConfig):
    """What the hooks do. A gate is a TCP port: connecting says that the hook is there, the peer's close lets it go."""

    enter: Trouble = "none"
    leave: Trouble = "none"
    prepare: Literal["none", "fail"] = "none"
    resource: Literal["none", "fail"] = "none"
    port: int = 0


class DiaryState(BaseModel):
    """Every hook and every note, in order."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    entries: list[str] = []


class DiaryLayer(PlainLayer[NoLayerDeps, DiaryConfig, DiaryState]):
    """Writes down what happens to it."""

    type_id: ClassVar[str | None] = "test.diary"

    @classmethod
    def from_config(cls, config: DiaryConfig) -> Self:
        return cls()

    @property
    def tools(self) -> Sequence[Callable[..., Any]]:
        if self.config.prepare == "fail":
            raise ValueError("the diary has no pen")
        return [self.note]

    async def note(self, entry: str) -> str:
        """Write an entry."""
        self._write(entry)
        return f"noted {entry}"

    def resource_context(self) -> AbstractAsyncContextManager[None]:
        return self._resource()

    async def on_context_create(self) -> None:
        self._write("created")
        await self._meet(self.config.enter)

    async def on_context_resume(self) -> None:
        self._write("resumed")
        await self._meet(self.config.enter)

    async def on_context_suspend(self) -> None:
        self._write("suspended")
        await self._meet(self.config.leave)

    @asynccontextmanager
    async def _resource(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if self.config.resource == "fail":
                raise RuntimeError("the diary does not close")

    def _write(self, entry: str) -> None:
        self.runtime_state.entries = [*self.runtime_state.entries, entry]

    async def _meet(self, trouble: Trouble) -> None:
        match trouble:
            case "fail":
                raise RuntimeError("the diary is stuck")
            case "hang":
                await trio.sleep_forever()
            case "gate":
                async with await trio.open_tcp_stream("127.0.0.1", self.config.port) as stream:
                    await stream.receive_some(1)
            case "stubborn":
                with trio.move_on_after(STUBBORN_SECONDS, shield=True):
                    await trio.sleep_forever()
