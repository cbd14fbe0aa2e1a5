"""The two system prompts of `dify.config`, from what the runtime state holds."""

from collections.abc import Mapping
from typing import Final

from dify_agent.layers.config import DifyConfigRuntimeState
from dify_agent.layers.config.help import MUTATION_HELP
from dify_agent.layers.config.pulls import FILES, SKILLS, PullKind

_LOADED: Final = (
    "These skills and files of yours are in the sandbox already, so they need not be pulled again. For each, the "
    "command that pulls it and what it prints. A skill prints its folder and then its SKILL.md, which is to be "
    "followed when you use the skill; other files that it names are in that folder."
)
_MANIFEST: Final = (
    "Your config. Skills and files that are listed in it can be pulled into the sandbox when they are needed; "
    "env_keys are names of variables that the commands in the shell have, and their values are not to be shown."
)
_READ_ONLY: Final = (
    "The config cannot be changed in this run. What you change in the shell, pulled skills and files and the note "
    "included, stays in the sandbox and is not saved in the config."
)
_WRITABLE: Final = (
    "What you change in the shell, pulled skills and files and the note included, is not saved in the config by "
    "itself: `push` and `delete` commands save it. They succeed only where config_version is writable and of the kind "
    "build_draft; anywhere else they are refused with config_not_writable. Change what the user has asked for, and "
    "nothing else."
)
_COMMANDS: Final = "The command dify-agent, which runs in the shell:"
_DOWNLOADS: Final = (
    "A path in the sandbox means nothing to users. To hand out a file, upload it and give them the "
    "public_download_url that is printed."
)


def loaded_prompt(state: DifyConfigRuntimeState) -> str:
    """What was pulled, each with its command; empty when nothing was."""
    parts = [*_outputs(SKILLS, state.pulled_skill_outputs), *_outputs(FILES, state.pulled_file_outputs)]
    return "\n\n".join([_LOADED, *parts]) if parts else ""


def config_prompt(state: DifyConfigRuntimeState) -> str:
    """The config, what becomes of changes, and the commands; empty for a state that no run has filled."""
    if not state.config_context_json:
        return ""
    # Not the layer's config: the texts have to fit the commands that are listed, also when a run resumes.
    writable = not MUTATION_HELP.keys().isdisjoint(state.config_cli_help)
    return "\n\n".join(
        [
            f"{_MANIFEST}\n{state.config_context_json}",
            _WRITABLE if writable else _READ_ONLY,
            _COMMANDS,
            *state.config_cli_help.values(),
            _DOWNLOADS,
        ]
    )


def _outputs(kind: PullKind, outputs: Mapping[str, str]) -> list[str]:
    return [f"$ {kind.shown(name)}\n{output.rstrip()}" for name, output in outputs.items()]
