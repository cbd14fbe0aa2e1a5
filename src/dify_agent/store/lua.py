"""The Lua scripts: one file per transition, known to the server by digest."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Self


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and its SHA-1, by which EVALSHA calls it."""

    source: bytes
    sha: bytes

    @classmethod
    def load(cls, name: str) -> Self:
        """Read ``scripts/<name>.lua`` from the installed package, behind the common prelude."""
        folder = files("dify_agent.store") / "scripts"
        source = (folder / "prelude.lua").read_bytes() + b"\n" + (folder / f"{name}.lua").read_bytes()
        return cls(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


CREATE = Script.load("create")
APPEND = Script.load("append")
FINALIZE = Script.load("finalize")
FINALIZE_CANCEL = Script.load("finalize_cancel")
REQUEST_CANCEL = Script.load("request_cancel")
READ = Script.load("read")
TOUCH = Script.load("touch")
LOOK = Script.load("look")
VERDICT = Script.load("verdict")
CLAIM = Script.load("claim")
RELEASE_CLAIM = Script.load("release_claim")
