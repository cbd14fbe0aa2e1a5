"""A real Valkey for the replay; one per test process."""

from collections.abc import Iterator

import pytest
import redis
import trio
from tests.contracts.store_support import StoreServer

from dify_agent.store.embedded import running_server, valkey_binary


@pytest.fixture(scope="session")
def store_server() -> Iterator[StoreServer]:
    """The embedded server on a private unix socket, and an independent client beside it."""
    with running_server(valkey_binary(), {}) as process:
        trio.run(process.wait_ready)
        with redis.Redis(unix_socket_path=str(process.socket)) as witness:
            yield StoreServer(process.url, process.socket, witness)
