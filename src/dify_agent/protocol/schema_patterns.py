"""Patterns of a JSON Schema: which are taken, and what matching them costs."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dify_agent.protocol.schema_walk import Schema, subschemas

PATTERN_CHARACTERS: Final = 10_000
"""Of all different patterns together: reading them takes up to 2.5 µs a character (measured), once for each step of
`_SIZES`."""
REGEX_BYTES: Final = 512 * 1024
"""Size of one compiled pattern."""
TOTAL_REGEX_BYTES: Final = 16 * 1024 * 1024
"""Of all different patterns, each counted as the step of `_SIZES` that it fits in: 3 ms a mebibyte (measured)."""
PATTERN_LIMIT: Final = 250
"""Different patterns: each may come to hold two caches of `CACHE_BYTES`."""
CACHE_BYTES: Final = 256 * 1024
_SIZES: Final = (2 * 1024, 8 * 1024, 32 * 1024, 128 * 1024, REGEX_BYTES)

TOO_MANY: Final = f"the schema has more than {PATTERN_LIMIT} different patterns"
TOO_LONG: Final = f"the patterns of the schema have more than {PATTERN_CHARACTERS} characters together"
TOO_LARGE: Final = f"the patterns of the schema take more than {TOTAL_REGEX_BYTES} bytes compiled"
_BACKTRACKING: Final = re.compile(r"(?:[^\\]|\\.)*?(?:\(\?<?[=!]|\\[1-9k])", re.DOTALL)


def regex_options(size: int = REGEX_BYTES) -> Any:
    """Patterns in linear time only: the engine for look-around backtracks, within a limit for each position of a text,
    so that a text of 80 kB took it 20 s (measured)."""
    import jsonschema_rs

    return jsonschema_rs.RegexOptions(size_limit=size, dfa_size_limit=CACHE_BYTES)


def pattern_costs(document: Schema) -> dict[str, int]:
    """What each pattern of the schema costs per character of a text, in the unit of `schema_cost`.

    Raises:
        ValueError: a pattern is not supported, or a limit is exceeded.
    """
    patterns = _patterns(document)
    if len(patterns) > PATTERN_LIMIT:
        raise ValueError(TOO_MANY)
    if sum(map(len, patterns)) > PATTERN_CHARACTERS:
        raise ValueError(TOO_LONG)
    sizes = {}
    left = TOTAL_REGEX_BYTES
    for pattern in patterns:
        sizes[pattern] = _compiled_size(pattern)
        left -= sizes[pattern]
        if left < 0:
            raise ValueError(TOO_LARGE)
    # Every state may be looked at for every character. The slowest of 900 random patterns took 150 ns for a unit,
    # a usual one takes a hundredth of that (measured).
    return {pattern: 8 + size // 640 for pattern, size in sizes.items()}


def _patterns(document: Schema) -> list[str]:
    found: dict[str, None] = {}
    pending = [document]
    while pending:
        schema = pending.pop()
        found.update(dict.fromkeys(_own_patterns(schema)))
        pending.extend(subschemas(schema))
    return list(found)


def _own_patterns(schema: Schema) -> Iterable[str]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield pattern
    if isinstance(named := schema.get("patternProperties"), Mapping):
        yield from named


def _compiled_size(pattern: str) -> int:
    """The step of `_SIZES` that the compiled pattern fits in."""
    import jsonschema_rs

    for size in _SIZES:
        try:
            jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=regex_options(size))
        except jsonschema_rs.ValidationError:
            continue
        return size
    shown = pattern if len(pattern) <= 100 else f"{pattern[:100]}…"
    if _BACKTRACKING.match(pattern):
        raise ValueError(f"look-around and backreferences in a pattern are not supported: {shown!r}")
    raise ValueError(f"no regular expression, or one that takes more than {REGEX_BYTES} bytes compiled: {shown!r}")
