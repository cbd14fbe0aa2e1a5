"""What a script does to the connection really happens, and clients that leave are seen."""

import errno

import httpx2
import pytest
import trio
from tests.unit.testing.asking import (
    BOUND_SECONDS,
    CORE_TOOL,
    INNER_KEY,
    LLM,
    TOOL,
    ask,
    asking,
    contents,
    core_tool_body,
    envelopes,
    llm,
    llm_body,
    raw,
    tool_body,
    until,
)
from trio.testing import wait_all_tasks_blocked

from dify_agent.testing import Outcome, open_fakes


async def test_every_byte_is_a_packet_of_its_own() -> None:
    """As seen by HTTP: each piece of the chunked body has one byte, also those of a character of four."""
    async with asking(llm({"text": "\U0001f600", "one_byte_packets": True})) as (fakes, _):
        async with raw(fakes, LLM, llm_body()) as stream:
            _, _, body = (await until(stream, b"0\r\n\r\n")).partition(b"\r\n\r\n")
    sizes, text = [], b""
    while body != b"0\r\n\r\n":
        size, _, body = body.partition(b"\r\n")
        text, body = text + body[: int(size, 16)], body[int(size, 16) + 2 :]
        sizes.append(int(size, 16))
    assert set(sizes) == {1}
    assert contents(text.decode()) == ["\U0001f600"]
    assert len(sizes) == len(text)


async def test_chunks_share_a_write_when_told_to() -> None:
    async with asking(llm({"chunks": 10, "chunks_per_write": 4})) as (fakes, client):
        assert len(contents(await ask(client))) == 10
        async with raw(fakes, LLM, llm_body()) as stream:
            _, _, body = (await until(stream, b"0\r\n\r\n")).partition(b"\r\n\r\n")
    writes = 0
    while body != b"0\r\n\r\n":
        size, _, body = body.partition(b"\r\n")
        body, writes = body[int(size, 16) + 2 :], writes + 1
    assert writes == 3


async def test_empty_chunks_share_a_write_too() -> None:
    async with asking(llm({"raw": ["", "", "YWJj", "", "ZGVm"], "chunks_per_write": 2})) as (_, client):
        assert await ask(client) == "abcdef"


async def test_odd_lines() -> None:
    odd = "a\u2028b\u2029c\u0085d\x0be"
    step = {"text": odd, "newline": "crlf", "comments": True, "event_lines": True}
    async with asking(llm(step, {"text": odd, "prefix": False})) as (_, client):
        text = await ask(client)
        assert text.startswith(": a comment\r\nevent: message\r\nid: 1\r\ndata: {")
        assert text.endswith("}\r\n\r\n")
        assert "a\u2028b\u2029c\u0085d" in text  # raw, not escaped
        assert contents(text) == [odd]
        assert (await ask(client, LLM, llm_body(call_index=2))).startswith("{")


async def test_a_very_long_line() -> None:
    async with asking({"tools": [{"steps": [{"text": "t", "long_line_bytes": 1_000_000}]}]}) as (_, client):
        assert len(envelopes(await ask(client, TOOL))[1]["data"]["message"]["text"]) == 1_000_000


@pytest.mark.parametrize(("path", "kind"), [(LLM, "llm"), (TOOL, "tools"), (CORE_TOOL, "core_tools")])
async def test_a_reset_in_the_middle_of_a_chunk(path: str, kind: str) -> None:
    body = {LLM: llm_body, TOOL: tool_body, CORE_TOOL: core_tool_body}[path]()
    async with asking({kind: [{"steps": [{"end": "reset"}]}]}) as (fakes, _):
        async with raw(fakes, path, body) as stream:
            with pytest.raises(trio.BrokenResourceError) as broken:
                await until(stream, b"never")
        assert isinstance(broken.value.__cause__, OSError)
        assert broken.value.__cause__.errno == errno.ECONNRESET
        assert fakes.requests[-1].outcome is Outcome.CUT


async def test_a_close_in_the_middle_of_a_chunk_and_an_early_end() -> None:
    cut, early = {"chunks": 3, "end": "close"}, {"chunks": 3, "usage": None, "finish_reason": None}
    async with asking(llm(cut, early)) as (fakes, client):
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.post(LLM, json=llm_body())
        assert fakes.requests[-1].outcome is Outcome.CUT
        async with raw(fakes, LLM, llm_body()) as stream:
            received = b""
            while data := await stream.receive_some():
                received += data
        assert b'"tok "' in received
        assert received.endswith(b'1000\r\ndata: {"code":0,"mess')
        assert len(contents(await ask(client, LLM, llm_body(call_index=2)))) == 3
        assert fakes.requests[-1].outcome is Outcome.ANSWERED


@pytest.mark.parametrize("steps", [{"chunks": 2, "end": "hang"}, {"chunks": 2, "delay_ms": 3_600_000}])
async def test_a_client_that_leaves_a_stream_is_seen(steps: dict) -> None:
    async with asking(llm(steps)) as (fakes, _):
        async with raw(fakes, LLM, llm_body()) as stream:
            await until(stream, b"tok " if "end" in steps else b"\r\n\r\n")
            assert fakes.requests[-1].outcome is Outcome.OPEN
        gone = await fakes.requests.wait_for(lambda request: request.left)
        assert gone.status == 200
        assert (gone.sent_bytes > 0) is ("end" in steps)
        assert gone.seconds is not None


@pytest.mark.parametrize("step", [{"chunks": 1_000_000}, {"chunks": 1, "long_line_bytes": 50_000_000}])
async def test_a_client_that_leaves_in_the_midst_of_a_fast_stream_is_seen(step: dict) -> None:
    async with asking(llm(step)) as (fakes, _):
        async with raw(fakes, LLM, llm_body()) as stream:
            await until(stream, b"tok ")
        await fakes.requests.wait_for(lambda request: request.left)


@pytest.mark.parametrize("path", [LLM, CORE_TOOL])
async def test_silence_has_not_even_a_head(path: str) -> None:
    script = {"llm": [{"steps": [{"end": "silent"}]}], "core_tools": [{"steps": [{"end": "silent"}]}]}
    async with asking(script) as (fakes, _):
        body = llm_body() if path == LLM else core_tool_body()
        async with raw(fakes, path, body) as stream:
            await fakes.requests.wait_for(lambda request: request.outcome is Outcome.OPEN)
            with pytest.raises(trio.TooSlowError), trio.fail_after(0.1):
                await stream.receive_some()
        assert (await fakes.requests.wait_for(lambda request: request.left)).status is None


async def test_delays_come_before_the_head_and_before_each_chunk() -> None:
    script = {
        **llm({"chunks": 3, "delay_ms": 40, "first_delay_ms": 40}),
        "core_tools": [{"steps": [{"first_delay_ms": 60}]}],
    }
    async with asking(script) as (fakes, client):
        await ask(client)
        await ask(client, CORE_TOOL)
        streamed, whole = fakes.requests
        assert streamed.seconds >= 0.16
        assert whole.seconds >= 0.06


async def test_a_connection_is_kept_after_an_answer_of_each_kind() -> None:
    async with asking(llm({"chunks": 2}, {"http_error": {"status": 500}})) as (fakes, client):
        ports = set()
        for path, body in ((LLM, llm_body()), (LLM, llm_body(call_index=2)), (CORE_TOOL, core_tool_body())) * 3:
            async with client.stream("POST", path, json=body) as response:
                await response.aread()
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr")[1])
        assert len(ports) == 1
        assert {request.outcome for request in fakes.requests} == {Outcome.ANSWERED}


async def test_many_streams_at_once() -> None:
    async with asking(llm({"chunks": 20, "delay_ms": 2})) as (fakes, _):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(_whole_stream, fakes, f"run-{number}")
        assert len(fakes.requests) == 200
        assert {request.body["caller"]["agent_run_id"] for request in fakes.requests} == {
            f"run-{number}" for number in range(200)
        }


async def _whole_stream(fakes, run_id: str) -> None:
    async with raw(fakes, LLM, llm_body(run_id=run_id)) as stream:
        received = await until(stream, b"0\r\n\r\n")
    assert received.count(b'"tok "') == 20


async def test_a_client_that_leaves_in_its_body_is_no_request() -> None:
    async with asking() as (fakes, client):
        stream = await trio.open_tcp_stream(*fakes.address)
        with stream.socket:
            await stream.send_all(b"POST /inner/api/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        await ask(client)
        assert [request.path for request in fakes.requests] == [LLM]


async def _fail_while_an_answer_hangs(streams: list) -> None:
    async with open_fakes(llm({"end": "hang", "chunks": 1}), inner_key=INNER_KEY) as fakes:
        async with raw(fakes, LLM, llm_body()) as stream:
            await until(stream, b"tok ")
            streams += [fakes.requests, stream.socket.dup()]
            raise ZeroDivisionError


async def test_an_error_of_the_block_arrives_as_it_is_and_cuts_what_hangs() -> None:
    kept: list = []
    with trio.fail_after(BOUND_SECONDS), pytest.raises(ZeroDivisionError):
        await _fail_while_an_answer_hangs(kept)
    requests, connection = kept
    connection.close()
    assert requests[0].outcome is Outcome.STOPPED


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_reader_that_stalls_does_not_hold_the_end_of_the_block(cancelled: bool) -> None:
    script = llm({"chunks": 0, "long_line_bytes": 50_000_000})
    with trio.fail_after(BOUND_SECONDS), trio.CancelScope() as block:
        async with open_fakes(script, inner_key=INNER_KEY) as fakes:
            async with raw(fakes, LLM, llm_body()) as stream:
                await until(stream, b"x" * 1000)
                await wait_all_tasks_blocked(0.05)
                unread = stream.socket.dup()
            if cancelled:
                block.cancel(reason="the test is over")
                await trio.lowlevel.checkpoint()
    assert block.cancelled_caught is cancelled
    unread.close()
    assert fakes.requests[0].outcome is Outcome.STOPPED


async def test_a_body_that_is_too_large_and_an_upgrade_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dify_agent.testing.app.MAX_BODY_BYTES", 100_000)
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "a"}
    async with asking() as (fakes, client):
        assert (await client.post(LLM, content=b"x" * 1_000_000)).status_code == 413
        assert len(fakes.requests[0].raw_body) < 300_000
        assert (await client.get("/ws", headers=upgrade)).status_code in (400, 403)
        await ask(client)


async def test_raw_bytes_are_all_of_the_body() -> None:
    """Not UTF-8, no line end, a packet each; the members that would say more say nothing."""
    step = {"raw": ["/w==", "OmE="], "text": "unsaid", "delay_ms": 1}
    async with asking(llm(step)) as (fakes, client):
        assert (await client.post(LLM, json=llm_body())).content == b"\xff:a"
        async with raw(fakes, LLM, llm_body()) as stream:
            _, _, body = (await until(stream, b"0\r\n\r\n")).partition(b"\r\n\r\n")
    assert body == b"1\r\n\xff\r\n2\r\n:a\r\n0\r\n\r\n"
