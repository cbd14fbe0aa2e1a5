"""README.md, "Two replicas": what is pasted there does what it says."""

import json
import shutil
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, fences
from tests.docs.shell import run_commands

from dify_agent.protocol.schemas import RUN_EVENT_ADAPTER

STORE_PORT = "6390"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl; apt-get install curl && make test")
def test_a_cancel_at_the_other_replica_ends_the_run(tmp_path: Path) -> None:
    (block,) = [fence.text for fence in fences(ROOT / "README.md", "bash") if STORE_PORT in fence.text]
    printed = run_commands(block, tmp_path, ports=[STORE_PORT, "5051", "5052"])
    assert '{"status":"ready"}' * 2 in printed
    events = [line.removeprefix("data: ") for line in printed.splitlines() if line.startswith("data: ")]
    last = RUN_EVENT_ADAPTER.validate_json(events[-1])
    assert (last.type, last.data.reason) == ("run_cancelled", "user")
    assert json.loads(printed.splitlines()[-1])["status"] == "cancelled"
    for log in ("one.log", "two.log"):
        assert json.loads((tmp_path / log).read_text().splitlines()[-1])["event"] == "stopped"
