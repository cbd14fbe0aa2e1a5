"""One Valkey per test process, one server per module, a client per test; a failing test shows the servers' logs."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis
import trio
from tests.server.clients import Api, open_api
from tests.server.harness import Server, StoreServer, recent_servers, serving
from tests.server.hostile_upstream import Upstream, hostile_upstream

from dify_agent.store.embedded import running_server, valkey_binary

LOG_TAIL = 12_000


@pytest.fixture(scope="session")
def store() -> Iterator[StoreServer]:
    with running_server(valkey_binary(), {}) as process:
        trio.run(process.wait_ready)
        with redis.Redis(unix_socket_path=str(process.socket)) as witness:
            yield StoreServer(process.url, witness)


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    """The replica that most tests of a module share; a module with other needs has a fixture of this name itself."""
    with serving(store.url) as started:
        yield started


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    """A service that answers with whatever bytes a test gives it; for a `server` with its settings."""
    with hostile_upstream() as started:
        yield started


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    async with open_api(server) as opened:
        yield opened


def pytest_runtest_setup() -> None:
    recent_servers[:] = [server for server in recent_servers if server.process.poll() is None]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for server in recent_servers:
            title = f"server {server.pid} on port {server.port}, status {server.process.poll()}"
            report.sections.append((title, server.log[-LOG_TAIL:]))
    return report
