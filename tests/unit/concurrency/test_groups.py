"""Flattening of exception groups."""

import pytest
import trio

from dify_agent.concurrency.groups import first_error, holds_cancelled, leaves, plain_cancellation

A, B = ValueError("a"), KeyError("b")


async def cancelled() -> trio.Cancelled:
    """A real one: Trio makes them, nobody else may."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            caught = error
            raise
    return caught


def test_leaves_are_in_order() -> None:
    assert list(leaves(ExceptionGroup("g", [ExceptionGroup("h", [A]), B]))) == [A, B]
    assert list(leaves(A)) == [A]


async def test_the_first_error_is_no_cancellation_if_there_is_another() -> None:
    gone = await cancelled()
    assert first_error(BaseExceptionGroup("g", [gone, A, B])) is A
    assert first_error(BaseExceptionGroup("g", [gone])) is gone
    assert first_error(A) is A


@pytest.mark.parametrize("error", [A, ExceptionGroup("g", [A, ExceptionGroup("h", [B])])])
def test_holds_no_cancellation(error: BaseException) -> None:
    assert not holds_cancelled(error)


async def test_holds_a_cancellation() -> None:
    gone = await cancelled()
    assert holds_cancelled(gone)
    assert holds_cancelled(BaseExceptionGroup("g", [A, BaseExceptionGroup("h", [gone])]))


async def several(*, mistake: Exception | None = None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                if mistake is not None:
                    raise mistake


async def test_a_nursery_that_is_nobodys_business_is_cancelled_plainly() -> None:
    caught: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel(reason="test")
        try:
            with plain_cancellation():
                await several()
        except BaseException as error:
            caught.append(error)
            raise
    assert [type(error) for error in caught] == [trio.Cancelled]
    assert scope.cancelled_caught


async def test_a_mistake_among_cancellations_is_let_through() -> None:
    with pytest.RaisesGroup(ValueError, flatten_subgroups=True), trio.CancelScope() as scope:
        scope.cancel(reason="test")
        with plain_cancellation():
            await several(mistake=A)


async def test_nothing_raised_is_nothing_raised() -> None:
    with plain_cancellation():
        await trio.lowlevel.checkpoint()
    with pytest.raises(ValueError, match="a"), plain_cancellation():
        raise A
