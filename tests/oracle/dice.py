"""The choices of one random scenario."""

import random
from typing import Any

from tests.oracle.material import ANSWERS


class Dice:
    """The choices of one scenario."""

    def __init__(self, seed: int, number: int) -> None:
        self._random = random.Random(f"{seed}-{number}")
        self._ids = 0
        self.session = number % 2 == 1
        self.contract = False
        """Whether ``final_output`` takes a report instead of a number."""
        self.asked: list[list[str]] = []
        """Ids of the external calls of the run before, by turn."""

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def between(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def new_id(self) -> str | None:
        """Mostly a fresh id, sometimes an old one again, sometimes none (the library makes one up)."""
        if self._ids and self.chance(0.04):
            return f"id{self.between(1, self._ids)}"
        if self.chance(0.08):
            return None
        self._ids += 1
        return f"id{self._ids}"

    def some_ids(self) -> list[str]:
        """Ids to bring results for: mostly of the turn that probably ended the run before."""
        if any(self.asked) and self.chance(0.8):
            return next(ids for ids in self.asked if ids)
        return [f"id{self.between(1, self._ids + 1)}" for _ in range(self.between(0, 2))]

    def keeps_pending(self, start: dict[str, Any]) -> bool:
        """Whether a session's run that starts so is probably refused, so that the same calls stay pending."""
        pending = next((ids for ids in self.asked if ids), [])
        return self.session and bool(pending) and set(start.get("results", ())) != set(pending)

    def some_answers(self) -> dict[str, Any]:
        """Results for a session's run: mostly for what is probably pending, sometimes for less, more or others."""
        ids = next((ids for ids in self.asked if ids), [])
        roll = self.between(1, 20)
        if roll <= 2:
            ids = ids[1:]
        elif roll <= 4:
            ids = [*ids, f"id{self.between(1, self._ids + 1)}"]
        elif roll == 5:
            ids = self.some_ids()
        return {id_: self.pick(*ANSWERS) for id_ in ids}
