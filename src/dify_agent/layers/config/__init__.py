"""`dify.config`: an agent's skills, files, variables and note (specification: layers 2.15, integrations 7)."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from agenton.layers import LayerConfig

__all__ = [
    "DIFY_CONFIG_LAYER_TYPE_ID",
    "DifyConfigFileConfig",
    "DifyConfigLayerConfig",
    "DifyConfigRuntimeState",
    "DifyConfigSkillConfig",
    "DifyConfigVersionConfig",
    "DifyConfigVersionKind",
]

DIFY_CONFIG_LAYER_TYPE_ID: Final = "dify.config"

DifyConfigVersionKind = Literal["snapshot", "draft", "build_draft"]

_Size = Annotated[int, Field(ge=0)]


class _ConfigPart(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DifyConfigVersionConfig(_ConfigPart):
    """Which version of the agent's config the run sees, and whether it may change it."""

    id: str | None = None
    kind: DifyConfigVersionKind = "snapshot"
    writable: bool = False


class DifyConfigSkillConfig(_ConfigPart):
    """One skill, a folder with a ``SKILL.md``. ``size`` is bytes of its archive."""

    name: str
    description: str = ""
    size: _Size | None = None
    mime_type: str | None = None


class DifyConfigFileConfig(_ConfigPart):
    """One file. ``size`` is bytes."""

    name: str
    size: _Size | None = None
    mime_type: str | None = None


class DifyConfigLayerConfig(LayerConfig):
    """What the agent has been given beside its prompts."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str | None = None
    config_version: DifyConfigVersionConfig | None = None
    skills: list[DifyConfigSkillConfig] = Field(default_factory=list)
    files: list[DifyConfigFileConfig] = Field(default_factory=list)
    env_keys: list[str] = Field(default_factory=list)
    """Names of variables; their values are in the sandbox."""
    note: str = ""
    mentioned_skill_names: list[str] = Field(default_factory=list)
    """Skills to load before the first model request."""
    mentioned_file_names: list[str] = Field(default_factory=list)
    """Files to load before the first model request."""


class DifyConfigRuntimeState(BaseModel):
    """What the first run of a session pulled; later runs use it as it is."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    pulled_skill_outputs: dict[str, str] = Field(default_factory=dict)
    """By name of the skill: what its command printed."""
    pulled_file_outputs: dict[str, str] = Field(default_factory=dict)
    """By name of the file: what its command printed."""
    config_context_json: str = ""
    """The config as the model reads it."""
    config_cli_help: dict[str, str] = Field(default_factory=dict)
    """By command of ``dify-agent``: its help text."""
    push_spec_semantics: str = ""
    """Always empty, as the next two: kept so that older snapshots can be read."""
    push_spec_json_schema: str = ""
    push_spec_example: str = ""
