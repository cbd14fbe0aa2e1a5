"""Variables that begin like settings and are none: said once, by name, with what may have been meant."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dify_agent.cli.unknown import warn_of_unknown_settings
from dify_agent.settings import ServerSettings


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("DIFY_AGENT_"):
            monkeypatch.delenv(name)


def said() -> list[tuple[str, str | None]]:
    with capture_logs() as lines:
        warn_of_unknown_settings()
    assert {(line["event"], line["log_level"]) for line in lines} <= {("unknown setting ignored", "warning")}
    assert "s3cret" not in repr(lines)
    return [(line["setting"], line.get("did_you_mean")) for line in lines]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DIFY_AGENT_MAX_ACTIVE_RUN", "DIFY_AGENT_MAX_ACTIVE_RUNS"),
        ("dify_agent_max_active_run", "DIFY_AGENT_MAX_ACTIVE_RUNS"),
        ("DIFY_AGENT_SHELLCTL_ENTRYPONT", "DIFY_AGENT_SHELLCTL_ENTRYPOINT"),
        ("DIFY_AGENT_API_TOKENS", "DIFY_AGENT_API_TOKEN"),
        ("DIFY_AGENT_NEVER_HEARD_OF_IT", None),
    ],
)
@pytest.mark.parametrize("where", ["environment", ".env", "dify-agent/.env"])
def test_a_misspelt_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str, name: str, meant: str | None
) -> None:
    if where == "environment":
        monkeypatch.setenv(name, "s3cret")
    else:
        (tmp_path / where).parent.mkdir(exist_ok=True)
        (tmp_path / where).write_text(f"OTHER=1\n{name}=s3cret\n")
    assert said() == [(name, meant)]


def test_one_that_is_set_in_two_places_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DIFY_AGENT_X", "s3cret")
    (tmp_path / ".env").write_text("DIFY_AGENT_X=s3cret\n")
    assert said() == [("DIFY_AGENT_X", None)]


@pytest.mark.parametrize("name", [*ServerSettings.variables().values(), "DIFY_AGENT_SHELLCTL_ENTRYPOINT",
                                  "DIFY_AGENT_SHELLCTL_AUTH_TOKEN", "DIFY_AGENT_STUB_AUTH_JWE"])  # fmt: skip
def test_known_names_are_not_said(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv(name.lower(), "s3cret")
    assert said() == []


@pytest.mark.parametrize("name", sorted(ServerSettings.known_variables()))
def test_every_known_name_is_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    try:
        settings = ServerSettings()
    except ValueError:
        return  # read, and refused
    assert settings.model_fields_set


SERVICE_LINKS = {
    "DIFY_AGENT_SERVICE_HOST": "10.0.0.1",
    "DIFY_AGENT_SERVICE_PORT": "80",
    "DIFY_AGENT_SERVICE_PORT_HTTP": "80",
    "DIFY_AGENT_PORT": "tcp://10.0.0.1:80",
    "DIFY_AGENT_PORT_80_TCP": "tcp://10.0.0.1:80",
    "DIFY_AGENT_PORT_80_TCP_PROTO": "tcp",
    "DIFY_AGENT_PORT_80_TCP_PORT": "80",
    "DIFY_AGENT_PORT_80_TCP_ADDR": "10.0.0.1",
    "DIFY_AGENT_REDIS_PORT_6379_TCP_ADDR": "10.0.0.2",
}


def test_what_kubernetes_sets_for_a_service_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SERVICE_LINKS.items():
        monkeypatch.setenv(name, text)
    assert said() == []
    monkeypatch.setenv("DIFY_AGENT_PORT", "8080")
    assert said() == [("DIFY_AGENT_PORT", None)], "somebody wants to set the port"


def test_an_empty_one_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFY_AGENT_X", "")
    assert said() == []


def test_a_file_that_cannot_be_read_is_left_to_the_start(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"DIFY_AGENT_X=\xff\xfe\n")
    assert said() == []
