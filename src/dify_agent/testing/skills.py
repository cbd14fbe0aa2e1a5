"""A skill's zip archive, read as far as the fake Dify API tells of it."""

import zlib
from io import BytesIO
from typing import Final, NamedTuple
from zipfile import BadZipFile, ZipFile

from dify_agent.testing.refusals import refusal

MANIFEST: Final = "SKILL.md"
MAX_MANIFEST_BYTES: Final = 1024 * 1024
MAX_NAMES: Final = 1000


class Skill(NamedTuple):
    """What an archive holds."""

    skill_md: str
    paths: list[str]

    @property
    def description(self) -> str:
        """The member ``description`` of the manifest's front matter; empty where there is none."""
        head, *lines = self.skill_md.splitlines() or [""]
        if head.strip() == "---":
            for line in lines:
                if line.strip() == "---":
                    break
                if line.startswith("description:"):
                    return line.removeprefix("description:").strip().strip("\"'")
        return ""


def read_skill(archive: bytes) -> Skill:
    """Look into an archive. The manifest is at its root.

    Raises:
        Refused: 500, it is no zip archive, or has no readable manifest of at most 1 MiB.
    """
    try:
        with ZipFile(BytesIO(archive)) as opened:
            with opened.open(MANIFEST) as manifest:
                text = manifest.read(MAX_MANIFEST_BYTES + 1)
            names = opened.namelist()
    except (BadZipFile, zlib.error, KeyError, ValueError, RuntimeError, EOFError, OSError):
        # RuntimeError: encrypted, or compressed in a way that this Python does not know.
        raise refusal(500, "skill_archive_invalid", f"the skill is no zip archive with a {MANIFEST}") from None
    if len(text) > MAX_MANIFEST_BYTES:
        raise refusal(500, "skill_archive_invalid", f"{MANIFEST} has more than {MAX_MANIFEST_BYTES} bytes")
    return Skill(text.decode(errors="replace"), names[:MAX_NAMES])
