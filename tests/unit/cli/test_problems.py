"""A start that fails: one line per problem, and each names what to change."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from dify_agent.cli.problems import log_failed_start, log_invalid_settings
from dify_agent.errors import StoreUnavailableError
from dify_agent.settings import ServerSettings


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("DIFY_AGENT_"):
            monkeypatch.delenv(name)


def refused(monkeypatch: pytest.MonkeyPatch, **variables: str) -> list[Any]:
    for name, text in variables.items():
        monkeypatch.setenv(f"DIFY_AGENT_{name}", text)
    with pytest.raises(ValidationError) as failure:
        ServerSettings()
    with capture_logs() as logs:
        log_invalid_settings(failure.value)
    assert {(entry["event"], entry["log_level"]) for entry in logs} == {("invalid setting", "error")}
    return logs


ONE_SETTING = [
    ("RUN_TIMEOUT_SECONDS", "0", "'0' is not above 0"),
    ("RUN_TIMEOUT_SECONDS", "inf", "'inf' is no finite number"),
    ("SHUTDOWN_LIMIT_SECONDS", "soon", "'soon' is no number"),
    ("MAX_ACTIVE_RUNS", "three", "'three' is no whole number"),
    ("MAX_ACTIVE_RUNS", "-1", "'-1' is below 0"),
    ("TOOL_THREADS", "2.5", "'2.5' is no whole number"),
    ("TOOL_THREADS", "9" * 5000, f"'{'9' * 99}… has too many digits"),
    ("E2B_SHELLCTL_PORT", "65536", "'65536' is above 65535"),
    ("SCRIPTED_LAYERS", "maybe", "'maybe' is neither true nor false"),
    ("LLM_TRANSPORT", "post", "'post' is not 'gateway' or 'plugin_daemon'"),
    ("LOCAL_SANDBOX_WORKSPACE_ROOT", "x", "'x': must be an absolute POSIX path"),
    ("STUB_API_BASE_URL", "x", "DIFY_AGENT_STUB_API_BASE_URL must be an http:// or https:// URL"),
    ("ALLOWED_ORIGINS", "[1]", "must be a JSON array of strings or a comma-separated list"),
    ("MODEL_BASE_URLS", "localhost", "each of DIFY_AGENT_MODEL_BASE_URLS must be an http:// or https:// URL"),
]


@pytest.mark.parametrize(("name", "text", "problem"), ONE_SETTING)
def test_a_setting_is_named_as_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, problem: str
) -> None:
    (entry,) = refused(monkeypatch, **{name: text})
    assert (entry["setting"], entry["problem"]) == (f"DIFY_AGENT_{name}", problem)


UNSHOWN = [
    ("STUB_API_BASE_URL", "ftp://me:s3cret@h"),
    ("STUB_API_BASE_URL", "http://me:s3cret@h"),
    ("INNER_API_URL", "me:s3cret@h"),
    ("INNER_API_URL", "http://me:s3cret@h/?a"),
    ("INNER_API_URL", "http://me:s3cret@h/inner/api"),
    ("SANDBOX_FILES_BASE_URL", "me:s3cret@h"),
    ("LOCAL_SANDBOX_ENDPOINT", "me:s3cret@h"),
    ("SHELLCTL_ENTRYPOINT", "me:s3cret@h"),
    ("MODEL_BASE_URLS", '["http://me:s3cret@h/?key=s3cret"]'),
    ("MODEL_BASE_URLS", '["s3cret"'),
    ("ALLOWED_ORIGINS", "https://me:s3cret@h"),
    ("SERVER_SECRET_KEY", "s3cret"),
]


@pytest.mark.parametrize(("name", "text"), UNSHOWN)
def test_what_may_hold_a_secret_is_not_repeated(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    assert "s3cret" not in repr(refused(monkeypatch, **{name: text}))


def test_no_field_that_may_hold_a_secret_is_shown() -> None:
    shown = ServerSettings.shown_fields()
    assert {"max_active_runs", "shutdown_limit_seconds", "runtime_backend", "scripted_layers", "redis_prefix"} <= shown
    secret = {name for name, field in ServerSettings.model_fields.items() if not field.repr}
    told = {name for name in ServerSettings.model_fields if re.search("url|endpoint|token|key$|secret|patterns", name)}
    assert not shown & (secret | told | {"allowed_origins"})


def test_each_problem_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = refused(monkeypatch, TOOL_THREADS="0", TOOL_CONCURRENCY="0")
    assert {entry["setting"] for entry in logs} == {"DIFY_AGENT_TOOL_THREADS", "DIFY_AGENT_TOOL_CONCURRENCY"}


def test_a_rule_across_settings_names_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = refused(monkeypatch, RUNTIME_BACKEND="e2b")
    assert entry["setting"] == "DIFY_AGENT_E2B_API_KEY, DIFY_AGENT_RUNTIME_BACKEND"


FAILURES = [
    (OSError(errno.EADDRINUSE, "Address already in use"), "--port", "cannot listen on ::1:1: Address already in use"),
    (PermissionError(errno.EACCES, "Permission denied"), "--port", "cannot listen on ::1:1: Permission denied"),
    (OSError(errno.EADDRNOTAVAIL, "Not here"), "--host", "cannot listen on ::1:1: Not here"),
    (socket.gaierror(-2, "Name not known"), "--host", "cannot listen on ::1:1: Name not known"),
    (UnicodeError("encoding with 'idna' codec failed"), "--host", None),
    (PermissionError(errno.EACCES, "Permission denied", "/tmp/x"), None, "[Errno 13] Permission denied: '/tmp/x'"),
    (ValueError("DIFY_AGENT_REDIS_URL: no"), "DIFY_AGENT_REDIS_URL", "DIFY_AGENT_REDIS_URL: no"),
    (StoreUnavailableError("refused"), "DIFY_AGENT_REDIS_URL", "run store is unavailable"),
    (ValueError(), None, "ValueError"),
]


def test_a_store_that_cannot_be_used_comes_with_advice() -> None:
    with capture_logs() as logs:
        log_failed_start(StoreUnavailableError("refused", advice="start it"), "h", 1)
    (entry,) = logs
    assert (entry["cause"], entry["advice"]) == ("refused", "start it")


@pytest.mark.parametrize(("error", "setting", "problem"), FAILURES, ids=[repr(row[0]) for row in FAILURES])
def test_an_expected_failure_says_what_to_change(error: Exception, setting: str | None, problem: str | None) -> None:
    with capture_logs() as logs:
        log_failed_start(error, "::1", 1)
    (entry,) = logs
    assert entry.get("setting") == setting
    assert ("setting" in entry) == (setting is not None)
    if problem is not None:
        assert entry["problem"] == problem.replace("::1:1", "[::1]:1")
    assert not entry.get("exc_info")


def test_a_failure_nobody_expected_has_its_traceback() -> None:
    with capture_logs() as logs:
        log_failed_start(RuntimeError("bug"), "h", 1)
    assert [(entry["problem"], entry["exc_info"]) for entry in logs] == [("bug", True)]


@pytest.mark.slow
@pytest.mark.parametrize("reload", [[], ["--reload"]], ids=["dev", "dev --reload"])
def test_an_address_in_use(reload: list[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "dify_agent", "dev", "--port", port, *reload]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    record = json.loads(line)
    assert record["setting"] == "--port"
    assert record["problem"].startswith(f"cannot listen on 127.0.0.1:{port}: ")


@pytest.mark.slow
def test_redact_patterns_are_judged_at_the_start(tmp_path: Path) -> None:
    environment = {**os.environ, "DIFY_AGENT_SHELL_REDACT_PATTERNS": '["a", "(s3cret"]'}
    command = [sys.executable, "-m", "dify_agent", "serve", "--port", "0"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["setting"] == "DIFY_AGENT_SHELL_REDACT_PATTERNS"
    assert "s3cret" not in line
