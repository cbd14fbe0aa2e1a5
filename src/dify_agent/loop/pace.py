"""Long work of the loop's own task, done a stretch at a time."""

from typing import Final

import trio

STRETCH: Final = 1 << 18
"""Characters between two checkpoints: half a millisecond of counting, also where they are not ASCII."""
_STEP: Final = 500
"""What one step weighs in characters: a microsecond or two, whatever it looks at."""


class Pace:
    """Gives way to other runs after each stretch, and lets a cancel in. Short work has no checkpoint."""

    def __init__(self) -> None:
        self._left = STRETCH

    async def step(self, characters: int = 0) -> None:
        """Count one step of work, and the characters it went through."""
        self._left -= _STEP + characters
        if self._left <= 0:
            self._left = STRETCH
            await trio.lowlevel.checkpoint()
