"""`dify-agent fakes`: start, ask, stop."""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dify_agent.cli import commands
from dify_agent.testing.kept import STATE_BYTES

SECONDS = 30
LLM = "/inner/api/agent/llm/invoke"
KEY = {"X-Inner-Api-Key": "k-1"}
BODY = {
    "caller": {
        "tenant_id": "t",
        "user_id": "u",
        "user_from": "account",
        "app_id": "a",
        "invoke_from": "web-app",
        "agent_mode": "agent_app",
        "invocation_id": "i",
        "agent_run_id": "r",
        "call_index": 1,
    },
    "target": {"provider": "p", "model": "m", "prompt_messages": [{"role": "user", "content": "hi"}]},
}


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "dify_agent", "fakes", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def first_line(process: "subprocess.Popen[bytes]") -> Any:
    """What the process says first."""
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        assert selector.select(SECONDS), "the process says nothing"
    line = process.stderr.readline()
    assert line.startswith(b"{"), line + process.stderr.read()
    return json.loads(line)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_start_ask_stop(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"llm": [{"steps": [{"text": "scripted"}]}]}))
    with running("--port", "0", "--script", os.fspath(script), "--key", "k-1") as process:
        listening = first_line(process)
        assert listening["event"] == "listening"
        assert "k-1" not in json.dumps(listening)
        url = listening["DIFY_AGENT_INNER_API_URL"]
        assert listening["DIFY_AGENT_PLUGIN_DAEMON_URL"] == url
        with httpx2.Client(base_url=url) as client:
            assert "scripted" in client.post(LLM, json=BODY, headers=KEY).raise_for_status().text
            assert client.post(LLM, json=BODY).status_code == 404
            assert client.get("/__fake/requests").json()["total"] == 2
        process.send_signal(number)
        assert process.wait(SECONDS) == 0


@pytest.mark.slow
def test_what_callers_store_is_bounded() -> None:
    asked = {"tenant_id": "t", "user_id": "u", "filename": "a", "mimetype": "a/b", "max_size": 5000}
    with running("--port", "0", "--key", "k-1", "--state-bytes", "2000") as process:
        with httpx2.Client(base_url=first_line(process)["DIFY_AGENT_INNER_API_URL"]) as client:
            link = client.post("/inner/api/agent/files/upload-request", json=asked, headers=KEY).json()["upload_uri"]
            statuses = [client.post(link, files={"file": ("a", b"x" * n, "a/b")}).status_code for n in (1000, 2000)]
            assert statuses == [201, 413]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "member", "problem"),
    [
        ('{"llm": [{"steps": [{"txet": "a"}]}]}', "llm.0.steps.0.txet", "Extra inputs"),
        ("{", None, "Invalid JSON"),
    ],
)
def test_a_wrong_script_is_told_and_status_1(text: str, member: str | None, problem: str, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(text)
    with running("--port", "0", "--script", os.fspath(script)) as process:
        line = first_line(process)
        assert (line["event"], line["member"]) == ("invalid script", member)
        assert problem in line["problem"]
        assert process.wait(SECONDS) == 1


@pytest.mark.slow
def test_a_port_that_is_taken_is_told_and_status_1() -> None:
    with running("--port", "0") as first:
        port = first_line(first)["addresses"][0].rpartition(":")[2]
        with running("--port", port) as second:
            assert first_line(second)["setting"] == "--port"
            assert second.wait(SECONDS) == 1


@pytest.mark.slow
def test_a_script_that_is_not_there_is_a_wrong_command_line() -> None:
    with running("--script", "/nowhere/script.json") as process:
        assert process.wait(SECONDS) == 2


def test_the_default_bound_is_the_librarys() -> None:
    assert commands.DEFAULT_FAKES_STATE_BYTES == STATE_BYTES
