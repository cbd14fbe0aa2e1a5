"""Patches of the source of the modules under test, put in when a process loads them."""

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LOOP = "dify_agent.loop"


@dataclass(frozen=True)
class Patch:
    """A replacement in a module of ``package``; ``old`` occurs exactly once."""

    module: str
    old: str
    new: str
    package: str = LOOP

    @property
    def target(self) -> str:
        """The module's full name."""
        return f"{self.package}.{self.module}"

    @property
    def occurrences(self) -> int:
        """How often the text to replace is found."""
        return _origin(self.target).read_text().count(self.old)


def apply_patches(patches: Iterable[Patch]) -> None:
    """Load the modules that are patched, changed. Call before anything imports them.

    Raises:
        LookupError: the text to replace is not there exactly once.
    """
    patches = tuple(patches)
    for target in dict.fromkeys(patch.target for patch in patches):
        _load(target, [patch for patch in patches if patch.target == target])


def one(module: str, old: str, new: str, package: str = LOOP) -> tuple[Patch, ...]:
    """A mutant of one patch."""
    return (Patch(module, old, new, package),)


def _origin(target: str) -> Path:
    spec = importlib.util.find_spec(target)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def _load(target: str, patches: Iterable[Patch]) -> None:
    origin = _origin(target)
    if target in sys.modules:
        raise LookupError(f"{target} is loaded already")
    source = origin.read_text()
    for patch in patches:
        if source.count(patch.old) != 1:
            raise LookupError(f"{patch.old!r} occurs {source.count(patch.old)} times in {target}")
        source = source.replace(patch.old, patch.new)
    spec = importlib.util.find_spec(target)
    assert spec is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[target] = loaded
    exec(compile(source, str(origin), "exec"), loaded.__dict__)  # the patched text of our own module
