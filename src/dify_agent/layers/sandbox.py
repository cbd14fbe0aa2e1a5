"""What other layers may ask of the layer that runs commands in the sandbox.

A dependency between layers is checked by class, so this is a base class and not a protocol: the shell layer derives
from `SandboxLayer`, and a layer that needs it declares ``shell: SandboxLayer[Any, Any, Any, Any] | None``. Neither has
to import the other.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Generic

from pydantic import JsonValue

from agenton.layers import PydanticAILayer
from agenton.layers.base import ConfigT, DepsT, RuntimeStateT
from agenton.layers.types import AgentDepsT
from dify_agent.errors import DifyAgentError


class SandboxFileError(DifyAgentError, ValueError):
    """A path in the sandbox could not be made a file; the text says why, and the model may read it."""


class SandboxLayer(
    PydanticAILayer[DepsT, AgentDepsT, ConfigT, RuntimeStateT], Generic[DepsT, AgentDepsT, ConfigT, RuntimeStateT]
):
    """Family of layers that have a sandbox."""

    @abstractmethod
    async def upload_file(self, path: str) -> Mapping[str, JsonValue]:
        """Run ``dify-agent file upload`` in the sandbox, at most 60 s, with the Agent Stub's variables set.

        Returns:
            the printed mapping, ``{"transfer_method": "tool_file", "reference": …}``; further members are ignored.

        Raises:
            SandboxFileError: there is no such file, the command failed or took too long, its output is no such
                mapping, or the server has no Agent Stub. What ends the run, a lost binding say, is raised as it is.
        """
