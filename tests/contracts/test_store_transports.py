"""The same store over TCP and TLS: the server's socket, reached through listeners of the test's own."""

import ssl

import pytest
import trio
from tests.contracts.store_support import (
    ONE_SERVER,
    OWNER,
    LossyProxy,
    batch,
    events,
    run_id,
    running,
    texts,
    whole_log,
)

from dify_agent.errors import StoreUnavailableError
from dify_agent.protocol.event_id import START
from dify_agent.store.redis import open_redis_store

LOCAL = "127.0.0.1"
pytestmark = ONE_SERVER


async def exercise(url, prefix):
    run = run_id()
    async with open_redis_store(url, prefix=prefix, command_timeout=2) as store:
        await store.create_run(running(run), OWNER)
        assert await store.append([batch(run, START, *events(1, 3))]) == ["appended"]
        assert texts(await whole_log(store, run)) == texts(events(1, 3))


async def test_over_tcp(store_server, prefix):
    proxy = LossyProxy(store_server.socket)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
        serve = lambda client: proxy.serve(store_server.socket, client)  # noqa: E731
        await nursery.start(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        await exercise(f"redis://{LOCAL}:{port}/0", prefix)
        nursery.cancel_scope.cancel(reason="test over")
    async with open_redis_store(f"redis://:secret@{LOCAL}:{port}", prefix=prefix) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.ping()
    assert "secret" not in caught.value.cause


@pytest.mark.slow
async def test_over_tls_the_servers_certificate_is_checked(store_server, prefix, certificate):
    proxy = LossyProxy(store_server.socket)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def serve(client):
        try:
            await proxy.serve(store_server.socket, client)
        except* (trio.BrokenResourceError, ssl.SSLError):
            pass  # the client refused the certificate, which is what is tested below

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_ssl_over_tcp_listeners(0, context, host=LOCAL)
        await nursery.start(trio.serve_listeners, serve, [listener])
        url = f"rediss://{LOCAL}:{listener.transport_listener.socket.getsockname()[1]}/0"
        await exercise(f"{url}?ssl_ca_certs={certificate}", prefix)
        await exercise(f"{url}?ssl_cert_reqs=none", prefix)
        async with open_redis_store(url, prefix=prefix) as store:
            with pytest.raises(StoreUnavailableError):
                await store.ping()
        nursery.cancel_scope.cancel(reason="test over")
