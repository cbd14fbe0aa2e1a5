"""`make demo` as README.md describes it: what it prints can be read in a pipe, its log is the one of every command."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 60


@pytest.mark.slow
def test_the_demo_prints_whole_lines_and_logs_from_level_info(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFY_AGENT_")}
    done = subprocess.run(
        [sys.executable, "-m", "dify_agent", "demo"],
        env=environment | {"COLUMNS": "80"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, accepted, second, *events, output = done.stdout.splitlines()
    assert re.fullmatch(r"POST http://127\.0\.0\.1:\d+/runs", first)
    run_id = json.loads(accepted.removeprefix("202 "))["run_id"]
    assert second.endswith(f"/runs/{run_id}/events/sse")
    for line in events:
        assert re.fullmatch(r" *\d+-\d+  \w+ +(\w+ +)?'[^']*'", line), line
    assert output == f"output: {'clear sky ' * 12}"
    levels = {json.loads(line)["level"] for line in done.stderr.splitlines()}
    assert levels == {"info"}
