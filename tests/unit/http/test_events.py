"""Polling pages and event streams through the app (protocol 1.6, 1.7, 2.10, 4.4 to 4.6)."""

import json

import pytest
import trio
from tests.unit.http.fakes import CREATED, FakeRun, FakeService, call, event, make_app
from trio.testing import wait_all_tasks_blocked

from dify_agent.events.envelope import sse_frame
from dify_agent.http.streams import PIECE_BYTES, encode_batch, event_stream
from dify_agent.metrics import Metrics
from dify_agent.protocol.event_id import START, EventId, missing_between
from dify_agent.supervisor.handle import TailBatch


def finished(*, first=1, last=3):
    run = FakeRun()
    run.add(*(event(n) for n in range(first, last)), event(last, "run_succeeded"))
    return run


async def test_a_page_is_the_stored_text_with_ids():
    run = FakeRun(events=[event(1, "run_started"), event(2, data='{"big":1E+2,"e":[],"u":"\u2028é"}')])
    answer = await call(make_app(FakeService(R=run)), "GET", "/runs/R/events")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.body.decode() == (
        '{"run_id":"R","events":['
        f'{{"id":"1000-1","run_id":"R","created_at":"{CREATED}","type":"run_started","data":{{}}}},'
        f'{{"id":"1000-2","run_id":"R","created_at":"{CREATED}","type":"pydantic_ai_event",'
        '"data":{"big":1E+2,"e":[],"u":"\u2028é"}}'
        '],"next_cursor":"1000-2"}'
    )


@pytest.mark.parametrize(
    ("query", "cursor"),
    [
        ("", "0-0"),
        ("?after=", "0-0"),
        ("?after=0", "0"),
        ("?after=007-01", "007-01"),
        ("?after=18446744073709551615-9", "18446744073709551615-9"),
    ],
)
async def test_an_empty_page_repeats_the_cursor_byte_for_byte(query, cursor):
    run = FakeRun()
    answer = await call(make_app(FakeService(R=run)), "GET", f"/runs/R/events{query}")
    assert answer.body == b'{"run_id":"R","events":[],"next_cursor":"%b"}' % cursor.encode()
    assert "x-events-trimmed" not in answer.headers


@pytest.mark.parametrize(
    ("query", "ordinals"),
    [
        ("", [1, 2, 3]),
        ("?after=1000-1", [2, 3]),
        ("?after=1000", [1, 2, 3]),
        ("?limit=2", [1, 2]),
        ("?after=1000-3", []),
        ("?limit=1&limit=3", [1, 2, 3]),
    ],
)
async def test_a_page_starts_behind_the_cursor(query, ordinals):
    answer = await call(make_app(FakeService(R=finished())), "GET", f"/runs/R/events{query}")
    assert [item["id"] for item in answer.json["events"]] == [f"1000-{n}" for n in ordinals]


def _item(kind, name, msg, value, ctx=None):
    item = {"type": kind, "loc": ["query", name], "msg": msg, "input": value}
    return item if ctx is None else item | {"ctx": ctx}


@pytest.mark.parametrize(
    ("query", "item"),
    [
        ("limit=0", _item("greater_than_equal", "limit", "Input should be greater than or equal to 1", "0", {"ge": 1})),
        (
            "limit=501",
            _item("less_than_equal", "limit", "Input should be less than or equal to 500", "501", {"le": 500}),
        ),
        (
            "limit=abc",
            _item(
                "int_parsing", "limit", "Input should be a valid integer, unable to parse string as an integer", "abc"
            ),
        ),
        (
            "limit=",
            _item("int_parsing", "limit", "Input should be a valid integer, unable to parse string as an integer", ""),
        ),
        (
            "wait=-1",
            _item("greater_than_equal", "wait", "Input should be greater than or equal to 0", "-1", {"ge": 0.0}),
        ),
        (
            "wait=30.1",
            _item("less_than_equal", "wait", "Input should be less than or equal to 30", "30.1", {"le": 30.0}),
        ),
        ("wait=nan", _item("finite_number", "wait", "Input should be a finite number", "nan")),
    ],
)
async def test_query_errors(query, item):
    answer = await call(make_app(FakeService(R=FakeRun())), "GET", f"/runs/R/events?{query}")
    assert (answer.status, answer.item) == (422, item)


CURSORS = [
    "zzz",
    "-",
    "$",
    "1-",
    "-1",
    "1-2-3",
    "18446744073709551616",
    "1-18446744073709551616",
    "%D9%A1",
    "1%00",
    " 1",
    "1 ",
]


@pytest.mark.parametrize("cursor", CURSORS)
@pytest.mark.parametrize("route", ["events", "events/sse"])
async def test_an_unparsable_cursor_is_422_on_every_transport(route, cursor):
    service = FakeService(R=FakeRun())
    answer = await call(make_app(service), "GET", f"/runs/R/{route}?after={cursor.replace(' ', '%20')}")
    assert answer.status == 422
    assert (answer.item["type"], answer.item["loc"]) == ("value_error", ["query", "after"])
    assert answer.item["ctx"] == {"error": {}}
    assert service.tails == []


async def test_all_query_errors_are_listed():
    answer = await call(make_app(FakeService(R=FakeRun())), "GET", "/runs/R/events?after=x&limit=0&wait=x")
    assert [item["loc"][1] for item in answer.detail] == ["after", "limit", "wait"]


@pytest.mark.parametrize(
    ("after", "first", "count"),
    [
        (START, EventId(5, 1), 0),
        (START, EventId(5, 4), 3),
        (EventId(5, 2), EventId(5, 3), 0),
        (EventId(5, 2), EventId(6, 10), 7),
        (EventId(5, 0), EventId(6, 10), 0),
        (EventId(4, 12), EventId(6, 10), 0),
    ],
)
def test_missing_events_are_counted_only_where_that_is_known(after, first, count):
    assert missing_between(after, first) == count


@pytest.mark.parametrize(("query", "count"), [("", "4"), ("?after=1000-2", "2"), ("?after=1000-5", None)])
async def test_a_page_tells_how_many_events_were_trimmed(query, count):
    answer = await call(make_app(FakeService(R=finished(first=5, last=9))), "GET", f"/runs/R/events{query}")
    assert answer.headers.get("x-events-trimmed") == count


async def test_poll_waits_for_the_first_event(autojump_clock):
    run = FakeRun()
    app = make_app(FakeService(R=run))
    answers = []

    async def poll():
        answers.append(await call(app, "GET", "/runs/R/events?wait=30&limit=1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await wait_all_tasks_blocked()
        assert answers == []
        run.add(event(3), event(4))
    assert trio.current_time() < 1_000_000 + 30
    assert [item["id"] for item in answers[0].json["events"]] == ["1000-3"]
    assert answers[0].json["next_cursor"] == "1000-3"
    assert answers[0].headers["x-events-trimmed"] == "2"


async def test_poll_gives_up_after_its_wait(autojump_clock):
    service = FakeService(R=FakeRun())
    start = trio.current_time()
    answer = await call(make_app(service), "GET", "/runs/R/events?wait=12.5&after=7-1")
    assert trio.current_time() - start == pytest.approx(12.5)
    assert answer.body == b'{"run_id":"R","events":[],"next_cursor":"7-1"}'
    assert service.tails[0].cancelled == 1


@pytest.mark.parametrize("query", ["", "?wait=0"])
async def test_poll_without_wait_never_opens_a_tail(query):
    service = FakeService(R=FakeRun())
    assert (await call(make_app(service), "GET", f"/runs/R/events{query}")).status == 200
    assert service.tails == []


async def test_poll_of_a_finished_run_does_not_wait(autojump_clock):
    start = trio.current_time()
    await call(make_app(FakeService(R=finished())), "GET", "/runs/R/events?wait=30&after=1000-3")
    assert trio.current_time() == start


async def test_poll_ends_its_wait_on_drain():
    service = FakeService(R=FakeRun())
    service.draining = True
    answer = await call(make_app(service), "GET", "/runs/R/events?wait=30")
    assert (answer.status, answer.json["events"]) == (200, [])


async def test_poll_of_a_run_that_expires_meanwhile_is_404():
    class ExpiredTail:
        def close(self) -> None: ...

        async def next(self):
            await trio.lowlevel.checkpoint()
            return TailBatch(end="expired")

    class Service(FakeService):
        async def open_tail(self, run_id, after):
            await trio.lowlevel.checkpoint()
            return ExpiredTail()

    answer = await call(make_app(Service(R=FakeRun())), "GET", "/runs/R/events?wait=30")
    assert (answer.status, answer.detail) == (404, "run not found")


async def test_stream_of_a_finished_run_is_a_replay_that_ends():
    run = finished()
    answer = await call(make_app(FakeService(R=run)), "GET", "/runs/R/events/sse")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "content-length" not in answer.headers
    assert answer.body == b"".join(sse_frame(str(e.id), e.type, e.payload) for e in run.events)
    assert len(answer.chunks) == 1, "events that are ready together leave in one write"


async def test_frame_format():
    run = FakeRun()
    run.add(event(1, "run_failed", data='{"error":"a\u0085b\u2028c\u2029d\u00e9"}'))
    answer = await call(make_app(FakeService(R=run)), "GET", "/runs/R/events/sse")
    assert answer.body.decode() == (
        "id: 1000-1\n"
        "event: run_failed\n"
        f'data: {{"id":"1000-1","run_id":"R","created_at":"{CREATED}","type":"run_failed",'
        '"data":{"error":"a\\u0085b\\u2028c\\u2029dé"}}\n'
        "\n"
    )


@pytest.mark.parametrize(
    ("query", "header", "start"),
    [
        ("", None, START),
        ("?after=", None, START),
        ("?after=", "", START),
        ("", "9-1", EventId(9, 1)),
        ("?after=", "9-1", EventId(9, 1)),
        ("?after=5-2", "9-1", EventId(5, 2)),
        ("?after=5-2", "zzz", EventId(5, 2)),
        ("?after=5", None, EventId(5, 0)),
    ],
)
async def test_where_a_stream_starts(query, header, start):
    service = FakeService(R=finished())
    headers = {} if header is None else {"Last-Event-ID": header}
    answer = await call(make_app(service), "GET", f"/runs/R/events/sse{query}", headers=headers)
    assert answer.status == 200
    assert service.tails[0].start == start


async def test_an_unparsable_last_event_id_is_422():
    answer = await call(
        make_app(FakeService(R=FakeRun())), "GET", "/runs/R/events/sse", headers={"Last-Event-ID": "zzz"}
    )
    assert (answer.status, answer.item["loc"], answer.item["input"]) == (422, ["header", "last-event-id"], "zzz")


@pytest.mark.parametrize("cursor", ["1000-3", "1000-4", "2000-1"])
async def test_stream_at_or_behind_the_terminal_event_ends_at_once_without_an_event(cursor):
    answer = await call(make_app(FakeService(R=finished())), "GET", f"/runs/R/events/sse?after={cursor}")
    assert (answer.status, answer.body) == (200, b"")


async def test_stream_tells_how_many_events_were_trimmed_before_the_first():
    answer = await call(make_app(FakeService(R=finished(first=5, last=6))), "GET", "/runs/R/events/sse")
    assert answer.body.startswith(b": trimmed 4\n\nid: 1000-5\n")


async def test_stream_ends_on_drain_without_an_event():
    service = FakeService(R=FakeRun(events=[event(1)]))
    service.draining = True
    answer = await call(make_app(service), "GET", "/runs/R/events/sse")
    assert answer.body.count(b"id: ") == 1
    assert answer.headers["connection"] == "close"


async def test_heartbeats_come_after_fifteen_seconds_of_silence(autojump_clock):
    run = FakeRun()
    service = FakeService(R=run)
    app = make_app(service)
    answers = []

    async def read():
        answers.append(await call(app, "GET", "/runs/R/events/sse"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(14)
        run.add(event(1))
        await trio.sleep(14)
        run.add(event(2))
        await trio.sleep(31)
        run.add(event(3, "run_succeeded"))
    chunks = answers[0].chunks
    assert [chunk.split(b"\n")[0] for chunk in chunks] == [
        b"id: 1000-1",
        b"id: 1000-2",
        b": keepalive",
        b": keepalive",
        b"id: 1000-3",
    ]
    assert chunks[2] == b": keepalive\n\n"


async def test_a_body_that_is_left_gives_up_its_tail():
    service = FakeService(R=FakeRun(events=[event(1)]))
    response = event_stream(await service.open_tail("R", START), 15, Metrics())
    async with response.response as chunks:
        assert await anext(aiter(chunks))
        assert not service.tails[0].closed
    assert service.tails[0].closed


async def test_a_body_that_is_cancelled_while_it_waits_gives_up_its_tail():
    service = FakeService(R=FakeRun())
    response = event_stream(await service.open_tail("R", START), 15, Metrics())
    with trio.move_on_after(0.05) as scope:
        async with response.response as chunks:
            await anext(aiter(chunks))
    assert scope.cancelled_caught
    assert service.tails[0].closed


async def test_a_log_that_is_always_ready_lets_others_run():
    run = FakeRun()
    run.add(*(event(n) for n in range(1, 50)))
    response = event_stream(await FakeService(R=run).open_tail("R", START), 15, Metrics())
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async with response.response as chunks:
            for n in range(50, 60):
                run.add(event(n))
                await anext(aiter(chunks))
        nursery.cancel_scope.cancel()
    assert turns >= 9


def test_an_empty_batch_writes_nothing():
    assert list(encode_batch(TailBatch(end="terminal"))) == []
    assert list(encode_batch(TailBatch(trimmed=2))) == [b": trimmed 2\n\n"]


async def test_a_long_batch_leaves_in_pieces_of_several_events_and_a_huge_event_alone():
    small, huge = '"' + "x" * 60_000 + '"', '"' + "x" * 600_000 + '"'
    run = FakeRun()
    run.add(*(event(n, data=small) for n in range(1, 11)), event(11, data=huge), event(12, data=small))
    run.add(event(13, "run_succeeded"))
    answer = await call(make_app(FakeService(R=run)), "GET", "/runs/R/events/sse")
    assert [chunk.count(b"\nevent: ") for chunk in answer.chunks] == [4, 4, 2, 1, 2]
    assert [len(chunk) > PIECE_BYTES for chunk in answer.chunks] == [False, False, False, True, False]
    assert [int(line.rpartition(b"-")[2]) for line in answer.body.split(b"\n") if line.startswith(b"id: ")] == [
        *range(1, 14)
    ]


async def test_page_of_events_is_valid_json_for_any_run_id():
    name = 'quote"and\\'
    answer = await call(make_app(FakeService(**{name: FakeRun()})), "GET", "/runs/quote%22and%5C/events")
    assert json.loads(answer.body)["run_id"] == name
