"""Services: restarted with a growing pause, given up past their budget, fatal when they cannot start at all."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from dify_agent.supervisor.services import run_service
from dify_agent.supervisor.specs import RestartBudget, RestartCounter, ServiceBudgetSpentError, ServiceSpec

BUDGET = RestartBudget(restarts=3, seconds=60, first_pause_seconds=1, most_pause_seconds=3)


@pytest.fixture(autouse=True)
def said() -> Iterator[list[MutableMapping[str, Any]]]:
    """What the services said; printing all those tracebacks would take longer than the tests."""
    with structlog.testing.capture_logs() as logs:
        yield logs


class Flaky:
    """A service that notes when it begins and lives for the given times; then it lives for ever."""

    def __init__(self, *lives: float, error: Exception | None = None) -> None:
        self.lives = list(lives)
        self.error = error
        self.began: list[float] = []

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.began.append(trio.current_time())
        task_status.started()
        if not self.lives:
            await trio.sleep_forever()
        await trio.sleep(self.lives.pop(0))
        if self.error is not None:
            raise self.error


async def observe(
    serve: Callable[..., object], seconds: float, budget: RestartBudget = BUDGET
) -> list[ServiceBudgetSpentError]:
    """Run a service for a while; what was given up."""
    given_up: list[ServiceBudgetSpentError] = []
    async with trio.open_nursery() as nursery:
        spec = ServiceSpec(name="flaky", serve=serve, budget=budget)  # type: ignore[arg-type]
        await nursery.start(run_service, spec, given_up.append)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return given_up


@pytest.mark.parametrize("error", [RuntimeError("a bug"), None])
async def test_restarts_with_a_pause_that_doubles_up_to_its_most(
    autojump_clock: MockClock, error: Exception | None
) -> None:
    service, start = Flaky(10, 10, 10, error=error), trio.current_time()
    assert await observe(service.serve, 50) == []
    assert [began - start for began in service.began] == pytest.approx([0, 11, 23, 36])


async def test_gives_up_past_the_budget_once_and_stays_down(
    autojump_clock: MockClock, said: list[MutableMapping[str, Any]]
) -> None:
    service = Flaky(*[0.0] * 100, error=RuntimeError("a bug"))
    [spent] = await observe(service.serve, 1000)
    assert spent.service == "flaky"
    assert "more than 3 times within 60 s" in str(spent)
    assert len(service.began) == 4
    assert [line["log_level"] for line in said] == ["error"] * 3 + ["critical"]
    assert all(line["exc_info"] is service.error for line in said), "each failure is logged with its traceback"


async def test_old_failures_are_forgotten(autojump_clock: MockClock) -> None:
    service = Flaky(*[30.0] * 20, error=RuntimeError("a bug"))
    assert await observe(service.serve, 600) == []
    assert len(service.began) > 15, "many more than the budget allows within its window"


async def test_a_service_that_cannot_start_at_all_is_fatal(autojump_clock: MockClock) -> None:
    async def broken(*, task_status: trio.TaskStatus[None]) -> None:
        raise OSError("no such thing")

    with pytest.RaisesGroup(OSError):
        await observe(broken, 10)


async def test_a_service_that_ends_before_it_is_usable_is_fatal(autojump_clock: MockClock) -> None:
    async def short(*, task_status: trio.TaskStatus[None]) -> None:
        """Never says that it is usable."""

    with trio.fail_after(100), pytest.RaisesGroup(RuntimeError):
        await observe(short, 10)


async def test_waits_until_the_service_is_usable(autojump_clock: MockClock) -> None:
    async def slow(*, task_status: trio.TaskStatus[None]) -> None:
        await trio.sleep(7)
        task_status.started()
        await trio.sleep_forever()

    began = trio.current_time()
    await observe(slow, 0)
    assert trio.current_time() - began == pytest.approx(7)


async def test_a_group_of_errors_counts_as_one_failure(autojump_clock: MockClock) -> None:
    service = Flaky(1, error=ExceptionGroup("several", [ValueError(), KeyError()]))
    assert await observe(service.serve, 10) == []
    assert len(service.began) == 2


async def test_cancellation_is_no_failure(autojump_clock: MockClock) -> None:
    service = Flaky()
    assert await observe(service.serve, 1) == []
    assert len(service.began) == 1


async def test_cancellation_during_the_pause_leaves_at_once(autojump_clock: MockClock) -> None:
    service, began = Flaky(0, error=RuntimeError("a bug")), trio.current_time()
    await observe(service.serve, 0.5)
    assert trio.current_time() - began == pytest.approx(0.5)


def test_the_counter_forgets_what_is_older_than_its_window() -> None:
    counter = RestartCounter(BUDGET)
    assert [counter.next_pause(now) for now in (0, 1, 2, 3)] == [1, 2, 3, None]
    assert counter.next_pause(200) == 1
