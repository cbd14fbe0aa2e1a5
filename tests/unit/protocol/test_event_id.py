"""Cursors: `N` or `N-M`, both below 2^64 (decision R3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dify_agent.protocol.event_id import START, EventId, missing_between

MAX = 2**64 - 1


@pytest.mark.parametrize(
    ("text", "ms", "n"),
    [
        ("0", 0, 0),
        ("0-0", 0, 0),
        ("5", 5, 0),
        ("5-7", 5, 7),
        ("007-01", 7, 1),
        ("1796041234881-12", 1796041234881, 12),
        (f"{MAX}", MAX, 0),
        (f"{MAX}-{MAX}", MAX, MAX),
    ],
)
def test_parsed(text: str, ms: int, n: int) -> None:
    assert EventId.parse(text) == (ms, n)


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", "$", "+", "zzz", "1-", "-1", "+1", "1--2", "1-2-3", " 1", "1 ", "1\n", "1-2\n", "1.0", "1e3", "0x1",
     "1_0", "１", "1-٣", "\x00", f"{MAX + 1}", f"1-{MAX + 1}", "1" * 21, "1" * 5000],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a cursor must be") as failure:
        EventId.parse(text)
    assert len(str(failure.value)) < 100


@given(st.integers(0, MAX), st.integers(0, MAX))
def test_text_round_trip(ms: int, n: int) -> None:
    assert EventId.parse(str(EventId(ms, n))) == EventId(ms, n)


def test_order_and_start() -> None:
    assert START == EventId.parse("0-0") < EventId(0, 1) < EventId(1, 0) < EventId(1, 2) < EventId(2, 1)
    assert str(START) == "0-0"


@pytest.mark.parametrize(
    ("after", "first", "missing"),
    [
        (START, EventId(9, 1), 0),
        (START, EventId(9, 4), 3),
        (EventId(5, 2), EventId(9, 3), 0),
        (EventId(5, 2), EventId(9, 7), 4),
        (EventId(5, 0), EventId(9, 7), 0),
        (EventId(5, 8), EventId(9, 7), 0),
    ],
)
def test_missing_between(after: EventId, first: EventId, missing: int) -> None:
    assert missing_between(after, first) == missing
