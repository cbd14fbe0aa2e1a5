"""The timer: text goes out when its deadline passes and the source waits, and only then."""

import pytest
import trio
import trio.lowlevel
from pydantic_ai.messages import PartDeltaEvent, PartEndEvent, TextPart, TextPartDelta
from trio.testing import wait_all_tasks_blocked

from dify_agent.events.coalescer import Coalescer
from dify_agent.events.flusher import CoalescingSink, FlushTimer

INTERVAL = 0.1
END = PartEndEvent(index=0, part=TextPart("hello"))


def delta(text, index=0):
    return PartDeltaEvent(index=index, delta=TextPartDelta(text))


class Log:
    """Takes what is published, with the time since the start."""

    def __init__(self, start):
        self.entries = []
        self._start = start

    def __call__(self, event):
        text = event.delta.content_delta if isinstance(event, PartDeltaEvent) else event.event_kind
        self.entries.append((round(trio.current_time() - self._start, 6), text))


def make_sink(timer, publish, max_chars=4096, enabled=True):
    return CoalescingSink(Coalescer(enabled=enabled, interval_seconds=INTERVAL, max_chars=max_chars), timer, publish)


async def scenario(body, sinks=1, **settings):
    """Run ``body(sink, …)`` with a timer; return what was published by each sink."""
    logs = [Log(trio.current_time()) for _ in range(sinks)]
    async with trio.open_nursery() as nursery:
        timer = FlushTimer()
        await nursery.start(timer.serve)
        await body(*(make_sink(timer, log, **settings) for log in logs))
        nursery.cancel_scope.cancel()
    return [log.entries for log in logs]


async def test_flushes_at_the_deadline_while_the_source_waits(autojump_clock):
    async def body(sink):
        sink.push(delta("a"))
        await trio.sleep(0.06)
        sink.push(delta("b"))
        await trio.sleep(5)
        sink.push(delta("c"))
        sink.push(END)
        sink.finish()

    [entries] = await scenario(body)
    assert entries == [(0.1, "ab"), (5.06, "c"), (5.06, "part_end")]


async def test_a_second_buffer_gets_a_deadline_of_its_own(autojump_clock):
    async def body(sink):
        sink.push(delta("a"))
        await trio.sleep(0.05)
        sink.push(delta("b", index=1))
        await trio.sleep(5)

    [entries] = await scenario(body)
    assert entries == [(0.05, "a"), (0.15, "b")]


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [1, 2])
async def test_a_source_that_is_always_ready_merges_to_the_size_limit(mock_clock, checkpoints):
    async def body(sink):
        for _ in range(20_000):
            sink.push(delta("x"))
            mock_clock.jump(0.001)
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
        sink.finish()

    [entries] = await scenario(body)
    assert [len(text) for _, text in entries] == [4096] * 4 + [3616]


async def test_a_ready_source_that_then_waits_is_flushed_soon(mock_clock):
    async def body(sink):
        for _ in range(200):
            sink.push(delta("x"))
            mock_clock.jump(0.001)
            await trio.lowlevel.checkpoint()
        mock_clock.autojump_threshold = 0
        await trio.sleep(1)

    [[(moment, text)]] = await scenario(body)
    assert text == "x" * 200
    assert 0.2 <= moment <= 0.21


async def test_a_waiting_source_does_not_keep_a_ready_one_from_merging(mock_clock):
    async def body(ready, waiting):
        waiting.push(delta("w"))
        for _ in range(300):
            ready.push(delta("x"))
            mock_clock.jump(0.001)
            await trio.lowlevel.checkpoint()
        ready.finish()

    ready, waiting = await scenario(body, sinks=2)
    assert [text for _, text in ready] == ["x" * 300]
    [(moment, text)] = waiting
    assert text == "w"
    assert 0.1 <= moment < 0.12


async def test_many_sinks_are_flushed_at_their_own_deadlines(autojump_clock):
    async def body(*sinks):
        for sink in sinks:
            sink.push(delta("x"))
            await trio.sleep(0.01)
        await trio.sleep(1)

    logs = await scenario(body, sinks=30)
    assert [log for [log] in logs] == [(round(n * 0.01 + INTERVAL, 6), "x") for n in range(30)]


async def test_finish_publishes_the_rest_and_discard_drops_it(autojump_clock):
    async def body(finished, discarded):
        for sink in (finished, discarded):
            sink.push(delta("a"))
        finished.finish()
        finished.finish()
        discarded.discard()
        discarded.push(delta("b"))
        discarded.finish()
        await trio.sleep(1)

    assert await scenario(body, sinks=2) == [[(0.0, "a")], []]


async def test_disabled_arms_nothing(autojump_clock):
    async def body(sink):
        sink.push(delta("a"))
        sink.push(delta("b"))
        await trio.lowlevel.checkpoint()

    assert await scenario(body, enabled=False) == [[(0.0, "a"), (0.0, "b")]]


async def test_an_error_of_one_run_reaches_that_run_and_not_the_timer(autojump_clock):
    def refuse(event):
        raise RuntimeError("sealed")

    log = Log(trio.current_time())
    async with trio.open_nursery() as nursery:
        timer = FlushTimer()
        await nursery.start(timer.serve)
        broken, healthy = make_sink(timer, refuse), make_sink(timer, log)
        broken.push(delta("a"))
        healthy.push(delta("b"))
        await trio.sleep(1)
        assert log.entries == [(0.1, "b")]
        with pytest.raises(RuntimeError, match="sealed"):
            broken.push(delta("c"))
        nursery.cancel_scope.cancel()


async def test_a_restarted_timer_takes_over_what_was_armed(autojump_clock):
    log = Log(trio.current_time())
    timer = FlushTimer()
    make_sink(timer, log).push(delta("a"))
    async with trio.open_nursery() as nursery:
        await nursery.start(timer.serve)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert log.entries == [(0.1, "a")]


class PassCounter(trio.abc.Instrument):
    def __init__(self):
        self.steps = 0

    def before_task_step(self, task):
        self.steps += 1


async def test_the_timer_is_parked_when_idle(autojump_clock):
    async with trio.open_nursery() as nursery:
        timer = FlushTimer()
        await nursery.start(timer.serve)
        sink = make_sink(timer, lambda event: None)
        sink.push(delta("a"))
        await trio.sleep(1)
        await wait_all_tasks_blocked()
        counter = PassCounter()
        trio.lowlevel.add_instrument(counter)
        await trio.sleep(3600)
        trio.lowlevel.remove_instrument(counter)
        nursery.cancel_scope.cancel()
    assert counter.steps <= 2
