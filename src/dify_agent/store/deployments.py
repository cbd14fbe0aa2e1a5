"""From a store URL to the variant of the port that serves it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dify_agent.store.cluster import ClusterConnections
from dify_agent.store.connections import Connections, lasting_nursery, server_dial
from dify_agent.store.executor import Executor, lane_limits
from dify_agent.store.sentinel import SentinelConnections
from dify_agent.store.tls import tls_context
from dify_agent.store.urls import StoreUrl


@asynccontextmanager
async def open_executor(url: StoreUrl, *, limit: int, timeout: float) -> AsyncIterator[Executor]:
    """Own the tasks of all connections to ``url``. Connects on demand, so it succeeds while the server is down.

    A cancellation from outside reaches the body and not the connections (`lasting_nursery`).

    Args:
        url: where to connect.
        limit: how many connections to one server at most; further callers wait. Services and runs have their share of
            them.
        timeout: seconds for one round trip, connecting included.

    Raises:
        ValueError: for a limit that leaves none for requests, or a file of the URL's TLS options that is of no use.
        ExceptionGroup: whatever the body raises, as from any nursery.
    """
    limits = lane_limits(limit)
    async with lasting_nursery() as nursery:
        if url.deployment == "cluster":
            yield ClusterConnections(nursery, url, limit=limit, timeout=timeout)
        elif url.deployment == "sentinel":
            yield SentinelConnections(nursery, url, limit=limit, timeout=timeout)
        else:
            yield Connections(
                nursery, server_dial(url, None, timeout, tls_context(url)), limits=limits, timeout=timeout, url=url
            )
