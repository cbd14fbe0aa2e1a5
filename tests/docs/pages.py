"""The repository's documents, taken apart: fences, tables, links, headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Fence:
    """A fenced block."""

    language: str
    text: str


def name_of(page: Path) -> str:
    """The page's path inside the repository."""
    return page.relative_to(ROOT).as_posix()


def fences(page: Path, *languages: str) -> list[Fence]:
    """The page's fenced blocks in these languages, in order."""
    return [Fence(*found) for found in _FENCE.findall(page.read_text()) if found[0] in languages]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Targets of the page's links."""
    return _LINK.findall(prose(page))


def code_spans(page: Path) -> list[str]:
    """What the page writes in backquotes."""
    return _CODE.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The page's headings as the fragments that lead to them."""
    texts = (heading.lower().replace("`", "") for heading in _HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def table_under(page: Path, heading: str) -> Iterator[list[str]]:
    """Cells of each row of the first table under a heading, without the head."""
    after = prose(page).split(f"# {heading}\n", 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert rows is not None, f"no table under {heading!r}"
    for line in rows[0].splitlines()[2:]:
        yield [cell.strip() for cell in re.split(r" \|(?= )", line.strip("|"))]
