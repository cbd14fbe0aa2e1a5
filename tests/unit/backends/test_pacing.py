"""Lines that say nothing, as many as a read holds: others have their turns meanwhile, and there is an end."""

from contextlib import asynccontextmanager

import pytest
import trio
from tests.unit.backends.peer import END, HEAD, connected, http_chunk
from tests.unit.backends.test_pool import Turns

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.transport import DIFY_API
from dify_agent.errors import RunFailedError
from dify_agent.layers.dify_plugin import tools_client
from dify_agent.model.dify import answer as answers
from dify_agent.model.dify.lines import MAX_LINE_BYTES

NOBODYS = Redactor([])
LINES = 20_000
NOTHING = [b"\n", b":\n", b"id:\n", b"data:\n"]
ITEM = b'data: {"code":0,"data":{"type":"text","message":{"text":"said"}}}\n'


def saying(*chunks):
    async def program(_peer, stream, _request):
        await stream.send_all(HEAD + b"".join(map(http_chunk, chunks)) + END)
        return True

    return program


@asynccontextmanager
async def answered(outbound, url, repeated=0):
    request = outbound.dify_api.build_request("POST", url)
    limit = MAX_LINE_BYTES + repeated
    async with answers.open_answer(
        outbound.dify_api, request, peer=DIFY_API, redactor=NOBODYS, model_name="m", max_line_bytes=limit
    ) as answer:
        yield answer


async def all_of(answer):
    """How many lines have content."""
    read = 0
    while await answer.next_payload() is not None:
        read += 1
    return read


async def model(outbound, url):
    async with answered(outbound, url) as answer:
        said = await answer.next_payload()
        assert await answer.next_payload() is None
        return said


async def tool(outbound, _url):
    return await tools_client.invoke_tool(outbound, tenant_id="t", plugin_id="p", content=b"{}", redactor=NOBODYS)


@pytest.mark.parametrize("ask", [model, tool])
@pytest.mark.parametrize("line", NOTHING)
async def test_lines_without_content_leave_turns_to_others(ask, line):
    turns = Turns()
    async with connected(saying(line * LINES + ITEM)) as (peer, outbound), trio.open_nursery() as nursery:
        nursery.start_soon(turns.count)
        said = await ask(outbound, peer.url)
        nursery.cancel_scope.cancel(reason="the test is over")
    assert b"said" in (said if isinstance(said, bytes) else said.encode())
    assert turns.taken >= LINES // 128


async def test_lines_with_content_that_becomes_no_event_leave_turns_to_others():
    """The stream of a model asks for the next line without a wait of its own when one has brought nothing."""
    turns = Turns()
    async with connected(saying(b"{}\n" * LINES)) as (peer, outbound), answered(outbound, peer.url) as answer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.count)
            assert await all_of(answer) == LINES
            nursery.cancel_scope.cancel(reason="the test is over")
    assert turns.taken >= LINES // 128


@pytest.mark.parametrize("line", [*NOTHING, b"{}\n"])
async def test_lines_of_a_models_answer_have_an_end(monkeypatch, line):
    monkeypatch.setattr(answers, "MAX_READ_BYTES", 64_000)
    async with connected(saying(*[line] * 2000)) as (peer, outbound), answered(outbound, peer.url) as answer:
        with pytest.raises(RunFailedError, match="more than 64000 bytes") as caught:
            await all_of(answer)
    assert caught.value.reason == "upstream_answer_too_large"


async def test_what_lines_repeat_of_the_request_does_not_count(monkeypatch):
    monkeypatch.setattr(answers, "MAX_READ_BYTES", 100_000)
    lines = [b"[%b]\n" % (b"1" * 10_000)] * 1000
    async with connected(saying(*lines)) as (peer, outbound):
        async with answered(outbound, peer.url, repeated=10_000) as answer:
            assert await all_of(answer) == 1000
        async with answered(outbound, peer.url, repeated=9_000) as answer:
            with pytest.raises(RunFailedError, match="more than 100000 bytes"):
                await all_of(answer)


@pytest.mark.parametrize("line", NOTHING)
async def test_lines_of_a_tools_reply_have_an_end(monkeypatch, line):
    monkeypatch.setattr(tools_client, "MAX_REPLY_BYTES", 64_000)
    async with connected(saying(*[line] * 2000)) as (peer, outbound):
        with pytest.raises(ValueError, match="larger than 64000 bytes"):
            await tool(outbound, peer.url)
