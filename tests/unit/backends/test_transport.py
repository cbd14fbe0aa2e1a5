"""The process's outbound clients on real sockets: what they share, what they send, what their failures are called."""

import socket
import time

import httpx2
import pytest
import trio
from tests.unit.backends.peer import (
    answering,
    clients,
    connected,
    foreign,
    headers,
    open_peer,
    plain,
    resetting,
    silent,
    truncating,
    unanswered_url,
    unused_url,
)

from dify_agent.backends.transport import (
    DIFY_API,
    PLUGIN_DAEMON,
    OutboundOptions,
    TransportReason,
    open_outbound,
    plugin_header,
    transport_failure,
)

PATH = "/inner/api/x?sign=secret"


async def failure(outbound, method="GET", **options):
    """What a request to the Dify API fails with."""
    with pytest.raises(httpx2.RequestError) as caught:
        await outbound.dify_api.request(method, f"{outbound.dify_api_url}{PATH}", **options)
    failed = transport_failure(caught.value, DIFY_API)
    assert "secret" not in failed.message
    assert "inner-key" not in failed.message
    assert outbound.dify_api_url in failed.message
    return failed


async def test_each_service_gets_its_own_key_in_a_header_only():
    async with connected(plain(200, b"ok")) as (peer, outbound):
        assert outbound.daemon_url == outbound.dify_api_url == peer.url
        for client in (outbound.daemon, outbound.dify_api, outbound.models):
            await client.get(f"{peer.url}/x")
        daemon, dify_api, models = map(headers, peer.requests)
        assert (daemon["x-api-key"], dify_api["x-inner-api-key"]) == ("daemon-key", "inner-key")
        assert "x-inner-api-key" not in daemon
        assert "x-api-key" not in dify_api
        assert not {"x-api-key", "x-inner-api-key"} & models.keys()
        assert "key" not in repr(outbound)


async def test_a_key_that_is_not_set_is_an_empty_header():
    async with connected(plain(200, b"")) as (peer, _):
        opening = open_outbound(
            daemon_url=peer.url, daemon_api_key="", dify_api_url=peer.url, dify_api_key=None, options=OutboundOptions()
        )
        async with opening as outbound:
            await outbound.dify_api.get(peer.url)
        assert headers(peer.requests[0])["x-inner-api-key"] == ""


@pytest.mark.parametrize("key", ["secret\n", "secrét"])
async def test_a_key_that_cannot_stand_in_a_header(key):
    opening = open_outbound(
        daemon_url="http://x", daemon_api_key=key, dify_api_url="http://x", dify_api_key=key, options=OutboundOptions()
    )
    with pytest.raises(ValueError, match="DIFY_AGENT_PLUGIN_DAEMON_API_KEY") as caught:
        await opening.__aenter__()
    assert key not in str(caught.value)


async def test_http_1_1_no_proxy_no_redirect(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with connected(plain(302, b"", b"location: /elsewhere")) as (peer, outbound):
        response = await outbound.dify_api.get(f"{peer.url}/x")
        assert (response.status_code, response.http_version) == (302, "HTTP/1.1")
        assert len(peer.requests) == 1


async def test_limits_are_totals_over_all_clients():
    async with connected(answering(end=False), max_connections=3, pool_timeout=0.2) as (peer, outbound):
        turns = [outbound.daemon, outbound.dify_api, outbound.models] * 2
        refused = []

        async def ask(client):
            try:
                async with client.stream("GET", peer.url):
                    await trio.sleep_forever()
            except httpx2.PoolTimeout:
                refused.append(client)
                if len(refused) == 3:
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for client in turns:
                nursery.start_soon(ask, client)
        assert len(refused) == peer.most_open == 3


async def test_idle_connections_are_limited_in_total():
    both = trio.Event()

    async def meet(peer, stream, request):
        if len(peer.requests) == 4:
            both.set()
        await both.wait()
        return await plain(200, b"")(peer, stream, request)

    async with connected(meet, max_keepalive_connections=1) as (peer, outbound):
        async with trio.open_nursery() as nursery:
            for client in (outbound.daemon, outbound.dify_api) * 2:
                nursery.start_soon(client.get, peer.url)
        await peer.until(lambda: peer.open == 1)


KEPT_SECONDS = 0.2


async def test_an_idle_connection_expires():
    """The pool looks at its connections whenever one is asked for, whoever is to be reached."""
    async with connected(plain(200, b""), keepalive_expiry=KEPT_SECONDS) as (peer, outbound):
        async with open_peer(plain(200, b"")) as other:
            began = time.monotonic()  # the pool's clock; the connection is idle from then on at the earliest
            await outbound.dify_api.get(peer.url)
            with trio.fail_after(5):
                while peer.open:
                    await outbound.dify_api.get(other.url)
            assert time.monotonic() - began >= KEPT_SECONDS
            await outbound.dify_api.get(peer.url)
        assert len(peer.requests) == 2


async def test_closing_one_client_leaves_the_pool():
    async with connected(plain(200, b"")) as (peer, outbound):
        await outbound.daemon.aclose()
        assert (await outbound.dify_api.get(peer.url)).status_code == 200


async def test_nothing_is_open_afterwards():
    async with connected(plain(200, b"")) as (peer, outbound):
        await outbound.dify_api.get(peer.url)
        assert peer.open == 1
        async with clients(peer.url) as other:
            await other.dify_api.get(peer.url)
        await peer.until(lambda: peer.open == 1)


async def test_refused():
    async with clients(unused_url()) as outbound:
        failed = await failure(outbound)
    assert (failed.reason, failed.timed_out) == (TransportReason.CONNECT_FAILED, False)
    assert failed.message.startswith("no connection to the Dify API (http://127.0.0.1:")
    assert failed.setting == "DIFY_AGENT_INNER_API_URL"


@pytest.mark.parametrize(
    ("program", "what", "setting"),
    [(resetting, "broke", None), (truncating, "broke", None), (foreign, "not HTTP", "DIFY_AGENT_INNER_API_URL")],
)
async def test_broken_off(program, what, setting):
    async with connected(program) as (_, outbound):
        failed = await failure(outbound)
    assert (failed.reason, failed.timed_out) == (TransportReason.CONNECTION_LOST, False)
    assert what in failed.message
    assert failed.setting == setting


async def test_a_connect_that_nobody_answers():
    with unanswered_url() as url:
        async with clients(url, connect_timeout=0.2) as outbound:
            began = trio.current_time()
            with trio.fail_after(5):
                failed = await failure(outbound)
            assert trio.current_time() - began >= 0.2
    assert (failed.reason, failed.timed_out) == (TransportReason.CONNECT_TIMEOUT, True)
    assert failed.message.startswith(f"no connection to the Dify API ({url}) within 0.2 seconds.")
    assert failed.message.endswith("or raise DIFY_AGENT_OUTBOUND_HTTP_CONNECT_TIMEOUT")
    assert failed.setting == "DIFY_AGENT_INNER_API_URL, DIFY_AGENT_OUTBOUND_HTTP_CONNECT_TIMEOUT"


async def test_silence():
    async with connected(silent, read_timeout=0.1) as (_, outbound):
        failed = await failure(outbound)
    assert (failed.reason, failed.timed_out) == (TransportReason.READ_TIMEOUT, True)
    assert "was silent for 0.1 seconds" in failed.message
    assert "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT" in failed.message
    assert failed.setting == "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT"


async def test_a_peer_that_takes_nothing():
    with socket.create_server(("127.0.0.1", 0)) as sock:  # the kernel accepts, nobody reads
        async with clients(f"http://127.0.0.1:{sock.getsockname()[1]}", write_timeout=0.2) as outbound:
            failed = await failure(outbound, "POST", content=b"x" * 30_000_000)
    assert failed.reason is TransportReason.WRITE_TIMEOUT
    assert "DIFY_AGENT_OUTBOUND_HTTP_WRITE_TIMEOUT" in failed.message


async def test_no_connection_left():
    async with connected(answering(end=False), max_connections=1, pool_timeout=0.1) as (peer, outbound):
        async with outbound.daemon.stream("GET", peer.url):
            failed = await failure(outbound)
    assert (failed.reason, failed.timed_out) == (TransportReason.POOL_EXHAUSTED, True)
    advice = "or raise DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS or DIFY_AGENT_OUTBOUND_HTTP_POOL_TIMEOUT"
    assert "were in use for 0.1 seconds" in failed.message
    assert failed.message.endswith(advice)
    assert failed.setting == "DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS, DIFY_AGENT_OUTBOUND_HTTP_POOL_TIMEOUT"


def test_an_error_outside_a_request():
    failed = transport_failure(httpx2.ReadTimeout("t"), DIFY_API)
    assert failed.message.startswith("the Dify API was silent for too long.")
    failed = transport_failure(httpx2.ConnectTimeout("t"), DIFY_API)
    assert (failed.reason, failed.timed_out) == (TransportReason.CONNECT_TIMEOUT, True)
    assert failed.setting == "DIFY_AGENT_INNER_API_URL, DIFY_AGENT_OUTBOUND_HTTP_CONNECT_TIMEOUT"


KEY_OR_URL = "DIFY_AGENT_INNER_API_KEY, DIFY_AGENT_INNER_API_URL"
DAEMON_KEY = "DIFY_AGENT_PLUGIN_DAEMON_API_KEY"
UNAUTHORIZED = "PluginDaemonUnauthorizedError"


@pytest.mark.parametrize(
    ("service", "status", "kind", "is_object", "setting"),
    [
        (DIFY_API, 404, "not_found", True, KEY_OR_URL),
        (DIFY_API, 404, "model_not_found", True, None),
        (DIFY_API, 403, "app_tenant_mismatch", True, None),
        (DIFY_API, 404, None, True, DIFY_API.url_setting),
        (DIFY_API, 401, None, True, DIFY_API.url_setting),
        (DIFY_API, 302, None, False, DIFY_API.url_setting),
        (DIFY_API, 502, None, False, DIFY_API.url_setting),
        (DIFY_API, 500, None, True, None),
        (DIFY_API, 429, None, False, None),
        (PLUGIN_DAEMON, 401, UNAUTHORIZED, True, DAEMON_KEY),
        (PLUGIN_DAEMON, 401, "InvokeAuthorizationError", True, None),
        (PLUGIN_DAEMON, 404, "PluginNotFoundError", True, None),
        (PLUGIN_DAEMON, 404, None, False, PLUGIN_DAEMON.url_setting),
        (PLUGIN_DAEMON, 400, None, True, None),
    ],
)
def test_what_an_http_error_says_of_the_settings(service, status, kind, is_object, setting):
    assert service.setting_to_check(status, kind, is_object=is_object) == setting


def test_hints():
    assert DIFY_API.hint(404, KEY_OR_URL) == (
        " (check DIFY_AGENT_INNER_API_KEY and DIFY_AGENT_INNER_API_URL, the root without /inner/api)"
    )
    assert PLUGIN_DAEMON.hint(401, DAEMON_KEY) == " (check DIFY_AGENT_PLUGIN_DAEMON_API_KEY)"
    assert DIFY_API.hint(404, None) == DIFY_API.hint(502, DIFY_API.url_setting) == ""


def test_the_header_of_a_plugin():
    assert plugin_header("langgenius/my plugin") == {"X-Plugin-ID": "langgenius/my plugin"}
    for plugin_id in ("ü", "a\nb", "\0", " a", "a ", "\x7f"):
        with pytest.raises(ValueError, match="plugin_id"):
            plugin_header(plugin_id)
