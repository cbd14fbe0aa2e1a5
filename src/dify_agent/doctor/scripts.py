"""The doctor's scripts. Those that read are called so that the server itself refuses a write."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from dify_agent.store.executor import Call, Command
from dify_agent.store.lua import Script


@dataclass(frozen=True, slots=True)
class ReadOnlyCall(Call):
    """A run of a script that may not write (EVAL_RO, Redis 7)."""

    def by_digest(self) -> Command:
        """As of `Call`."""
        return Command(b"EVALSHA_RO", (self.script.sha, len(self.keys), *self.keys, *self.arguments))

    def by_source(self) -> Command:
        """As of `Call`."""
        return Command(b"EVAL_RO", (self.script.source, len(self.keys), *self.keys, *self.arguments))


def _load(name: str, *, prelude: bool = True) -> Script:
    folder = files("dify_agent.doctor") / "scripts"
    names = ("prelude", name) if prelude else (name,)
    source = b"\n".join((folder / f"{each}.lua").read_bytes() for each in names)
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


LOOK: Final = _load("look")
PAGE: Final = _load("page")
ADOPT: Final = _load("adopt")
DROP_INTENT: Final = _load("drop_intent")
DROP_MEMBER: Final = _load("drop_member", prelude=False)  # its keys are an owner's
REWRITE_RECORD: Final = _load("rewrite_record")
