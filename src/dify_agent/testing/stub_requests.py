"""What the Dify API takes from the Agent Stub (integrations 9.3, 9.4), judged as in `dify_agent.testing.requests`."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dify_agent.testing.references import record_of
from dify_agent.testing.requests import InvokeFrom, NonBlank, UserFrom

MediaType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.+-]+/[A-Za-z0-9_.+-]+$", max_length=255)]
"""Without parameters. It becomes a header of the download."""
ConfigKind = Literal["snapshot", "draft", "build_draft"]


def _plain_name(name: str) -> str:
    if name in (".", "..") or name != name.strip() or any(char in "/\\" or char < " " for char in name):
        raise ValueError("is no plain name")
    return name


PlainName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_plain_name)]
SkillName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


Id = Annotated[NonBlank, Field(max_length=255)]
"""What the fakes keep things under, or sign. Dify's own are UUIDs."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class UploadRequest(_Strict):
    """Body of the request for a URL to upload to."""

    tenant_id: Id
    user_id: Id
    user_from: UserFrom | None = None
    filename: PlainName
    mimetype: MediaType
    max_size: Annotated[int, Field(strict=True, ge=0)]
    """Bytes. 0 allows empty files only."""
    conversation_id: Annotated[str, Field(max_length=255)] | None = None


class StubFile(_Strict):
    """A file: by its URL or by its reference. Members that do not apply are left out, not null."""

    transfer_method: Literal["local_file", "tool_file", "datasource_file", "remote_url"]
    reference: NonBlank = ""
    url: NonBlank = ""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.transfer_method == "remote_url":
            if self.reference or urlsplit(self.url).scheme not in ("http", "https"):
                raise ValueError("remote_url takes an HTTP URL and no reference")
        elif self.url:
            raise ValueError(f"{self.transfer_method} takes a reference and no url")
        else:
            record_of(self.reference)
        return self


class FileDownloadRequest(_Strict):
    """Body of the request for a URL to download a file from."""

    tenant_id: Id
    user_id: Id
    user_from: UserFrom
    invoke_from: InvokeFrom
    file: StubFile
    for_frontend: bool = True


class ConfigVersion(_Strict):
    """Which version of an agent's config, and on whose behalf. Also the query of a reading."""

    tenant_id: Id
    config_version_id: Id
    config_version_kind: ConfigKind
    user_id: Id | None = None


class ConfigFile(_Strict):
    """A file or a skill of a config."""

    kind: Literal["file", "skill"]
    name: NonBlank


class ConfigDownloadRequest(ConfigVersion):
    """Body of the request for a URL to download from a config."""

    config: ConfigFile


class ConfigWrite(ConfigVersion):
    """What every body of a change has."""

    user_id: Id


class FileRef(_Strict):
    """An uploaded file."""

    kind: Literal["upload_file", "tool_file"]
    id: Id


class PushedFile(_Strict):
    """A file for a config; without a reference the file of this name is deleted."""

    name: PlainName
    file_ref: FileRef | None = None


class PushedSkill(PushedFile):
    """A skill for a config, as a zip archive."""

    name: SkillName


class ConfigPush(ConfigWrite):
    """Body of a push. What is left out stays as it is."""

    files: list[PushedFile] = Field(default_factory=list)
    skills: list[PushedSkill] = Field(default_factory=list)
    env_text: str | None = None
    note: str | None = None


class ConfigEnv(ConfigWrite):
    """Body of a change of the environment."""

    env_text: str


class ConfigNote(ConfigWrite):
    """Body of a change of the note."""

    note: str
