"""The merge rules of protocol 4.2, row by row, without a clock."""

import pytest
from pydantic_ai.messages import (
    FinalResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPartDelta,
    ToolCallPartDelta,
)

from dify_agent.events.coalescer import Coalescer


def make(enabled=True, interval_seconds=10.0, max_chars=4096):
    return Coalescer(enabled=enabled, interval_seconds=interval_seconds, max_chars=max_chars)


def delta(text, index=0, **members):
    return PartDeltaEvent(index=index, delta=TextPartDelta(text, **members))


END = PartEndEvent(index=0, part=TextPart("hello"))
BARRIERS = [
    PartStartEvent(index=1, part=TextPart("text")),
    END,
    FinalResultEvent(tool_name=None, tool_call_id=None),
    PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta="t")),
    PartDeltaEvent(index=0, delta=ToolCallPartDelta(args_delta="{")),
]


def run(coalescer, events):
    published = [event for source in events for event in coalescer.push(source, 0.0)]
    rest = coalescer.flush()
    return [*published, rest] if rest else published


def texts(events):
    return [event.delta.content_delta for event in events]


def test_merges_up_to_a_barrier():
    assert run(make(), [delta("hel"), delta("lo"), END]) == [delta("hello"), END]


@pytest.mark.parametrize("barrier", BARRIERS)
def test_everything_but_a_text_delta_is_a_barrier(barrier):
    coalescer = make()
    assert coalescer.push(delta("a"), 0.0) == ()
    assert coalescer.push(barrier, 0.0) == (delta("a"), barrier)
    assert coalescer.deadline is None
    assert coalescer.push(barrier, 0.0) == (barrier,)


def test_size_limit_flushes_at_once_and_splits_nothing():
    coalescer = make(max_chars=4)
    assert coalescer.push(delta("ab"), 0.0) == ()
    assert coalescer.push(delta("cd"), 0.0) == (delta("abcd"),)
    assert coalescer.deadline is None
    assert coalescer.push(delta("ef"), 0.0) == ()
    assert coalescer.flush() == delta("ef")
    assert texts(run(make(max_chars=4), [delta("abc"), delta("defg")])) == ["abcdefg"]
    assert make(max_chars=4).push(delta("abcdefgh"), 0.0) == (delta("abcdefgh"),)


def test_length_is_counted_in_code_points():
    assert make(max_chars=3).push(delta("\U0001f600\U0001f600"), 0.0) == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (delta("a"), delta("b", index=1)),
        (delta("a"), delta("b", provider_name="p")),
        (delta("a", provider_details={"a": 1}), delta("b")),
        (delta("a", provider_details={"a": {"b": [1]}}), delta("b", provider_details={"a": {"b": [2]}})),
    ],
)
def test_incompatible_deltas_never_merge(one, other):
    coalescer = make(interval_seconds=1.0)
    coalescer.push(one, 0.0)
    assert coalescer.push(other, 0.5) == (one,)
    assert coalescer.deadline == 1.5
    assert coalescer.flush() == other


def test_deeply_equal_details_merge():
    details = {"a": {"b": [1, None]}}
    one, other = delta("a", provider_details=details), delta("b", provider_details={"a": {"b": [1, None]}})
    assert run(make(), [one, other]) == [delta("ab", provider_details=details)]


def test_citations_keep_their_place():
    cited = delta("b", citations_delta=[])
    assert run(make(), [delta("a"), cited, delta("c")]) == [delta("a"), cited, delta("c")]


def test_the_deadline_does_not_move():
    coalescer = make(interval_seconds=0.1)
    coalescer.push(delta("a"), 5.0)
    assert coalescer.deadline == 5.1
    coalescer.push(delta("b"), 5.09)
    assert coalescer.deadline == 5.1
    # A source that is always ready merges on although the deadline has passed.
    assert coalescer.push(delta("c"), 7.0) == ()
    assert coalescer.flush() == delta("abc")
    assert coalescer.deadline is None


def test_twenty_thousand_ready_deltas_are_five_events():
    published = run(make(), [delta("x")] * 20_000)
    assert [len(text) for text in texts(published)] == [4096] * 4 + [3616]


def test_disabled_passes_everything_through():
    coalescer = make(enabled=False)
    event = delta("a")
    assert coalescer.push(event, 0.0) == (event,)
    assert coalescer.push(event, 0.0)[0] is event
    assert coalescer.flush() is None
    assert coalescer.deadline is None


def test_an_empty_delta_is_buffered():
    coalescer = make(interval_seconds=1.0)
    assert coalescer.push(delta(""), 0.0) == ()
    assert coalescer.deadline == 1.0
    assert coalescer.flush() == delta("")


def test_the_callers_event_may_be_used_again():
    coalescer = make()
    event = delta("a", provider_details={"n": [1]})
    coalescer.push(event, 0.0)
    event.index = 9
    event.delta.content_delta = "other"
    event.delta.provider_details["n"].append(2)
    coalescer.push(delta("b", provider_details={"n": [1]}), 0.0)
    assert coalescer.flush() == delta("ab", provider_details={"n": [1]})
    assert event.delta.content_delta == "other"


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    "setting", [{"interval_seconds": 0}, {"interval_seconds": -1}, {"interval_seconds": float("nan")}, {"max_chars": 0}]
)
def test_settings_must_be_positive(enabled, setting):
    with pytest.raises(ValueError, match="must be positive"):
        make(enabled=enabled, **setting)
