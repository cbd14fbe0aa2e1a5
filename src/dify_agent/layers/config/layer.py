"""The layer behind `dify.config`."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

from agenton.layers import LayerDeps, PlainLayer
from dify_agent.layers.config import DIFY_CONFIG_LAYER_TYPE_ID, DifyConfigLayerConfig, DifyConfigRuntimeState
from dify_agent.layers.config.help import cli_help
from dify_agent.layers.config.prompts import config_prompt, loaded_prompt
from dify_agent.layers.config.pulls import FILES, SKILLS, pull
from dify_agent.layers.sandbox import SandboxLayer

_NOT_SHOWN: Final = {"mentioned_skill_names", "mentioned_file_names"}


class DifyConfigDeps(LayerDeps):
    """Where the skills and files go."""

    shell: SandboxLayer[Any, Any, Any, Any]


class DifyConfigLayer(PlainLayer[DifyConfigDeps, DifyConfigLayerConfig, DifyConfigRuntimeState]):
    """Tells the model what the agent has been given, and pulls into the sandbox what its prompts mention.

    All of it happens in the first run of a session. Later runs say the same from the session's state, whatever their
    config says.
    """

    type_id: ClassVar[str | None] = DIFY_CONFIG_LAYER_TYPE_ID

    @classmethod
    def from_config(cls, config: DifyConfigLayerConfig) -> Self:
        """Build the layer; the provider hands it its ``config``."""
        return cls()

    async def on_context_create(self) -> None:
        """Pull the mentioned skills, then the mentioned files, and fill the state.

        Raises:
            ConfigPullError: one of them is not there; the entry fails, and the state stays as it was.
        """
        config = self.config
        version = config.config_version
        skills = await pull(self.deps.shell, SKILLS, config.mentioned_skill_names)
        files = await pull(self.deps.shell, FILES, config.mentioned_file_names)
        self.runtime_state = DifyConfigRuntimeState(
            pulled_skill_outputs=skills,
            pulled_file_outputs=files,
            config_context_json=config.model_dump_json(exclude=_NOT_SHOWN, exclude_none=True),
            config_cli_help=cli_help(writable=version is not None and version.writable),
        )

    @property
    def prefix_prompts(self) -> Sequence[str]:
        """What was pulled; blank, and so left out, when nothing was."""
        return [loaded_prompt(self.runtime_state)]

    @property
    def suffix_prompts(self) -> Sequence[str]:
        """The config, what becomes of changes, and the commands."""
        return [config_prompt(self.runtime_state)]
