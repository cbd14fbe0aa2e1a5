"""What bounds a run: its deadline, its request limit, and a bound for work that ignores its cancellation."""

import json
import signal
from collections.abc import Iterator

import pytest
import trio
from tests.server.bodies import HANG, STREAM_THEN_HANG, calling, run_of, text_run, tool_run
from tests.server.clients import TERMINALS, Api, open_api, open_stream, stream_of
from tests.server.harness import Server, StoreServer, launched, serving, stored_records, until

STUBBORN_MS = 60_000
LEFT_BEHIND = "run ignores cancellation, left behind"


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    with serving(store.url, cancel_timeout_seconds=0.3, announced=[LEFT_BEHIND]) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [tool_run(hang=True, swallow_cancel_ms=3000), tool_run(delay_ms=3000, thread=True)],
    ids=["swallows", "thread"],
)
async def test_a_tool_that_ignores_cancellation_does_not_hold_the_run(server, api: Api, body):
    run_id = await api.create(body)
    await api.events_until(run_id, "function_tool_call")
    with trio.fail_after(2):
        await api.cancel(run_id, message="now")
        events = await api.finished(run_id)
    assert events[-1]["type"] == "run_cancelled"
    assert events[-1]["data"]["message"] == "now"
    assert LEFT_BEHIND in server.log
    assert (await api.run(text_run()))[-1]["type"] == "run_succeeded", "the replica serves on"


@pytest.mark.slow
@pytest.mark.parametrize("swallow_cancel_ms", [100, 250])
async def test_a_tool_that_swallows_cancellation_for_a_moment_does_not_turn_it_into_success(
    api: Api, swallow_cancel_ms
):
    run_id = await api.create(tool_run(hang=True, swallow_cancel_ms=swallow_cancel_ms))
    await api.events_until(run_id, "function_tool_call")
    await api.cancel(run_id)
    events = await api.finished(run_id)
    assert events[-1]["type"] == "run_cancelled"
    assert "function_tool_result" not in [event["data"].get("event_kind") for event in events]


@pytest.mark.slow
async def test_stuck_work_cannot_keep_the_process_from_ending(store: StoreServer):
    """The watchdog bounds the whole shutdown, also what comes after the drain (architecture 7)."""
    with launched(store.url, cancel_timeout_seconds=0.2, shutdown_limit_seconds=3) as server:
        server.wait_listening()
        async with open_api(server) as api:
            run_id = await api.create(tool_run(hang=True, swallow_cancel_ms=STUBBORN_MS))
            await api.events_until(run_id, "function_tool_call")
            await api.cancel(run_id)
            await api.finished(run_id)
        server.tell(signal.SIGTERM)
        assert await server.exit_status(within=8) == 75


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["0.01", "0.5"])
async def test_the_deadline_ends_silent_streaming_and_stubborn_work(store: StoreServer, seconds):
    """C20, with the snapshot and the usage that are known, and resources released."""
    bounds = {"run_timeout_seconds": seconds, "cancel_timeout_seconds": 0.3}
    with serving(store.url, announced=[LEFT_BEHIND], **bounds) as server:
        async with open_api(server) as api:
            for body in (
                run_of(HANG),
                run_of(STREAM_THEN_HANG),
                tool_run(hang=True),
                tool_run(hang=True, swallow_cancel_ms=1500),
            ):
                with trio.fail_after(4):
                    run_id = await api.create(body)
                    events = await api.finished(run_id)
                data = events[-1]["data"]
                assert events[-1]["type"] == "run_failed"
                assert data["error"] == f"Agent run exceeded the configured limit of {seconds} seconds"
                assert (data["error_type"], data["reason"]) == ("agent_run_limit_exceeded", None)
                record = await api.status(run_id)
                assert (record["error"], record["error_type"]) == (data["error"], "agent_run_limit_exceeded")
                if "swallow" not in json.dumps(body):
                    assert {layer["lifecycle_state"] for layer in data["session_snapshot"]["layers"]} == {"suspended"}


@pytest.mark.slow
async def test_request_501_is_refused(server, api: Api):
    run_id = await api.create(run_of(calling("probe"), tools=({"name": "probe", "result": 1},)))
    frames = await stream_of(server, run_id)
    data = frames[-1].json["data"]
    assert frames[-1].event == "run_failed"
    assert data["error"].startswith("The next request would exceed the request_limit of 500")
    assert (data["error_type"], data["reason"]) == ("agent_run_limit_exceeded", None)
    results = [frame for frame in frames if '"event_kind":"function_tool_result"' in frame.data]
    assert len(results) == 500
    assert data["usage"]["completion_tokens"] == 500


@pytest.mark.slow
async def test_a_reader_that_leaves_does_not_touch_the_run(server, api: Api):
    run_id = await api.create(run_of({"chunks": 20, "delay_ms": 20}))
    for _ in range(5):
        async with open_stream(server, run_id) as stream:
            frame = await stream.frame()
            assert frame is not None
            assert frame.event == "run_started"
    with trio.move_on_after(0.02):
        await api.client.get(f"/runs/{run_id}/events", params={"wait": "20", "after": "9999999999999-1"})
    events = await api.finished(run_id)
    assert events[-1]["type"] == "run_succeeded"
    assert events[-1]["data"]["output"] == "tok " * 20


@pytest.mark.slow
async def test_a_creator_that_leaves_before_the_answer_does_not_touch_the_run(store: StoreServer, server, api: Api):
    """Every run that was created goes on to its end, although nobody heard its id."""
    before = {record["run_id"] for record in stored_records(store, server.prefix)}
    body = json.dumps(run_of({"chunks": 5, "delay_ms": 10})).encode()
    head = b"POST /runs HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    for _ in range(20):
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        await stream.send_all(head % len(body) + body)
        stream.socket.close()
    # A request behind the others on a fresh connection: what was accepted before it has been looked at.
    await api.run(text_run())

    def created() -> list[dict]:
        return [record for record in stored_records(store, server.prefix) if record["run_id"] not in before]

    await until(lambda: all(record["status"] != "running" for record in created()), "every run ends")
    assert len(created()) > 1, "no abandoned request came far enough to create a run"
    assert {record["status"] for record in created()} == {"succeeded"}
    for record in created():
        events = await api.finished(record["run_id"])
        assert [event["type"] for event in events if event["type"] in TERMINALS] == ["run_succeeded"]
