"""Leaving replies, whatever their connections do, and what errors say."""

import json

import httpx2
import pytest
import trio
from structlog.testing import capture_logs

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.replies import CLOSE_SECONDS, ReplyBody, innermost_error, json_object
from dify_agent.backends.transport import PLUGIN_DAEMON
from dify_agent.layers.outbound_call import posted
from dify_agent.model.dify.answer import open_answer


class Body(httpx2.AsyncByteStream):
    """Says something and falls silent until it is closed. Closing raises, or takes so many seconds."""

    def __init__(self, closing: Exception | float) -> None:
        self._closing = closing
        self.closes = 0
        self._closed = trio.Event()

    async def __aiter__(self):
        yield b"half"
        await self._closed.wait()
        raise httpx2.ReadError("closed")

    async def aclose(self) -> None:
        self.closes += 1
        self._closed.set()
        if isinstance(self._closing, Exception):
            raise self._closing
        await trio.sleep(self._closing)


def client(body: Body) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, stream=body)))


def asked(body: Body):
    return posted(client(body), "http://dify.test/", b"{}")


def answered(body: Body):
    http = client(body)
    request = http.build_request("POST", "http://dify.test/")
    return open_answer(http, request, peer=PLUGIN_DAEMON, redactor=Redactor([]), model_name="m", max_line_bytes=1000)


@pytest.mark.parametrize("opened", [asked, answered])
@pytest.mark.parametrize("closing", [httpx2.CloseError("broken"), OSError("broken"), RuntimeError("broken")])
async def test_a_cancelled_holder_is_cancelled_even_when_closing_fails(autojump_clock, opened, closing):
    body = Body(closing)
    with trio.move_on_after(1) as scope:
        async with opened(body):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert body.closes == 1


@pytest.mark.parametrize("opened", [asked, answered])
async def test_a_cancelled_reader_is_cancelled_even_when_closing_fails(autojump_clock, opened):
    body = Body(httpx2.CloseError("broken"))
    with trio.move_on_after(1) as scope:
        async with opened(body) as reply:
            await (reply.read(100) if opened is asked else reply.next_payload())
    assert scope.cancelled_caught
    assert body.closes == 1


@pytest.mark.parametrize("opened", [asked, answered])
async def test_an_error_that_does_not_end_is_cut_even_when_closing_fails(autojump_clock, opened):
    async with opened(Body(httpx2.CloseError("broken"))) as reply:
        assert await reply.read_error() == b"half"


@pytest.mark.parametrize("opened", [asked, answered])
@pytest.mark.parametrize("closing", [httpx2.CloseError("broken"), OSError("broken")])
async def test_what_the_reader_raises_counts_more_than_what_closing_does(opened, closing):
    with pytest.raises(LookupError, match="mine"):
        async with opened(Body(closing)):
            raise LookupError("mine")
    async with opened(Body(closing)):
        pass


@pytest.mark.parametrize("opened", [asked, answered])
async def test_closing_is_bounded_and_the_operator_is_told_once(autojump_clock, opened):
    began = trio.current_time()
    with capture_logs() as logs:
        async with opened(Body(3600.0)):
            pass
    assert trio.current_time() - began == pytest.approx(CLOSE_SECONDS)
    [line] = logs
    assert (line["log_level"], line["host"], line["seconds"]) == ("warning", "dify.test", CLOSE_SECONDS)
    assert "did not close in time" in line["event"]


async def test_a_reply_can_be_closed_twice_and_in_time():
    with capture_logs() as logs:
        async with client(Body(0.0)).stream("GET", "http://dify.test/") as response:
            body = ReplyBody(response)
            assert await anext(body) == b"half"
            await body.aclose()
            await body.aclose()
    assert logs == []


def typed(kind, message):
    return json.dumps({"error_type": kind, "message": message})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (typed("A", "why"), ("A", "why")),
        (typed("A", "why").encode(), ("A", "why")),
        (typed("A", None), ("A", "")),
        (typed("A", typed("B", "why")), ("A", typed("B", "why"))),
        (typed("PluginInvokeError", typed("PluginInvokeError", typed("B", "why"))), ("B", "why")),
        (typed("PluginInvokeError", "why"), ("PluginInvokeError", "why")),
        (typed("PluginInvokeError", {"a": 1}), ("PluginInvokeError", "")),
        (typed("", "why"), None),
        (typed(5, "why"), None),
        ('{"message": "why"}', None),
        ("why", None),
        ("[]", None),
        (b"\xff", None),
        ("[" * 100_000, None),
        (None, None),
    ],
)
def test_the_innermost_error(text, found):
    assert innermost_error(text) == found


def test_errors_wrapped_for_ever_end():
    text = "why"
    for _ in range(12):
        text = typed("PluginInvokeError", text)
    assert innermost_error(text) == ("PluginInvokeError", "why")


@pytest.mark.parametrize(("text", "found"), [("{}", {}), (b'{"a":1}', {"a": 1}), ("[]", None), ("{", None), (5, None)])
def test_an_object_in_text(text, found):
    assert json_object(text) == found
