"""Compaction: what is cleared and summarised, and what it does to history, usage and limits (layers 2.5)."""

from itertools import pairwise

import pytest
import trio
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.usage import RequestUsage
from tests.unit.loop.scripted import DONE, ScriptedModel, play
from tests.unit.model.dify.growth import LINEAR, growth

from dify_agent.errors import Reason, RunFailedError
from dify_agent.loop.compaction import (
    CLEARED,
    KEPT_MESSAGES,
    MAX_SUMMARIES,
    SUMMARY_PREFIX,
    SUMMARY_TASK,
    compacted,
)
from dify_agent.loop.compaction import clear_results as clear_results_at
from dify_agent.loop.pace import STRETCH, Pace
from dify_agent.loop.transcript import estimate as estimate_at
from dify_agent.loop.transcript import pieces_of


def asked(text):
    return ModelRequest([UserPromptPart(text)])


def said(text):
    return ModelResponse([TextPart(text)])


def called(*ids):
    return ModelResponse([ToolCallPart("f", {"x": "arguments"}, call_id) for call_id in ids])


def results(*ids, content="r" * 400):
    return ModelRequest([ToolReturnPart("f", content, call_id) for call_id in ids])


def contents(messages):
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def estimate(messages):
    return await estimate_at(messages, Pace())


async def clear_results(messages):
    return await clear_results_at(messages, Pace())


class Summariser:
    """Answers each question with the next text, the last one again and again."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.questions = []

    async def __call__(self, messages):
        (request,) = messages
        system, question = request.parts
        assert system.content == SUMMARY_TASK
        self.questions.append(question.content)
        return said(self.answers[min(len(self.questions), len(self.answers)) - 1])


async def refuse(messages):
    raise AssertionError("no summary is needed")


def dialogue(turns, size=400):
    return [message for n in range(turns) for message in (asked(f"q{n} " + "x" * size), said(f"a{n} " + "y" * size))]


async def test_the_estimate():
    assert await estimate([]) == 0
    assert await estimate([asked("x" * 400)]) == pytest.approx(100, abs=10)
    assert await estimate([asked("漢" * 400)]) == pytest.approx(400, abs=10)
    assert await estimate([asked("😀" * 100)]) > 100
    assert await estimate([ModelRequest([], instructions="x" * 400)]) == pytest.approx(100, abs=10)
    assert await estimate([called("a")]) > 5
    assert await estimate([asked(["x", BinaryContent(b"x", media_type="image/png")])]) > 1000
    assert await estimate([results("a", content={"k": "x" * 400})]) > 100


async def test_a_history_that_fits_is_left_alone():
    messages = dialogue(3)
    assert await compacted(messages, await estimate(messages), refuse) is None


async def test_old_results_are_cleared_first():
    messages = [
        asked("q"),
        called("a", "b"),
        results("a", "b"),
        called("c", "d", "e"),
        results("c", "d", "e"),
        said("x"),
        asked("y"),
    ]
    before = contents(messages)
    shorter = await compacted(messages, await estimate(messages) - 1, refuse)
    assert contents(shorter) == [CLEARED, CLEARED, *before[2:]]
    assert contents(messages) == before
    assert [part for message in shorter for part in message.parts if isinstance(part, ToolCallPart)] == [
        part for message in messages for part in message.parts if isinstance(part, ToolCallPart)
    ]
    assert await clear_results(shorter) == shorter


async def test_results_that_the_model_has_not_seen_are_kept():
    ids = ["b", "c", "d", "e"]
    cleared = await clear_results([asked("q"), called("a"), results("a"), called(*ids), results(*ids)])
    assert contents(cleared) == [CLEARED, *["r" * 400] * 4]


async def test_what_is_old_is_summarised():
    messages = dialogue(20)
    summarise = Summariser("the summary")
    shorter = await compacted(messages, 3000, summarise)
    assert shorter[0] == messages[0]
    assert shorter[1].parts[0].content == f"{SUMMARY_PREFIX}\n\nthe summary"
    assert isinstance(shorter[1].parts[0], SystemPromptPart)
    assert shorter[2:] == messages[-KEPT_MESSAGES:]
    asked_for = "".join(summarise.questions)
    assert "assistant: a0" in asked_for
    assert "user: q9" in asked_for
    assert "q0" not in asked_for  # it is kept
    assert "q10" not in asked_for


async def test_a_call_and_its_result_stay_together():
    calls = [message for n in range(11) for message in (called(f"c{n}"), results(f"c{n}"))]
    messages = [*dialogue(10), *calls[:-1]]
    shorter = await compacted(messages, 200, Summariser("s"))
    assert isinstance(shorter[2], ModelResponse)
    assert len(shorter) == 2 + KEPT_MESSAGES + (len(messages) - KEPT_MESSAGES) % 2
    assert repair_messages(shorter, repair_last_response=False)[1:] == shorter[2:]


async def test_summaries_build_on_each_other():
    first = await compacted(dialogue(20), 3000, Summariser("one"))
    # An earlier run's repair merges neighbouring requests.
    longer = [*repair_messages(first), *dialogue(15)]
    summarise = Summariser("two")
    second = await compacted(longer, 3000, summarise)
    assert f"{SUMMARY_PREFIX}\n\none" in "".join(summarise.questions)
    systems = [part.content for message in second for part in message.parts if isinstance(part, SystemPromptPart)]
    assert systems == [f"{SUMMARY_PREFIX}\n\ntwo"]
    assert second[0].parts == first[0].parts


async def test_more_than_the_model_can_read_is_summarised_in_pieces():
    messages = [asked("first"), asked("x" * 20_000), *dialogue(10)]
    summarise = Summariser("s1", "s2", "s3")
    await compacted(messages, 1000, summarise)
    assert len(summarise.questions) > 5
    assert max([await estimate([asked(question)]) for question in summarise.questions]) <= 1000
    assert summarise.questions[1].startswith(f"{SUMMARY_PREFIX}\n\ns1\n\n")
    assert sum(question.count("x") for question in summarise.questions) == 20_000


async def test_nothing_old_or_an_empty_summary_leaves_the_history():
    short = dialogue(3)
    assert await compacted(short, 10, refuse) == short
    messages = dialogue(20)
    assert await compacted(messages, 200, Summariser("  ")) == messages
    once = await compacted(messages, 200, Summariser("s"))
    assert await compacted(once, 200, refuse) == once


class SummarisingModel(ScriptedModel):
    """Answers requests that are not streamed with a summary."""

    def __init__(self, *turns, pause=0.0, **more):
        super().__init__(*turns, **more)
        self.asked = []
        self.pause = pause

    async def request(self, messages, model_settings, model_request_parameters):
        self.asked.append((messages, model_settings, model_request_parameters))
        await trio.sleep(self.pause)
        return ModelResponse([TextPart("short")], usage=RequestUsage(input_tokens=100, output_tokens=7))


async def test_the_loop_goes_on_from_the_compacted_history():
    model = SummarisingModel(DONE)
    history = dialogue(20)
    ran = await play(model=model, history=history, context_budget=3500, model_settings={"temperature": 0.5})
    assert ran.result == "done"
    assert ran.messages[1].parts[0].content == f"{SUMMARY_PREFIX}\n\nshort"
    assert len(ran.messages) == 2 + KEPT_MESSAGES + 1
    assert ran.parts(-2) == [UserPromptPart("hi", timestamp=ran.parts(-2)[0].timestamp)]
    assert len(model.sent[0].messages) <= len(ran.messages)
    assert ran.capture.usage.requests == 1 + len(model.asked)
    assert ran.capture.usage.input_tokens == 10 + 100 * len(model.asked)
    _, settings, parameters = model.asked[0]
    assert settings == {"temperature": 0.5}
    assert parameters == ModelRequestParameters()


async def test_without_a_budget_or_need_nothing_happens():
    for budget in (None, 1_000_000):
        model = SummarisingModel(DONE)
        ran = await play(model=model, history=dialogue(20), context_budget=budget)
        assert model.asked == []
        assert len(ran.messages) == 42


async def test_summaries_count_against_the_request_limit():
    model = SummarisingModel(DONE)
    ran = await play(model=model, history=dialogue(20), context_budget=3500, request_limit=1)
    assert isinstance(ran.error, UsageLimitExceeded)
    assert model.sent == []
    assert ran.messages[-1].state == "interrupted"


async def test_a_cancelled_summary_leaves_the_whole_history(autojump_clock):
    model = SummarisingModel(DONE, pause=3600)
    history = dialogue(20)
    ran = await play(
        model=model, history=history, context_budget=3500, scope=trio.CancelScope(deadline=trio.current_time() + 1)
    )
    assert ran.cancelled
    assert ran.messages[:40] == history
    assert [message.state for message in ran.messages[40:]] == ["complete", "interrupted"]


async def test_a_summary_is_bound_by_the_request_timeout(autojump_clock):
    model = SummarisingModel(DONE, pause=3600)
    ran = await play(model=model, history=dialogue(20), context_budget=3500, model_settings={"request_timeout": 5})
    assert str(ran.error).endswith("timed out after 5 seconds")


async def test_pieces_are_the_text_in_order():
    mixed = "".join(f"{n} wörld 漢字 " + "plain " * 50 for n in range(300))
    messages = [asked(["one", "", "two"]), said(mixed), *[asked(f"line {n}") for n in range(500)], said("x" * 5000)]
    whole = "".join(await pieces_of(messages, 1_000_000, 1, Pace()))
    assert whole.startswith("user: one\ntwo\nassistant: 0 wörld")
    for budget in (50, 700, 20_000):
        pieces = await pieces_of(messages, budget, 10_000, Pace())
        assert "".join(pieces) == whole
        weights = [await estimate([asked(piece)]) - 4 for piece in pieces]
        assert max(weights) <= budget // 2
        assert all(first + second > budget // 8 for first, second in pairwise(weights))


@pytest.mark.parametrize("text", ["hello world ", "漢字です", "é" + "x" * 11, "😀🎉"])
@pytest.mark.parametrize("budget", [8, 6400])
def test_pieces_take_linear_time(text, budget):
    def pieces(size):
        messages = [ModelRequest([ToolReturnPart("f", text * size, "c")])]
        return lambda: trio.run(pieces_of, messages, budget, size * len(text), Pace())

    assert growth(pieces, 2500 if budget == 8 else 50_000) < LINEAR


@pytest.mark.parametrize(
    "messages",
    [[asked("x")] * 2, [asked(["x"] * 4000)], [results("c", content=["x", {"k": 1}] * 2000)], [said("x\n" * 9000)]],
)
def test_short_lines_take_linear_time(messages):
    def pieces(size):
        return lambda: trio.run(pieces_of, messages * size, 4_000_000, 10, Pace())

    assert growth(pieces, 2000 if len(messages) == 2 else 4) < LINEAR


async def turns_beside(work):
    """How often another task had a turn while ``work`` went on."""
    turns = 0

    async def take_turns():
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        await work()
        nursery.cancel_scope.cancel(reason="the work is done")
    return turns


@pytest.mark.parametrize("text", ["hello world ", "漢字です漢字です漢字です"])
@pytest.mark.parametrize("budget", [8, 6400])
async def test_a_history_far_too_long_fails_before_the_first_summary(text, budget):
    long = text * (STRETCH * 16 // len(text))
    messages = [asked("q"), said(long), *dialogue(10)]

    async def work():
        with pytest.raises(RunFailedError, match="context_window_tokens") as caught:
            await compacted(messages, budget, refuse)
        assert caught.value.reason == Reason.HISTORY_TOO_LONG

    # ASCII is not counted through: that takes no time.
    assert await turns_beside(work) >= (1 if text.isascii() else 16)


async def test_many_short_messages_give_way():
    messages = [*dialogue(10_000, size=1), called("c"), results("c")]
    assert await turns_beside(lambda: clear_results(messages)) >= 30
    assert await turns_beside(lambda: estimate(messages)) >= 30


async def test_the_most_summaries_are_asked_for():
    piece = 400 * 4
    messages = [asked("first"), said("x" * (piece * MAX_SUMMARIES - 12)), *dialogue(10)]
    summarise = Summariser("s")
    await compacted(messages, 800, summarise)
    assert len(summarise.questions) == MAX_SUMMARIES
    with pytest.raises(RunFailedError):
        await compacted([messages[0], said("x" * (piece * MAX_SUMMARIES)), *messages[2:]], 800, refuse)


async def test_a_history_far_too_long_ends_the_run_and_stays():
    model = SummarisingModel(DONE)
    history = [asked("q"), said("x" * 100_000), *dialogue(10)]
    ran = await play(model=model, history=history, context_budget=10)
    assert isinstance(ran.error, RunFailedError)
    assert ran.error.reason == "history_too_long"
    assert (model.asked, model.sent) == ([], [])
    assert ran.messages[: len(history)] == history
    assert ran.messages[-1].state == "interrupted"


async def test_a_cancel_ends_the_work_on_a_long_history():
    with trio.CancelScope() as scope:
        scope.cancel(reason="test")
        await compacted([asked("漢" * STRETCH * 2)], 10, refuse)
    assert scope.cancelled_caught
