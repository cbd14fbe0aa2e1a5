"""What the documents say is true: commands work, JSON is the protocol's, tables are the code's, links resolve."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs import settings_table
from tests.docs.pages import PAGES, ROOT, anchors, code_spans, fences, links, name_of, table_under
from tests.oracle.compare import DIFFERENCES

from dify_agent.cli.doctor import INTERRUPTED, DoctorStatus
from dify_agent.cli.workers import BUDGET
from dify_agent.http.openapi import openapi_document
from dify_agent.main import STOP_SIGNALS, ExitStatus
from dify_agent.metrics import Metrics
from dify_agent.protocol.schemas import RUN_EVENT_ADAPTER, CreateRunRequest, LayerExitSignals, RunEventsResponse
from dify_agent.settings import ServerSettings
from dify_agent.supervisor.measuring import announce_series
from dify_agent.testing import Script

README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
SHUTDOWN = ROOT / "docs" / "shutdown.md"
ADDRESS = "http://127.0.0.1:5050"
START_SECONDS = 30
STOP_SECONDS = 20
COMMAND_SECONDS = 30
WRONG_COMMAND_LINE = 2
"""The command line's own, before anything of the program runs."""
ALIASES = {"DIFY_AGENT_SHELLCTL_ENTRYPOINT", "DIFY_AGENT_SHELLCTL_AUTH_TOKEN"}
STORE_PORT = "6390"
"""Of the block with two replicas, which starts what it needs itself; the others ask the server of `make dev`."""
BASH = [fence.text for fence in fences(README, "bash") if STORE_PORT not in fence.text]
JSON_BLOCKS = [
    pytest.param(fence.text, id=f"{name_of(page)}-{number}")
    for page in PAGES
    for number, fence in enumerate(fences(page, "json"))
]
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl; apt-get install curl && make test")
each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if '"listening"' in line:
                return int(json.loads(line)["addresses"][0].rpartition(":")[2])
        time.sleep(0.02)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")
def dev_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What `make dev` starts, on a free port; its address."""
    folder = tmp_path_factory.mktemp("dev")
    log = folder / "stderr"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIFY_AGENT_")}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "dify_agent.cli", "dev", "--port", "0"],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
        )
    try:
        yield f"http://127.0.0.1:{_port(process, log)}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS) == ExitStatus.DRAINED, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture(scope="module")
def pasted(dev_server: str) -> list[str]:
    """What each of README's blocks prints when all are pasted into one shell, in order."""
    mark = "===== next block ====="
    script = "\n".join(f"{block}\necho '{mark}'" for block in BASH).replace(ADDRESS, dev_server)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # README says python3
    environment = {**os.environ, "PATH": path, "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout.split(f"{mark}\n")[:-1]


def _output_of(text: str, pasted: list[str]) -> list[str]:
    """Outputs of the blocks that contain ``text``."""
    return [output for block, output in zip(BASH, pasted, strict=True) if text in block]


def _events(output: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in output.splitlines() if line.startswith("data: ")]
    return [RUN_EVENT_ADAPTER.validate_json(line) for line in lines]


@needs_curl
@pytest.mark.slow
def test_readme_commands_work_in_order(pasted: list[str]) -> None:
    (health,) = _output_of("/healthz", pasted)
    assert [json.loads(line) for line in health.splitlines()] == [{"status": "ok"}, {"status": "ready"}]
    (status,) = [output for block, output in zip(BASH, pasted, strict=True) if block.endswith("/runs/$RUN_ID; echo\n")]
    assert json.loads(status)["status"] == "running"
    (page,) = _output_of("wait=", pasted)
    events = RunEventsResponse.model_validate_json(page).events
    assert 1 <= len(events) <= 2
    assert events[0].type == "run_started"
    (paths,) = _output_of("/openapi.json", pasted)
    assert set(openapi_document()["paths"]) <= set(paths.splitlines())


@needs_curl
@pytest.mark.slow
def test_readme_streams_show_what_the_text_says(pasted: list[str]) -> None:
    first, cancelled = map(_events, _output_of("/events/sse", pasted))
    assert (first[0].type, first[-1].type) == ("run_started", "run_succeeded")
    assert "function_tool_result" in [event.data.event_kind for event in first[1:-1]]
    assert first[-1].data.output == "clear " * 10
    assert cancelled[-1].type == "run_cancelled"
    assert (cancelled[-1].data.reason, cancelled[-1].data.message) == ("user", "No longer needed.")


def test_readme_has_a_curl_of_each_route() -> None:
    commands = "\n".join(BASH)
    for path in [*openapi_document()["paths"], "/openapi.json", "/docs"]:
        route = re.escape(path.replace("{run_id}", "$RUN_ID"))
        assert re.search(rf"curl [^\n]*\$SERVER{route}[\s;?\"]", commands), path


@pytest.mark.parametrize("text", JSON_BLOCKS)
def test_json_is_json_and_of_the_protocol(text: str) -> None:
    value = json.loads(text)
    if "composition" in value:
        CreateRunRequest.model_validate_json(text)
    elif "next_cursor" in value:
        RunEventsResponse.model_validate_json(text)
    elif "run_id" in value:
        event = RUN_EVENT_ADAPTER.validate_json(text)
        assert RUN_EVENT_ADAPTER.dump_python(event, mode="json") == value
    elif list(value) == ["on_exit"]:
        signals = LayerExitSignals.model_validate(value["on_exit"])
        assert signals.model_dump(mode="json") == value["on_exit"]
    elif value.keys() <= Script.model_fields.keys():
        Script.model_validate_json(text)
    else:
        assert list(value) == ["detail"]


def test_settings_table_is_the_settings() -> None:
    """Again: python -m tests.docs.settings_table."""
    assert settings_table.written() == settings_table.render()


def test_unused_settings_are_told_apart() -> None:
    used = settings_table.used_fields()
    assert {"redis_url", "shutdown_limit_seconds", "tool_threads", "model_base_urls"} <= used
    assert not {"e2b_api_key", "agent_stub_api_base_url", "local_sandbox_endpoint"} & used


@each_page
def test_variables_exist(page: Path) -> None:
    named = set(re.findall(r"DIFY_AGENT_[A-Z0-9_]*[A-Z0-9](?![\w*])", page.read_text()))
    assert named <= set(ServerSettings.variables().values()) | ALIASES | {"DIFY_AGENT_REDIS_URL"}


def test_exit_statuses_are_the_programs() -> None:
    """In one table; other pages lead to it."""
    told_twice = {128 + number for number in STOP_SIGNALS}
    killed = 128 + signal.SIGKILL
    rows = list(table_under(SHUTDOWN, "Exit statuses"))
    assert [row[0] for row in rows] == sorted({row[0] for row in rows}, key=int)
    served = {int(status) for status, meaning, _ in rows if meaning}
    assert served == set(map(int, ExitStatus)) | told_twice | {WRONG_COMMAND_LINE, killed}
    examined = {int(status) for status, _, meaning in rows if meaning}
    assert examined == set(map(int, DoctorStatus)) | {WRONG_COMMAND_LINE, INTERRUPTED}
    assert [name_of(page) for page in PAGES if "| 70 |" in page.read_text()] == [name_of(SHUTDOWN)]


def test_the_budget_of_a_worker_is_the_programs() -> None:
    (row,) = [row for row in table_under(SHUTDOWN, "Exit statuses") if int(row[0]) == ExitStatus.BUDGET_SPENT]
    assert BUDGET.restarts == 10
    assert f"more than ten times within {BUDGET.seconds:g} s" in row[1]


def test_deliberate_differences_are_the_oracles() -> None:
    written = list(table_under(ROOT / "docs" / "agent-loop.md", "Deliberate differences to `Agent`"))
    assert written == [[row.what, row.why] for row in DIFFERENCES]


def test_import_table_names_every_package_and_contract() -> None:
    rows = [re.findall(r"`(\w+)`", names) for names, _ in table_under(ARCHITECTURE, "Who may import whom")]
    inside = {path.stem for path in (ROOT / "src" / "dify_agent").iterdir() if path.suffix == ".py" or path.is_dir()}
    ours = {name for name in inside if not name.startswith("_")} - {"py", "settings_checks"}
    assert {name for row in rows for name in row} == ours | {"agenton", "agenton_collections"}
    contracts = set(
        re.findall(r"^\[importlinter:contract:([\w-]+)\]", (ROOT / ".importlinter").read_text(), re.MULTILINE)
    )
    *restricted, _everything = rows
    assert contracts - {"composition-root", "no-asyncio"} == {row[0] for row in restricted}


@each_page
def test_links_resolve(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if fragment:
            assert fragment in anchors(target), link


@each_page
def test_named_files_exist(page: Path) -> None:
    for span in code_spans(page):
        if re.fullmatch(r"(src|tests|docs)/[\w./-]+|\.ci/\w+|\.importlinter", span):
            assert (ROOT / span).exists(), span


@each_page
def test_named_tests_exist(page: Path) -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for span in code_spans(page):
        if re.fullmatch(r"test_\w+", span):
            assert f"def {span}(" in sources, span


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shell = "\n".join(fence.text for fence in fences(page, "sh", "bash"))
    named = re.findall(r"\bmake ([a-z-]+)", "\n".join([*code_spans(page), shell]))
    assert set(named) <= targets


@each_page
def test_pages_are_readable_as_text(page: Path) -> None:
    """Lines outside tables and blocks fit an editor; nothing ends in white space."""
    for line in page.read_text().splitlines():
        assert line == line.rstrip()
        assert len(line) <= 140 or line.startswith("|"), line


def test_metrics_table_names_every_metric() -> None:
    rows = table_under(ROOT / "docs" / "operations.md", "Metrics")
    written = {name for names, *_ in rows for name in re.findall(r"`(\w+)`", names)}
    metrics = Metrics()
    watched = ("queue_events", "queue_bytes", "queue_limit_bytes", "queue_stuck_runs")  # by the composition root
    for name in watched:
        metrics.watch(name, "as the root does", lambda: 0)
    families = [family for family in metrics.registry.collect() if family.name.startswith("dify_agent_")]
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert {f"dify_agent_{name}" for name in written} == names


def test_metrics_table_names_every_value_of_a_label() -> None:
    metrics, labels = Metrics(), ("phase", "status", "outcome", "leg", "transport", "reason")
    announce_series(metrics)
    shown = {
        (sample.name.removeprefix("dify_agent_"), value)
        for family in metrics.registry.collect()
        for sample in family.samples
        for label, value in sample.labels.items()
        if label in labels and sample.name.endswith(("_total", "_active", "_open", "_count"))
    }
    rows = {names.strip("`"): cell for names, cell, _ in table_under(ROOT / "docs" / "operations.md", "Metrics")}
    assert len(shown) == 23
    for name, value in shown:
        assert f"`{value}`" in rows[name.removesuffix("_count")], (name, value)
