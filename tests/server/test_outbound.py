"""`DIFY_AGENT_OUTBOUND_HTTP_*` from the environment to the pool, and what a connect does that nobody answers."""

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx2
import pytest
from tests.server.clients import open_api
from tests.server.dify_faults import (
    CORE_TOOL,
    DAEMON_URL,
    GATEWAY_MODEL,
    INNER_URL,
    PLUGIN_TOOL,
    TOOL_AWAY,
    Asked,
    Fails,
    Observes,
)
from tests.server.dify_results import ended, failure, observations
from tests.server.endings import moment
from tests.server.harness import Server, StoreServer, serving, until
from tests.unit.backends.peer import unanswered_url

from dify_agent import main
from dify_agent.settings import ServerSettings

PREFIX: Final = "DIFY_AGENT_OUTBOUND_HTTP_"
BUILT: Final = {
    "CONNECT_TIMEOUT": 1.5,
    "READ_TIMEOUT": 2.5,
    "WRITE_TIMEOUT": 3.5,
    "POOL_TIMEOUT": 4.5,
    "MAX_CONNECTIONS": 50,
    "MAX_KEEPALIVE_CONNECTIONS": 6,
    "KEEPALIVE_EXPIRY": 7.5,
}
"""Of each variable another value."""

CONNECT_TIMEOUT_SECONDS: Final = 0.5
PROMPT_SECONDS: Final = 2.0


def built(client: httpx2.AsyncClient) -> dict[str, float | None]:
    """What a client's requests and its pool go by."""
    timeout, pool = client.timeout, client._transport._pool._pool  # type: ignore[attr-defined]
    return {
        "CONNECT_TIMEOUT": timeout.connect,
        "READ_TIMEOUT": timeout.read,
        "WRITE_TIMEOUT": timeout.write,
        "POOL_TIMEOUT": timeout.pool,
        "MAX_CONNECTIONS": pool._max_connections,
        "MAX_KEEPALIVE_CONNECTIONS": pool._max_keepalive_connections,
        "KEEPALIVE_EXPIRY": pool._keepalive_expiry,
    }


async def test_each_variable_bounds_what_it_is_named_for(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {name for name in ServerSettings.variables().values() if name.startswith(PREFIX)}
    assert variables == {f"{PREFIX}{name}" for name in BUILT}
    for name, value in BUILT.items():
        monkeypatch.setenv(f"{PREFIX}{name}", str(value))
    async with main._open_outbound(ServerSettings()) as outbound:
        clients = (outbound.daemon, outbound.dify_api, outbound.models)
        assert [built(client) for client in clients] == [BUILT] * 3


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    """A replica that reaches neither service, and is not refused either."""
    with unanswered_url() as url:
        services = {"inner_api_url": url, "plugin_daemon_url": url, "inner_api_key": "a", "plugin_daemon_api_key": "b"}
        with serving(store.url, outbound_http_connect_timeout=CONNECT_TIMEOUT_SECONDS, **services) as started:
            yield started


SETTING: Final = f"{PREFIX}CONNECT_TIMEOUT"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        (GATEWAY_MODEL, Fails("upstream_connect_timeout", (SETTING,), setting=f"{INNER_URL}, {SETTING}")),
        (PLUGIN_TOOL, Fails("plugin_daemon_timeout", (SETTING,), setting=f"{DAEMON_URL}, {SETTING}")),
        (CORE_TOOL, Observes(TOOL_AWAY, logged=SETTING, setting=f"{INNER_URL}, {SETTING}")),
    ],
    ids=lambda value: value.name if isinstance(value, Asked) else "",
)
async def test_a_connect_that_nobody_answers(server: Server, asked: Asked, outcome: Fails | Observes) -> None:
    async with open_api(server) as api:
        events = await api.run(asked.scripted_body())
    if isinstance(outcome, Fails):
        reason, text = failure(events)
        assert reason == outcome.reason
        assert all(part in text for part in outcome.says)
        assert f"within {CONNECT_TIMEOUT_SECONDS:g} seconds" in text
    else:
        assert list(observations(events).values()) == [outcome.start]
        assert ended(events)["output"] == "Done."
        assert f"or raise {outcome.logged}" in server.log
    took = (moment(events[-1]) - moment(events[0])).total_seconds()
    assert CONNECT_TIMEOUT_SECONDS <= took <= CONNECT_TIMEOUT_SECONDS + PROMPT_SECONDS

    def warned() -> list[dict[str, Any]]:
        records = [json.loads(line) for line in server.log.splitlines()]
        return [each for each in records if each.get("run_id") == events[0]["run_id"] and each.get("setting")]

    await until(lambda: bool(warned()), "the failure is logged")
    (line,) = warned()
    assert (line["level"], line["setting"]) == ("warning", outcome.setting)
