"""Plays ``dify-agent config skills|files pull --json NAME…`` in the sandbox of `tests.server.sandboxes`.

A script of its own. It notes down each call in ``calls``; ``ACME_SKILLS`` and ``ACME_FILES`` say what goes wrong, if
anything.
"""

import json
import os
import signal
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    home = Path(os.environ["ACME_SANDBOX"])
    stub = {name: value for name, value in os.environ.items() if name.startswith("DIFY_AGENT_")}
    with (home / "calls").open("a") as calls:
        calls.write(json.dumps({"arguments": arguments, "pid": os.getpid(), "stub": stub}) + "\n")
    assert arguments[0] == "config"
    assert arguments[2:4] == ["pull", "--json"]
    kind, names = arguments[1], arguments[4:]
    assert not any(name.startswith("-") for name in names), "an option that the command does not have"
    fault = os.environ.get(f"ACME_{kind.upper()}", "")
    if fault == "fail":
        sys.exit(f"dify-agent: {stub['DIFY_AGENT_STUB_AUTH_JWE']}: {kind} are not for you")
    if fault == "hang":
        signal.pause()
    if fault == "huge":
        sys.stdout.write("x" * (3 << 20))
    elif fault != "silent":
        names = {"missing": [], "unasked": ["another"]}.get(fault, names)
        items = [_item(kind, name) for name in names]
        print("oops" if fault == "garbage" else json.dumps({"items": items or None}))


def _item(kind: str, name: str) -> dict[str, str]:
    folder = f"/sandbox/.dify_conf/{kind}/{name}"
    if kind == "files":
        return {"name": name, "path": folder}
    return {"name": name, "archive_path": f"{folder}.zip", "directory_path": folder, "skill_md": f"# {name}\nDo it."}


if __name__ == "__main__":
    main(sys.argv[1:])
