"""What other layers may ask of the layer that runs commands in the sandbox.

A dependency between layers is checked by class, so this is a base class and not a protocol: the shell layer derives
from `SandboxLayer`, and a layer that needs it declares ``shell: SandboxLayer[Any, Any, Any, Any] | None``. Neither has
to import the other.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal

from pydantic import JsonValue

from agenton.layers import PydanticAILayer
from agenton.layers.base import ConfigT, DepsT, RuntimeStateT
from agenton.layers.types import AgentDepsT
from dify_agent.errors import DifyAgentError


class SandboxFileError(DifyAgentError, ValueError):
    """A path in the sandbox could not be made a file; the text says why, and the model may read it."""


class AgentStubUnavailableError(DifyAgentError, RuntimeError):
    """A script needs the Agent Stub's variables, which this server or this run has not got."""

    def __init__(self) -> None:
        super().__init__("Agent Stub environment injection is not available for this shell session.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """How a script ended, and what it printed."""

    exit_code: int | None
    """None when it did not end by itself."""
    stdout: str
    """All that it printed, or what it had printed when it was stopped. Bytes that are no UTF-8 are U+FFFD."""
    incomplete: Literal["output_limit", "timeout"] | None = None
    """Why it was stopped; None when it ended by itself, and ``stdout`` is everything."""
    stderr_tail: str = ""
    """The last 2 KiB or so, at least 1 KiB where more was cut off, for error texts that callers see: the Agent Stub's
    token and what matches the redact patterns are replaced before it is cut. Empty where the sandbox keeps stderr to
    itself."""


class SandboxLayer(
    PydanticAILayer[DepsT, AgentDepsT, ConfigT, RuntimeStateT], Generic[DepsT, AgentDepsT, ConfigT, RuntimeStateT]
):
    """Family of layers that have a sandbox."""

    @abstractmethod
    async def run_script(self, script: str, *, timeout_seconds: float, max_stdout_bytes: int) -> ScriptResult:
        """Run a ``sh`` script in the sandbox's workspace to its end, apart from the model's jobs.

        It runs with the environment of the model's commands and always with the Agent Stub's variables (URL and a
        fresh token), without a terminal, its stdin empty, its stdout apart from its stderr.

        The sandbox stops it when ``timeout_seconds`` have passed or it has printed more than ``max_stdout_bytes``,
        which is a result and no error. Nothing of it is left running, whether it ended, was stopped or was cancelled;
        stopping takes a bounded time more.

        Raises:
            AgentStubUnavailableError: there are no Agent Stub variables to give; nothing was run.

        What else keeps the sandbox from running it, a lost binding say, is raised as it is.
        """

    @abstractmethod
    async def upload_file(self, path: str) -> Mapping[str, JsonValue]:
        """Run ``dify-agent file upload`` in the sandbox, at most 60 s, with the Agent Stub's variables set.

        Returns:
            the printed mapping, ``{"transfer_method": "tool_file", "reference": …}``; further members are ignored.

        Raises:
            SandboxFileError: there is no such file, the command failed or took too long, its output is no such
                mapping, or the server has no Agent Stub. What ends the run, a lost binding say, is raised as it is.
        """
