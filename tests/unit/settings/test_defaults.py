"""The operator guide's table and example, line by line."""

import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from dify_agent.server import settings as server_settings
from dify_agent.settings import ServerSettings

DATA = Path(__file__).parent / "data"
ROW = re.compile(r"\| `(DIFY_AGENT_\w+)` \| (?:`([^`]*)`|(empty)) \|")

OWN_DEFAULTS = {
    "enter_timeout_seconds": 300,
    "exit_timeout_seconds": 60,
    "finalize_timeout_seconds": 30,
    "cancel_timeout_seconds": 10,
    "store_outage_seconds": 60,
    "store_queue_bytes": 67_108_864,
    "owner_lease_seconds": 15,
    "drain_listen_seconds": 5,
    "shutdown_limit_seconds": None,
    "stream_stall_seconds": 30,
    "max_request_body_bytes": 67_108_864,
    "max_active_runs": 0,
    "max_active_runs_per_tenant": 0,
    "tool_concurrency": 16,
    "tool_threads": 64,
    "model_base_urls": (),
    "allowed_origins": (),
    "scripted_layers": False,
    "llm_transport": "gateway",
}


def table() -> list[tuple[str, str]]:
    rows = [ROW.match(line) for line in (DATA / "settings_table.md").read_text().splitlines()[2:]]
    return [(row[1], row[2] or "") for row in rows if row is not None]


def example() -> dict[str, str]:
    lines = (DATA / "example.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def value_of(settings: ServerSettings, variable: str) -> object:
    by_variable = {name: field for field, name in ServerSettings.variables().items()}
    return getattr(settings, by_variable[variable])


def same(actual: object, text: str) -> bool:
    if text == "":
        return actual in (None, "")
    if isinstance(actual, bool):
        return actual == (text == "true")
    if isinstance(actual, int | float):
        return actual == float(text)
    return actual == text


def test_the_table_is_read_completely() -> None:
    assert len(table()) == 41
    assert len({name for name, _ in table()}) == 41


@pytest.mark.parametrize(("variable", "default"), table())
def test_default_of_the_table(variable: str, default: str) -> None:
    assert same(value_of(ServerSettings(), variable), default)


@pytest.mark.parametrize(("field", "default"), OWN_DEFAULTS.items())
def test_default_of_an_own_setting(field: str, default: object) -> None:
    assert getattr(ServerSettings(), field) == default


def test_no_setting_is_outside_both_tables() -> None:
    variables = ServerSettings.variables()
    known = {name for name, _ in table()} | {variables[field] for field in OWN_DEFAULTS}
    assert set(variables.values()) == known


@pytest.mark.parametrize("folder", [".", "dify-agent"])
def test_example_dotenv_gives_each_value(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / ".env").write_text((DATA / "example.env").read_text())
    settings = ServerSettings()
    assert len(example()) == 23
    for variable, text in example().items():
        assert same(value_of(settings, variable), text), variable


@pytest.mark.parametrize(("variable", "text"), example().items())
def test_example_value_works_as_environment_variable(variable: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The Agent Stub URL needs its companions.
    for companion in ("DIFY_AGENT_SERVER_SECRET_KEY", "DIFY_AGENT_SANDBOX_FILES_BASE_URL"):
        monkeypatch.setenv(companion, example()[companion])
    monkeypatch.setenv(variable, text)
    assert same(value_of(ServerSettings(), variable), text)


def test_each_setting_is_described() -> None:
    for name, field in ServerSettings.model_fields.items():
        assert field.description, name


def test_callers_module_has_the_names_and_numbers() -> None:
    assert server_settings.ServerSettings is ServerSettings
    assert issubclass(ServerSettings, BaseSettings)
    assert server_settings.DEFAULT_RUN_RETENTION_SECONDS == 7200
    assert server_settings.DEFAULT_RUN_EVENT_STREAM_MAX_LENGTH == 5000
