"""The registry: who is told, who is not, and when it is empty."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dify_agent.actors.lifecycle import Phase
from dify_agent.actors.live_log import LiveLog
from dify_agent.actors.messages import Interrupted, Reached, RunMessage, Stop, StopKind, WorkDone
from dify_agent.concurrency.channels import RUN_INBOX_SIZE
from dify_agent.supervisor.registry import RunEntry, RunRegistry


def registered(registry: RunRegistry, run_id: str = "run") -> trio.MemoryReceiveChannel[RunMessage]:
    send, receive = trio.open_memory_channel[RunMessage](RUN_INBOX_SIZE)
    registry.add(run_id, RunEntry(send, LiveLog()))
    return receive


async def test_tells_a_run_and_knows_no_other(autojump_clock: MockClock) -> None:
    registry = RunRegistry()
    with registered(registry) as inbox:
        assert registry.tell("run", Stop(StopKind.CANCEL))
        assert not registry.tell("another", Stop(StopKind.CANCEL))
        assert inbox.receive_nowait() == Stop(StopKind.CANCEL)


async def test_each_kind_is_told_once_and_stays_told(autojump_clock: MockClock) -> None:
    registry = RunRegistry()
    with registered(registry) as inbox:
        for _ in range(100):
            assert registry.tell("run", Stop(StopKind.CANCEL))
        assert registry.tell("run", Stop(StopKind.SHUTDOWN))
        assert inbox.statistics().current_buffer_used == 2


async def test_an_inbox_holds_all_that_a_run_can_be_sent(autojump_clock: MockClock) -> None:
    registry = RunRegistry()
    send, inbox = trio.open_memory_channel[RunMessage](RUN_INBOX_SIZE)
    registry.add("run", RunEntry(send.clone(), LiveLog()))
    with send, inbox:
        for kind in StopKind:
            registry.tell("run", Stop(kind))
        send.send_nowait(Stop(StopKind.SEALED, "from the log"))
        send.send_nowait(Stop(StopKind.RECORD_LOST, "from the log"))
        send.send_nowait(Stop(StopKind.STORE_UNAVAILABLE, "from the log"))
        for message in (Reached(Phase.RUNNING), Reached(Phase.EXITING), WorkDone(Interrupted())):
            send.send_nowait(message)
        registry.remove("run")


async def test_a_run_whose_actor_has_left_is_not_told(autojump_clock: MockClock) -> None:
    registry = RunRegistry()
    registered(registry).close()
    assert not registry.tell("run", Stop(StopKind.CANCEL))


async def test_removing_closes_the_registrys_end_and_may_be_repeated(autojump_clock: MockClock) -> None:
    registry = RunRegistry()
    with registered(registry) as inbox:
        registry.remove("run")
        registry.remove("run")
        with pytest.raises(trio.EndOfChannel):
            inbox.receive_nowait()
        assert len(registry) == 0
        assert registry.live_log("run") is None
        assert not registry.tell("run", Stop(StopKind.CANCEL))


async def test_wait_empty_returns_when_the_last_run_is_gone(autojump_clock: MockClock) -> None:
    registry = RunRegistry()
    await registry.wait_empty()
    with registered(registry, "a"), registered(registry, "b"):
        emptied: list[bool] = []

        async def wait() -> None:
            await registry.wait_empty()
            emptied.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            registry.remove("a")
            await wait_all_tasks_blocked()
            assert emptied == []
            registry.remove("b")
    assert emptied == [True, True]


async def test_run_ids_is_a_snapshot(autojump_clock: MockClock) -> None:
    registry = RunRegistry()
    with registered(registry, "a"), registered(registry, "b"):
        for run_id in registry.run_ids():
            registry.remove(run_id)
    assert registry.run_ids() == ()
