"""A session of the resume tests as it is played: earlier runs, the disturbed run, the runs that resume."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import trio
from tests.server import resume_bodies as bodies
from tests.server.clients import TERMINALS, Api, kind_of
from tests.server.harness import BOUND_SECONDS
from tests.server.resume_checks import (
    INTERRUPTED,
    Snapshot,
    entries,
    is_within,
    messages,
    pending_calls,
    said,
    states,
    streamed,
    told,
)
from tests.server.resume_plans import ROUNDS, Session

from dify_agent.protocol.run_events import RUN_EVENT_ADAPTER

Events = list[dict[str, Any]]

ANSWER: Final = {"status": "submitted", "values": {}}
DISTURBED: Final = "What now?"
MISMATCH: Final = "Tool call results need to be provided for all deferred tool calls."


@dataclass(frozen=True)
class Past:
    """What the caller keeps: the last snapshot, and the id of the question that is open in it."""

    snapshot: Snapshot | None = None
    question: str | None = None


async def events_when(api: Api, run_id: str, seen: Callable[[Events], bool]) -> Events:
    """A run's log as soon as it has what ``seen`` looks for."""
    events: Events = []
    cursor = "0-0"
    with trio.fail_after(BOUND_SECONDS):
        while not seen(events):
            assert not events or events[-1]["type"] not in TERMINALS, events[-1]
            page = await api.page(run_id, after=cursor, wait=5, limit=500)
            cursor = page["next_cursor"]
            events += page["events"]
    return events


class Play:
    """One session. ``api`` is of the replica that all but the disturbed run uses."""

    def __init__(self, session: Session, api: Api) -> None:
        self.session = session
        self.stack = session.stack
        self.past = Past()
        self._api = api

    async def begin(self) -> None:
        """The earlier runs."""
        for number, kind in enumerate(self.session.earlier):
            if kind == "asked":
                self.past = await self._run(self.past, f"Ask {number}.", asks=True)
            self.past = await self._run(self.past, f"Question {number}.")
        if self.session.pending:
            self.past = await self._run(self.past, "Ask at last.", asks=True)

    def disturbed(self, port: int = 0) -> dict[str, Any]:
        turns, stuck, trouble = bodies.disturbed(self.session)
        diary = {**trouble, "port": port} if "gate" in trouble.values() else trouble
        return self._body(self.past, turns, DISTURBED, stuck=stuck, diary=diary)

    def is_struck(self, events: Events) -> bool:
        """Whether the log says that the disturbed run is where the ending is to strike."""
        session, kinds = self.session, [kind_of(event) for event in events]
        calls = session.calls + self.stack.diary
        results = kinds.count("function_tool_result") - (self.past.question is not None)
        if not kinds or session.step == "enter":
            return bool(kinds)
        called = [each["data"]["part"]["tool_name"] for each in events if kind_of(each) == "function_tool_call"]
        if session.leaves:
            end = "ask_human" in called if session.step.endswith("question") else "final_result" in kinds
            return end and results >= ROUNDS * calls
        due = session.round * calls
        match session.step:
            case "text":
                return "part_delta" in kinds
            case "thinking":
                return any(kind_of(each) == "part_start" and "Hm." in str(each["data"]) for each in events)
            case "tools" | "asked and tools":
                return results >= due + session.beside and "stuck" in called
            case "retry output":
                return "output_tool_result" in kinds
            case "retry unknown" | "retry policy":
                return results >= due + 1
        return results >= due

    async def finish(self, events: Events) -> None:
        """Check how the disturbed run ended, and resume from what it left."""
        for event in events:
            RUN_EVENT_ADAPTER.validate_python(event)
        assert [event["type"] for event in events if event["type"] in TERMINALS] == [events[-1]["type"]]
        data = self._check_terminal(events[-1])
        snapshot = data.get("session_snapshot")
        assert (snapshot is not None) is self.session.leaves_snapshot, data
        base = self.past
        if snapshot is not None:
            self._check_snapshot(snapshot, events)
            question = data["deferred_tool_call"]["tool_call_id"] if "deferred_tool_call" in data else None
            # Before the agent loop nobody has read the answer that this run brought: the question is still open.
            base = Past(snapshot, question if self.session.captured else base.question)
        if base.question is not None:
            await self._answer_wrongly(base)
        await self._run(base, "And then?")

    def _check_terminal(self, terminal: dict[str, Any]) -> dict[str, Any]:
        session, data = self.session, dict(terminal["data"])
        match session.ending:
            case "question":
                assert terminal["type"] == "run_succeeded", terminal
                assert data["deferred_tool_call"]["tool_name"] == "ask_human"
            case "cancel":
                assert terminal["type"] == "run_cancelled", terminal
            case "failure":
                assert terminal["type"] == "run_failed", terminal
                assert bodies.FAILURES[session.step] in data["error"]
            case "shutdown":
                assert (terminal["type"], data["reason"]) == ("run_failed", "shutdown"), terminal
            case "deadline":
                assert terminal["type"] == "run_failed", terminal
                in_loop = session.step.split()[0] not in ("enter", "leave")
                assert data["error_type"] == ("agent_run_limit_exceeded" if in_loop else None), data
                assert data["reason"] == (None if in_loop else "phase_timeout"), data
        return data

    def _check_snapshot(self, snapshot: Snapshot, events: Events) -> None:
        """Nothing that the caller or the log knows is lost."""
        assert states(snapshot) == {"suspended"}, snapshot
        assert tuple(each["name"] for each in snapshot["layers"]) == self.stack.order
        self._check_diary(snapshot, events)
        before, now = said(self.past.snapshot), said(snapshot)
        assert now[: len(before)] == before, (before, now)
        if not self.stack.history or not self.session.captured:
            assert now == before, (before, now)
            return
        new = now[len(before) :]
        assert (DISTURBED in str([fact for fact in new if fact[0] == "user-prompt"])) is (self.past.question is None)
        assert set(told(events)) <= set(new), (told(events), new)
        for kind in ("text", "thinking"):
            if partial := streamed(events, kind):
                assert any(fact[0] == kind and partial in fact[1] for fact in new), (partial, new)

    def _check_diary(self, snapshot: Snapshot, events: Events) -> None:
        if self.stack.diary:
            noted = sum('"noted ' in fact[2] for fact in told(events))
            if self.session.ending == "deadline":  # it waits for no event, so a note may not have got into the log
                noted = max(noted, sum(entry.startswith("round ") for entry in entries(snapshot)))
            notes = [f"round {number}" for number in range(noted)]
            entered = "created" if self.past.snapshot is None else "resumed"
            expected = [*entries(self.past.snapshot), entered, *notes, "suspended"]
            assert entries(snapshot) == expected, (entries(snapshot), expected)

    async def _answer_wrongly(self, base: Past) -> None:
        """Results of other calls are refused. ``base`` stays good, and the refused run's snapshot is so too."""
        wrong = self._body(base, [bodies.final(self.stack, "no")], "And then?", results={"other": ANSWER})
        terminal = (await self._api.run(wrong))[-1]
        assert terminal["type"] == "run_failed", terminal
        assert terminal["data"]["error"].startswith(MISMATCH)
        snapshot = terminal["data"]["session_snapshot"]
        assert is_within(said(base.snapshot), said(snapshot))
        resumed = await self._run(Past(snapshot), "Never mind.")
        answers = [fact for fact in said(resumed.snapshot) if fact[:2] == ("answer", str(base.question))]
        assert [INTERRUPTED in fact[2] for fact in answers] == [True]

    async def _run(self, past: Past, prompt: str, *, asks: bool = False) -> Past:
        """An undisturbed run: a round of tools, then a question or the final answer."""
        last = bodies.asking() if asks else bodies.final(self.stack, prompt)
        body = self._body(past, [bodies.tool_round(self.stack, 1, prompt), last], prompt)
        events = await self._api.run(body)
        assert events[-1]["type"] == "run_succeeded", (events[-1]["data"], body)
        data = events[-1]["data"]
        snapshot = data["session_snapshot"]
        assert states(snapshot) == {"suspended"}
        if self.stack.diary:
            entered = "created" if past.snapshot is None else "resumed"
            assert entries(snapshot) == [*entries(past.snapshot), entered, prompt, "suspended"]
        if self.stack.history:
            self._check_history(past, snapshot, prompt)
        question = data["deferred_tool_call"]["tool_call_id"] if asks else None
        pending = [question] if self.stack.history and asks else []
        assert pending_calls(snapshot) == pending, messages(snapshot)
        if not asks:
            assert data["output"] == bodies.output(self.stack, prompt)
        return Past(snapshot, question)

    def _check_history(self, past: Past, snapshot: Snapshot, prompt: str) -> None:
        before, now = said(past.snapshot), said(snapshot)
        assert is_within(before, now), (before, now)
        prompts = [content for kind, *_, content in now if kind == "user-prompt"]
        assert (prompt in prompts[-1]) is (past.question is None)

    def _body(
        self,
        past: Past,
        turns: list[bodies.Turn],
        prompt: str,
        *,
        stuck: dict[str, Any] | None = None,
        diary: dict[str, Any] | None = None,
        results: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The composition with the caller's last snapshot, and with the answer if a question is open in it."""
        if results is None and past.question is not None:
            results = {past.question: ANSWER}
        return bodies.body(
            self.stack, turns, prompt=prompt, stuck=stuck, diary=diary, snapshot=past.snapshot, results=results
        )
