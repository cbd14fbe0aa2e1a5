"""Poll and event stream are two views of one log: same ids, same JSON, no gap, no double, wherever a reader resumes."""

import json
from collections.abc import Iterator

import pytest
import trio
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of, text_run, tool_run
from tests.server.clients import TERMINALS, Api, Frame, kind_of, open_api, open_stream, stream_of
from tests.server.harness import Server, StoreServer, serving

FUTURE = "9999999999999-7"


@pytest.fixture(scope="module")
def server(store: StoreServer) -> Iterator[Server]:
    """Every delta is an event of its own, so that a script decides how long a log is."""
    with serving(store.url, stream_text_delta_coalescing_enabled="false") as started:
        yield started


def assert_whole(frames: list[Frame], run_id: str) -> None:
    """A complete log: from run_started to the one terminal event, ids without a gap (decision R2)."""
    ids = [frame.id for frame in frames]
    assert [int(each.split("-")[1]) for each in ids] == list(range(1, len(ids) + 1))
    assert frames[0].event == "run_started"
    assert [frame.event in TERMINALS for frame in frames] == [False] * (len(frames) - 1) + [True]
    for frame in frames:
        event = frame.json
        assert (event["id"], event["type"], event["run_id"]) == (frame.id, frame.event, run_id)


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        (run_of({"thinking": "Hm.", "chunks": 20, "chunk": "tok "}), "run_succeeded"),
        (tool_run(result={"sky": "clear", "celsius": -3}), "run_succeeded"),
        (run_of({"error": "the model is tired", "after_chunks": 2}), "run_failed"),
        (run_of(STREAM_THEN_HANG), "run_cancelled"),
    ],
    ids=["text", "tool", "failure", "cancel"],
)
async def test_poll_and_stream_are_the_same_bytes(server, api: Api, body, ending):
    run_id = await api.create(body)
    if ending == "run_cancelled":
        await api.events_until(run_id, "part_delta")
        await api.cancel(run_id, reason="enough", message="Stop it")
    frames = await stream_of(server, run_id)
    assert_whole(frames, run_id)
    assert frames[-1].event == ending

    page = (await api.client.get(f"/runs/{run_id}/events", params={"limit": "500"})).content
    events = ",".join(frame.data for frame in frames)
    expected = f'{{"run_id":"{run_id}","events":[{events}],"next_cursor":"{frames[-1].id}"}}'
    assert page.decode() == expected
    record = await api.status(run_id)
    assert record["status"] == ending.removeprefix("run_")
    assert record["updated_at"] == frames[-1].json["created_at"]


async def test_the_stream_has_the_headers_that_keep_proxies_from_holding_it_back(server, api: Api):
    async with open_stream(server, await api.create(text_run())) as stream:
        await stream.rest()
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-cache"
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.comments == []


async def next_after(server: Server, run_id: str, cursor: str, way: str) -> Frame | None:
    position = {} if cursor == "" else {way: cursor}
    async with open_stream(server, run_id, **position) as stream:
        return await stream.frame()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["after", "last_event_id"])
@pytest.mark.parametrize("delay_ms", [6, 0], ids=["live", "stored"])
async def test_reconnecting_after_every_event_gives_the_log(server, api: Api, way, delay_ms):
    run_id = await api.create(run_of({"chunks": 295, "chunk": "t ", "delay_ms": delay_ms}))
    if not delay_ms:
        await api.finished(run_id)
    frames: list[Frame] = []
    with trio.fail_after(60):
        while not frames or frames[-1].event not in TERMINALS:
            frame = await next_after(server, run_id, frames[-1].id if frames else "", way)
            assert frame is not None
            frames.append(frame)
    assert len(frames) == 300
    assert_whole(frames, run_id)
    assert await stream_of(server, run_id) == frames


async def test_after_beats_last_event_id(server, api: Api):
    """C18, and Q14: an empty ``after`` is none."""
    run_id = await api.create(run_of({"chunks": 10}))
    ids = [event["id"] for event in await api.finished(run_id)]
    for after, header, expected in [
        (ids[2], ids[7], ids[3]),
        (ids[7], ids[2], ids[8]),
        ("", ids[4], ids[5]),
        ("", "", ids[0]),
        ("0-0", ids[4], ids[0]),
    ]:
        async with open_stream(server, run_id, after=after, last_event_id=header) as stream:
            frame = await stream.frame()
        assert frame is not None
        assert frame.id == expected


async def test_a_cursor_at_or_behind_the_terminal_ends_the_stream_at_once(server, api: Api):
    """D5, for both ways to give it; the poll page repeats the cursor byte for byte (Q13)."""
    run_id = await api.create(text_run())
    last = (await api.finished(run_id))[-1]["id"]
    for cursor in (last, FUTURE, FUTURE.split("-", maxsplit=1)[0]):
        for way in ("after", "last_event_id"):
            with trio.fail_after(5):
                assert await stream_of(server, run_id, **{way: cursor}) == []
        page = await api.page(run_id, after=cursor)
        assert page == {"run_id": run_id, "events": [], "next_cursor": cursor}


@pytest.mark.slow
async def test_a_future_cursor_on_a_running_run_waits_and_ends_with_it(server, api: Api):
    run_id = await api.create(run_of(HANG))
    await api.events_until(run_id, "run_started")
    async with open_stream(server, run_id, after=FUTURE) as stream:
        with trio.move_on_after(0.3) as scope:
            await stream.frame()
        assert scope.cancelled_caught, "the stream ended although the run has not"
        await api.cancel(run_id)
        assert await stream.rest() == []


@pytest.mark.slow
async def test_pages_of_any_size_make_up_the_log(api: Api):
    run_id = await api.create(run_of({"chunks": 45}))
    whole = await api.finished(run_id)
    assert len(whole) == 50
    for limit in (1, 7, 50, 500):
        cursor, collected = "0-0", []
        while (page := await api.page(run_id, after=cursor, limit=limit))["events"]:
            assert len(page["events"]) == min(limit, len(whole) - len(collected))
            collected += page["events"]
            cursor = page["next_cursor"]
            assert cursor == page["events"][-1]["id"]
        assert collected == whole


async def test_a_page_holds_100_events_unless_told_otherwise(api: Api):
    run_id = await api.create(run_of({"chunks": 120}))
    await api.finished(run_id)
    assert len((await api.page(run_id))["events"]) == 100


@pytest.mark.slow
async def test_wait_answers_when_the_next_event_is_there(api: Api):
    run_id = await api.create(run_of(HANG))
    last = (await api.events_until(run_id, "run_started"))[-1]["id"]
    began = trio.current_time()
    page = await api.page(run_id, after=last, wait=0.3)
    assert trio.current_time() - began >= 0.3
    assert page == {"run_id": run_id, "events": [], "next_cursor": last}

    pages = []

    async def poll() -> None:
        pages.append(await api.page(run_id, after=last, wait=15))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await api.cancel(run_id)
    assert [event["type"] for event in pages[0]["events"]] == ["run_cancelled"]
    page = await api.page(run_id, after=pages[0]["next_cursor"], wait=15)
    assert page["events"] == [], "a finished run has nothing to wait for"
    assert trio.current_time() - began < 10


@pytest.mark.parametrize(
    "query", ["after=zzz", "after=1-2-3", "after=-", "limit=0", "limit=501", "wait=31", "wait=-1", "wait=nan"]
)
async def test_bad_queries_are_refused_before_anything_starts(api: Api, query):
    run_id = await api.create(text_run())
    response = await api.client.get(f"/runs/{run_id}/events?{query}")
    assert response.status_code == 422
    assert [item["loc"] for item in response.json()["detail"]] == [["query", query.split("=")[0]]]
    if query.startswith("after"):
        response = await api.client.get(f"/runs/{run_id}/events/sse?{query}")
        assert response.status_code == 422


async def test_unknown_runs_are_404_everywhere(api: Api):
    for path in ("", "/events", "/events/sse"):
        response = await api.client.get(f"/runs/00000000-0000-4000-8000-000000000000{path}")
        assert (response.status_code, response.json()) == (404, {"detail": "run not found"})


@pytest.mark.slow
async def test_fifty_create_then_stream_clients_of_short_runs_each_see_the_whole_log(server, api: Api):
    logs: dict[str, list[Frame]] = {}

    async def client(number: int) -> None:
        text = f"answer {number}"
        run_id = await api.create(run_of({"text": text, "delay_ms": 5}))
        logs[run_id] = await stream_of(server, run_id)
        assert logs[run_id][-1].json["data"]["output"] == text

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(client, number)
    assert len(logs) == 50
    for run_id, frames in logs.items():
        assert_whole(frames, run_id)
        assert frames[-1].event == "run_succeeded"


async def test_a_text_run_has_the_events_of_the_contract(api: Api):
    """Appendix B: the typical plain-text run; the deltas add up to the output."""
    events = await api.run(run_of({"chunks": 3, "chunk": "tok "}))
    assert [kind_of(event) for event in events] == [
        "run_started",
        "part_start",
        "final_result",
        *["part_delta"] * 3,
        "part_end",
        "run_succeeded",
    ]
    deltas = [event.get("agent_message_delta") for event in events]
    assert "".join(delta for delta in deltas if delta is not None) == "tok tok tok "
    data = events[-1]["data"]
    assert list(data) == ["session_snapshot", "output", "usage"]
    assert data["output"] == "tok tok tok "
    assert (data["usage"]["prompt_tokens"], data["usage"]["completion_tokens"]) == (10, 3)
    assert json.loads(json.dumps(events[0])) == {**events[0], "data": {}}


@pytest.mark.slow
async def test_a_reader_is_told_how_many_events_were_trimmed(store: StoreServer):
    """R4, C16, on both transports; the notice is no event and has no id."""
    settings = {"stream_text_delta_coalescing_enabled": "false", "run_event_stream_max_length": 100}
    with serving(store.url, **settings) as small:
        async with open_api(small) as api:
            run_id = await api.create(run_of({"chunks": 1000}))
            async with open_stream(small, run_id) as live:
                assert [frame.event for frame in await live.rest()][-1] == "run_succeeded"
            async with open_stream(small, run_id) as stream:
                frames = await stream.rest()
            assert 100 <= len(frames) <= 200
            missing = 1005 - len(frames)
            assert stream.comments == [b": trimmed %d" % missing]
            assert [int(frame.id.split("-")[1]) for frame in frames] == list(range(missing + 1, 1006))
            assert frames[-1].event == "run_succeeded"
            response = await api.client.get(f"/runs/{run_id}/events", params={"limit": "500"})
            assert response.headers["x-events-trimmed"] == str(missing)
            assert [event["id"] for event in response.json()["events"]] == [frame.id for frame in frames]
            response = await api.client.get(f"/runs/{run_id}/events", params={"after": frames[0].id})
            assert "x-events-trimmed" not in response.headers
