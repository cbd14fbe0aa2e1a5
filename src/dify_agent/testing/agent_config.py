"""The fake Dify API's agent configs: reading, and changes while an agent is being built (integrations 9.4, 9.5).

Every agent is there, with an empty config per version. Only the kind ``build_draft`` can be changed.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

from pydantic import ValidationError

from dify_agent.testing.answers import Answer, json_answer
from dify_agent.testing.env_text import changed_env
from dify_agent.testing.files import Act, FakeFiles, StoredFile
from dify_agent.testing.kept import ENTRY_BYTES, KeptState, text_bytes
from dify_agent.testing.record import RecordedRequest
from dify_agent.testing.refusals import Refused, invalid_request, parsed, problems, refusal
from dify_agent.testing.skills import Skill, read_skill
from dify_agent.testing.stub_requests import (
    ConfigDownloadRequest,
    ConfigEnv,
    ConfigNote,
    ConfigPush,
    ConfigVersion,
    ConfigWrite,
    FileRef,
    PushedFile,
)

WRITABLE: Final = "build_draft"

_PATH: Final = re.compile(r"/inner/api/agent-config/([^/]+)/(.+)")
_INSPECT: Final = re.compile(r"skills/([^/]+)/inspect")


@dataclass(frozen=True, slots=True)
class ConfigItem:
    """A file or a skill in a config. Its bytes are among the uploaded files."""

    name: str
    file_id: str
    size: int
    hash: str
    """SHA-256, hexadecimal."""
    mime_type: str
    description: str | None = None
    """Of a skill."""


Items = Mapping[str, ConfigItem]


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """One version of an agent's config."""

    skills: Items = field(default_factory=dict)
    files: Items = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def kept_bytes(self) -> int:
        """Of texts, and of items and variables with their names."""
        items = [*self.skills.values(), *self.files.values()]
        texts = [text for item in items for text in (item.name, item.mime_type, item.description or "")]
        entries = len(items) + len(self.env)
        return entries * ENTRY_BYTES + text_bytes(self.note, *self.env, *self.env.values(), *texts)


@dataclass(frozen=True, slots=True)
class _Place:
    """Which config a request is about."""

    agent_id: str
    version: ConfigVersion

    @property
    def key(self) -> tuple[str, str, str]:
        """Not the kind: a draft that becomes a snapshot keeps its content."""
        return (self.version.tenant_id, self.agent_id, self.version.config_version_id)


WriteT = TypeVar("WriteT", bound=ConfigWrite)


class FakeAgentConfigs:
    """Keeps configs as they are pushed."""

    def __init__(self, state: KeptState, files: FakeFiles) -> None:
        self._state = state
        self._files = files

    def act(self, request: RecordedRequest) -> Act | None:
        """What to do for a request; None for a path that is not of agent configs.

        Raises:
            Refused: a query or a body that does not fit.
        """
        found = _PATH.fullmatch(request.path)
        if found is None:
            return None
        agent_id, action, body = unquote(found[1]), found[2], request.raw_body
        act: Act | None = None
        match request.method, action:
            case "GET", _:
                act = self._read(agent_id, action, request)
            case "POST", "download-request":
                asked = parsed(ConfigDownloadRequest, body)
                act = partial(self._sign_download, _reading(agent_id, asked), asked)
            case "POST", "push":
                act = self._writing(agent_id, parsed(ConfigPush, body), self._push)
            case "PATCH", "env":
                act = self._writing(agent_id, parsed(ConfigEnv, body), self._set_env)
            case "PUT", "note":
                act = self._writing(agent_id, parsed(ConfigNote, body), self._set_note)
        return act

    def _read(self, agent_id: str, action: str, request: RecordedRequest) -> Act | None:
        inspected = _INSPECT.fullmatch(action)
        if inspected is not None:
            return partial(self._inspect, _reading(agent_id, _in_query(request)), unquote(inspected[1]))
        if action == "manifest":
            return partial(self._manifest, _reading(agent_id, _in_query(request)))
        return None

    def _config(self, place: _Place) -> AgentConfig:
        return self._state.get(AgentConfig, place.key) or AgentConfig()

    def _manifest(self, place: _Place) -> Answer:
        return json_answer(self._manifest_of(place, self._config(place)))

    def _manifest_of(self, place: _Place, config: AgentConfig) -> dict[str, Any]:
        version = place.version
        # A plain draft is told to be writable as well, though changes are refused.
        writable = version.config_version_kind in ("draft", WRITABLE)
        return {
            "agent_id": place.agent_id,
            "config_version": {
                "id": version.config_version_id,
                "kind": version.config_version_kind,
                "writable": writable,
            },
            "skills": {"items": [self._shown(place, item) for item in config.skills.values()]},
            "files": {"items": [self._shown(place, item) for item in config.files.values()]},
            "env_keys": list(config.env),
            "note": config.note,
        }

    def _shown(self, place: _Place, item: ConfigItem) -> dict[str, Any]:
        """With members that the Agent Stub has to drop."""
        shown = {"name": item.name, "size": item.size, "hash": item.hash, "mime_type": item.mime_type}
        if item.description is not None:
            shown["description"] = item.description
        missing = self._files.stored(item.file_id, place.version.tenant_id) is None
        return {**shown, "id": item.name, "file_id": item.file_id, "is_missing": missing}

    def _found(self, place: _Place, items: Items, name: str, code: str) -> tuple[ConfigItem, StoredFile]:
        item = items.get(name)
        file = None if item is None else self._files.stored(item.file_id, place.version.tenant_id)
        if item is None or file is None:
            raise refusal(404, code, "the config has nothing of this name")
        return item, file

    def _found_skill(self, place: _Place, name: str) -> tuple[ConfigItem, StoredFile]:
        return self._found(place, self._config(place).skills, name, "config_skill_not_found")

    def _inspect(self, place: _Place, name: str) -> Answer:
        item, file = self._found_skill(place, name)
        skill = read_skill(file.data)
        return json_answer({**self._shown(place, item), "skill_md": skill.skill_md, "paths": skill.paths})

    def _sign_download(self, place: _Place, asked: ConfigDownloadRequest) -> Answer:
        if asked.config.kind == "skill":
            _, file = self._found_skill(place, asked.config.name)
        else:
            _, file = self._found(place, self._config(place).files, asked.config.name, "config_file_not_found")
        return self._files.download_answer(file, self._files.download_uri(file, as_attachment=True))

    def _writing(self, agent_id: str, asked: WriteT, write: Callable[[_Place, WriteT], Answer]) -> Act:
        return partial(self._write, _Place(agent_id, asked), asked, write)

    def _write(self, place: _Place, asked: WriteT, write: Callable[[_Place, WriteT], Answer]) -> Answer:
        if asked.config_version_kind != WRITABLE:
            raise refusal(403, "config_not_writable", f"only a {WRITABLE} can be changed")
        return write(place, asked)

    def _push(self, place: _Place, asked: ConfigPush) -> Answer:
        """All of it or nothing: what can be refused is looked at before anything is stored."""
        config = self._config(place)
        pushed = replace(
            config,
            files=_changed(config.files, asked.files, partial(self._file_item, place)),
            skills=_changed(config.skills, asked.skills, partial(self._skill_item, place)),
            env=config.env if asked.env_text is None else changed_env(config.env, asked.env_text),
            note=config.note if asked.note is None else asked.note,
        )
        self._state.put(place.key, pushed)
        return json_answer(self._manifest_of(place, pushed))

    def _set_env(self, place: _Place, asked: ConfigEnv) -> Answer:
        config = self._config(place)
        env = changed_env(config.env, asked.env_text)
        self._state.put(place.key, replace(config, env=env))
        return json_answer({"env_keys": list(env)})

    def _set_note(self, place: _Place, asked: ConfigNote) -> Answer:
        self._state.put(place.key, replace(self._config(place), note=asked.note))
        return json_answer({"note": asked.note})

    def _source(self, place: _Place, ref: FileRef) -> StoredFile:
        file = self._files.stored(ref.id, place.version.tenant_id)
        if file is None:
            raise refusal(404, "source_not_found", "there is no such uploaded file")
        return file

    def _file_item(self, place: _Place, name: str, ref: FileRef) -> ConfigItem:
        return _item(name, self._source(place, ref))

    def _skill_item(self, place: _Place, name: str, ref: FileRef) -> ConfigItem:
        if ref.kind != "tool_file":
            raise refusal(400, "invalid_skill_file_ref", "a skill is a tool_file")
        file = self._source(place, ref)
        skill: Skill = read_skill(file.data)
        return replace(_item(name, file), description=skill.description)


def _item(name: str, file: StoredFile) -> ConfigItem:
    return ConfigItem(name, file.id, len(file.data), hashlib.sha256(file.data).hexdigest(), file.mime_type)


def _changed(items: Items, pushed: Iterable[PushedFile], make: Callable[[str, FileRef], ConfigItem]) -> Items:
    """``items`` with what was pushed; without a reference a name goes."""
    changed = dict(items)
    for each in pushed:
        if each.file_ref is None:
            changed.pop(each.name, None)
        else:
            changed[each.name] = make(each.name, each.file_ref)
    return changed


def _in_query(request: RecordedRequest) -> ConfigVersion:
    try:
        return ConfigVersion.model_validate(dict(parse_qsl(request.query, keep_blank_values=True)))
    except ValidationError as invalid:
        raise invalid_request(problems(invalid)) from None


def _reading(agent_id: str, version: ConfigVersion) -> _Place:
    if version.config_version_kind == WRITABLE and version.user_id is None:
        raise _missing_user()
    return _Place(agent_id, version)


def _missing_user() -> Refused:
    return refusal(400, "missing_user_id", f"a {WRITABLE} is read on behalf of a user")
