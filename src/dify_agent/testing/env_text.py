"""The text by which an agent config's environment is changed (integrations 9.5)."""

from collections.abc import Mapping

from dify_agent.testing.refusals import refusal


def changed_env(env: Mapping[str, str], text: str) -> dict[str, str]:
    """``env`` after the lines of ``text``: ``KEY=value`` sets, ``KEY=`` deletes, blank and ``#`` lines say nothing.

    Raises:
        Refused: 400, a line is none of these.
    """
    changed = dict(env)
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.removeprefix("export ").partition("=")
        key = key.strip()
        if not equals or not key.isidentifier() or not key.isascii():
            raise refusal(400, "invalid_env_file", f"line {number} is not KEY=value")
        if value:
            changed[key] = value
        else:
            changed.pop(key, None)
    return changed
