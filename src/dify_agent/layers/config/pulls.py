"""Pulling what an agent's prompts mention into the sandbox, and reading what was pulled (specification: integrations
7). Each kind takes one job of the shell layer."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pydantic_core import from_json

from dify_agent.errors import DifyAgentError
from dify_agent.layers.sandbox import SandboxLayer, ScriptResult

PULL_SECONDS: Final = 60.0
"""How long one job may take."""
MAX_PULL_BYTES: Final = 1024 * 1024
"""How much one job may print."""
MAX_NAME_BYTES: Final = 255
"""Of a name, in UTF-8: a file of the sandbox has it, and no usual file system takes a longer one."""
MAX_COMMAND_BYTES: Final = 64 * 1024
"""Of a job's command line. Linux takes 128 KiB as one argument, which a script is for the shell that runs it."""
MAX_ERROR_NAME: Final = 80
"""Characters of a name in an error's text."""
MAX_ERROR_COMMAND: Final = 240
MAX_ERROR_DETAIL: Final = 600
"""Characters of what a command said on stderr."""
MAX_SEARCHED: Final = 2048
"""Of them, the last that are looked through for secrets; the patterns are not linear."""
MIN_CUT_BYTES: Final = 1024
"""From here on a tail may have been cut by the sandbox, which keeps 2 KiB "or so" and does not say."""

_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f/\\]")
_TOKEN: Final = re.compile(r"eyJ[\w-]+(?:\.[\w-]*){2,4}")
_QUERY: Final = re.compile(r"(https?://[^\s?\"'<>]+)\?[^\s\"'<>]+")
_REST_OF_QUERY: Final = re.compile(r"([?&])[\w.%~-]+=[^\s\"'<>]+")
"""What is left of a signed URL whose beginning was cut off."""

_Item: TypeAlias = dict[str, Any]


class ConfigPullError(DifyAgentError, RuntimeError):
    """A mentioned skill or file is not in the sandbox: the run fails."""


@dataclass(frozen=True, slots=True)
class PullKind:
    """Skills, or files."""

    noun: str
    command: tuple[str, ...]
    """The words before the names."""
    read: Callable[[_Item], str]
    """What the command prints of an item without ``--json``. Raises ValueError, saying what the item lacks."""

    def shown(self, name: str) -> str:
        """The command that pulls ``name``, as a model would type it."""
        return shlex.join((*self.command, name))


def _read_skill(item: _Item) -> str:
    directory, text = item.get("directory_path"), item.get("skill_md")
    if not isinstance(directory, str) or not directory.strip():
        raise ValueError("without a directory_path")
    if not isinstance(text, str):
        raise ValueError("without the text of its SKILL.md (skill_md)")
    return f"{directory}\n{text}"


def _read_file(item: _Item) -> str:
    path = item.get("path")
    if not isinstance(path, str) or not path.strip():
        raise ValueError("without a path")
    return path


SKILLS: Final = PullKind("skill", ("dify-agent", "config", "skills", "pull"), _read_skill)
FILES: Final = PullKind("file", ("dify-agent", "config", "files", "pull"), _read_file)


async def pull(sandbox: SandboxLayer[Any, Any, Any, Any], kind: PullKind, mentioned: Sequence[str]) -> dict[str, str]:
    """Pull what is mentioned, each name once; no name is no job.

    Returns:
        by name: what the command prints of it.

    Raises:
        ConfigPullError: a name that no asset can have, a command that failed, took too long or printed too much, or
            a result that lacks something. The text names kind, names and command.

    What keeps the sandbox from running the command is raised as it is.
    """
    names = list(dict.fromkeys(mentioned))
    if not names:
        return {}
    for name in names:
        if problem := _name_problem(name):
            raise ConfigPullError(f"The {kind.noun} {_quoted(name)} cannot be pulled: {problem}.")
    command = shlex.join((*kind.command, "--json", *names))
    if len(command.encode()) > MAX_COMMAND_BYTES:
        raise ConfigPullError(
            f"{_subject(kind, names)}: the command with all the names has more than {MAX_COMMAND_BYTES} bytes. "
            f"Mention fewer {kind.noun}s."
        )
    result = await sandbox.run_script(
        f"set -eu\n{command}\n", timeout_seconds=PULL_SECONDS, max_stdout_bytes=MAX_PULL_BYTES
    )
    try:
        items = _items(result)
        return {name: _read(kind, items, name) for name in names}
    except ValueError as error:
        raise ConfigPullError(f"{_subject(kind, names)}: `{_cut(command, MAX_ERROR_COMMAND)}` {error}") from None


def _name_problem(name: str) -> str | None:
    """Why this is the name of no asset: the Agent Stub's rules (integrations 9.3), and what the command line needs."""
    if not name.strip():
        return "it has no name"
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        return f"a name has at most {MAX_NAME_BYTES} bytes"
    if name.startswith("-"):
        return "a name that begins with '-' would be an option of the command"
    if name in (".", "..") or _UNSAFE.search(name):
        return "a name is neither '.' nor '..' and has no '/', no '\\' and no control character"
    return None


def _items(result: ScriptResult) -> Mapping[str, _Item]:
    """The items of the output by name; raises ValueError, saying what the command did wrong."""
    if result.incomplete == "timeout":
        raise ValueError(f"did not end within {PULL_SECONDS:g} seconds{_said(result)}")
    if result.incomplete is not None:
        raise ValueError(f"printed more than {MAX_PULL_BYTES} bytes")
    if result.exit_code != 0:
        status = "without a status" if result.exit_code is None else f"with status {result.exit_code}"
        raise ValueError(f"ended {status}{_said(result)}")
    if not result.stdout.strip():
        raise ValueError("printed nothing")
    try:
        value = from_json(result.stdout)
    except ValueError as error:
        raise ValueError(f"printed no JSON ({error})") from None
    items = value.get("items") if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise ValueError("printed JSON that is no object with a list 'items'")
    return _by_name(items)


def _by_name(items: Iterable[Any]) -> Mapping[str, _Item]:
    named = (item for item in items if isinstance(item, dict) and isinstance(item.get("name"), str))
    return {item["name"]: item for item in named}


def _read(kind: PullKind, items: Mapping[str, _Item], name: str) -> str:
    item = items.get(name)
    if item is None:
        raise ValueError(f"printed no item for the {kind.noun} {_quoted(name)}")
    try:
        return kind.read(item)
    except ValueError as error:
        raise ValueError(f"printed the {kind.noun} {_quoted(name)} {error}") from None


def _subject(kind: PullKind, names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"The {kind.noun} {_quoted(names[0])}{more} could not be pulled into the sandbox"


def _said(result: ScriptResult) -> str:
    """The end of stderr, on one line. The sandbox has replaced what it knows to be secret; tokens and signed URLs are
    taken out here as well, because callers read the text."""
    tail = result.stderr_tail[-MAX_SEARCHED:]
    words = tail.split()
    if len(tail.encode(errors="replace")) >= MIN_CUT_BYTES:
        # The first word may be the rest of a token, which the patterns do not know.
        words = words[1:]
    text = _QUERY.sub(r"\1?***", _TOKEN.sub("***", " ".join(words)))
    text = _REST_OF_QUERY.sub(r"\1***", text)
    return f": {text if len(text) <= MAX_ERROR_DETAIL else '…' + text[-MAX_ERROR_DETAIL:]}" if text else ""


def _quoted(name: str) -> str:
    return repr(_cut(name, MAX_ERROR_NAME))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
