"""The model on real sockets: what its caller leaves behind, and endings that only a socket has."""

import gc

import pytest
import trio
from tests.unit.backends.peer import answering, connected, plain, resetting, silent, truncating
from tests.unit.model.dify.fake_dify import CONTEXT, END, PROMPT, TEXT, chunk, error_line, line, play

from dify_agent.actors.failures import describe_failure
from dify_agent.model.dify.gateway import GatewayRoute
from dify_agent.model.dify.model import DifyModel

FIRST = line(chunk("half"))


def model(outbound):
    route = GatewayRoute(outbound, CONTEXT, run_id="run-1", plugin_id="o/p", model_provider="q")
    return DifyModel("gpt-x", route)


async def test_an_answer_leaves_its_connection_for_the_next():
    async with connected(answering(FIRST, END)) as (peer, outbound):
        asked = model(outbound)
        for _ in range(3):
            _, response = await play(asked)
            assert response.parts[0].content == "half"
        assert (peer.most_open, len(peer.requests)) == (1, 3)


async def test_one_byte_at_a_time():
    data = FIRST + line(chunk("é\u2028😀")) + END
    async with connected(answering(*(bytes([byte]) for byte in data))) as (_, outbound):
        _, response = await play(model(outbound))
    assert response.parts[0].content == "halfé\u2028😀"


@pytest.mark.parametrize("leave", ["cancel in a wait", "cancel between events", "error", "break"])
async def test_leaving_early_closes_the_connection_at_once_and_warns_of_nothing(leave):
    pieces = (FIRST, line(chunk("more")), line(chunk("still more")))
    async with connected(answering(*pieces, end=False), read_timeout=30) as (peer, outbound):
        with trio.CancelScope() as scope:
            try:
                async with model(outbound).request_stream(PROMPT, None, TEXT) as stream:
                    count = 0
                    async for _ in stream:
                        count += 1
                        if leave == "error":
                            raise KeyError
                        if leave == "break":
                            break
                        if leave == "cancel between events":
                            scope.cancel()
                            await trio.lowlevel.checkpoint()
                        elif count == 4:
                            scope.cancel()
            except KeyError:
                pass
        await peer.until(lambda: peer.left == 1)
        gc.collect()  # a generator left suspended would warn here, which fails the test
        assert stream.get().state == "incomplete"


async def test_an_error_in_the_stream_gives_the_connection_up():
    async with connected(answering(FIRST, error_line("InvokeBadRequestError", "no"), FIRST, end=False)) as (
        peer,
        outbound,
    ):
        with pytest.raises(Exception, match="no"):
            await play(model(outbound))
        await peer.until(lambda: peer.left == 1)
        gc.collect()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (resetting, "upstream_connection_lost"),
        (truncating, "upstream_connection_lost"),
        (silent, "upstream_read_timeout"),
        (answering(FIRST, end=False), "upstream_read_timeout"),
        (answering(FIRST), "incomplete_stream"),
        (answering(FIRST, b"<html>\n"), "upstream_malformed_answer"),
        (plain(500, b"<html>oops</html>"), "upstream_http_error"),
        (plain(200, b"<html>\n<body>"), "upstream_malformed_answer"),
        (plain(429, b"slow down"), "InvokeRateLimitError"),
    ],
)
async def test_failures(program, reason):
    async with connected(program, read_timeout=0.3) as (_, outbound):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await play(model(outbound))
        failed = describe_failure(caught.value)
        assert (failed.reason, failed.error_type) == (reason, None)
        if "timeout" in reason:
            assert "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT" in failed.error
    gc.collect()


async def test_no_connection_left():
    async with connected(answering(FIRST, end=False), max_connections=1, pool_timeout=0.1) as (_, outbound):
        async with model(outbound).request_stream(PROMPT, None, TEXT) as stream:
            await anext(aiter(stream))
            with pytest.raises(Exception) as caught:  # noqa: PT011
                await play(model(outbound))
    failed = describe_failure(caught.value)
    assert failed.reason == "outbound_pool_exhausted"
    assert "DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS" in failed.error


async def test_1200_cancelled_calls_leave_a_pool_of_5_usable():
    async def program(peer, stream, request):
        return await (answering(FIRST, end=False) if hanging else answering(FIRST, END))(peer, stream, request)

    hanging = True
    async with connected(program, max_connections=5, pool_timeout=60) as (peer, outbound):
        streaming = set()
        full = trio.Event()

        async def ask():
            asked = model(outbound)
            async with asked.request_stream(PROMPT, None, TEXT) as stream:
                async for _ in stream:
                    streaming.add(asked)
                    if len(streaming) == 5:
                        full.set()

        for _ in range(12):
            streaming.clear()
            full = trio.Event()
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(ask)
                with trio.fail_after(20):
                    await full.wait()
                nursery.cancel_scope.cancel()
        hanging = False
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(play, model(outbound))
        assert peer.most_open <= 5 + 1  # a connection that was just closed may not have been seen to be
        gc.collect()
