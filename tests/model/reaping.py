"""The reapers: the second replica's, which judges the owner, and the owner's own, which judges its strays."""

from collections.abc import Iterator

from tests.model import scripts
from tests.model.state import ACTIVE, Bounds, Label, Rules, Stage, State
from tests.model.world import Move, call, create_on_its_way, renewed


def moves(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    """What both reapers can do now."""
    if rules.reaper_idle:
        return
    if s.watching:
        yield from _watch(s, rules) if s.stage is None else _go_on(s, s.stage, rules, bounds)
    if s.life == "up":
        yield from _strays(s) if s.strays is None or s.strays.step == "seen" else _go_on(s, s.strays, rules, bounds)


def _watch(s: State, rules: Rules) -> Iterator[Move]:
    if not s.up:
        return
    if s.node_up:
        yield from _watch_owner(s, rules)
    if s.ghost and (s.healthy or rules.reaper_hasty):
        yield Label("reap-ghost"), s._replace(stage=Stage("ghost", "look"))


def _watch_owner(s: State, rules: Rules) -> Iterator[Move]:
    if not s.healthy:
        # A whole lease without a break: an owner that lives and reaches the store has renewed meanwhile.
        seen = s._replace(healthy=True)
        in_hand = s.phase in ACTIVE or s.release
        yield Label("watch"), renewed(seen)._replace(in_set=s.in_set or in_hand) if s.life == "up" else seen
    if not s.healthy and not rules.reaper_hasty:
        return
    if s.listed and not s.lease:
        first = Stage("owner", "recheck" if s.in_set else "count")
        yield Label("reap", "ok", "some" if s.in_set else "none"), s._replace(stage=first)


def _strays(s: State) -> Iterator[Move]:
    """Two looks in a row: a run that has just ended is on its way out of the set."""
    if not (s.up and s.node_up):
        return
    if not s.in_set or s.phase in ACTIVE:
        if s.strays is not None:
            yield Label("strays", "ok", "none"), s._replace(strays=None)
    elif s.strays is None:
        yield Label("strays", "ok", "seen"), s._replace(strays=Stage("own", "seen"))
    else:
        yield Label("strays", "ok", "again"), s._replace(strays=Stage("own", "look"))


def _at(s: State, stage: Stage, step: str | None, **changes: bool) -> State:
    """The reaper that was at ``stage`` is at ``step`` now."""
    after = None if step is None else stage._replace(step=step, **changes)
    return s._replace(strays=after) if stage.target == "own" else s._replace(stage=after)


def _lost(s: State, stage: Stage) -> State:
    after = _at(s, stage, None)
    return after if stage.target == "own" else after._replace(healthy=False)


def _go_on(s: State, stage: Stage, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    who = "" if stage.target == "owner" else f"{stage.target}-"
    if stage.step == "judge":
        yield from _judge(s, stage, rules, bounds)
        return
    yield Label(f"{who}{stage.step}", "request lost"), _lost(s, stage)
    if not s.up or (stage.step != "look" and stage.target != "ghost" and not s.node_up):
        return
    match stage.step:
        case "recheck":
            # Before each hundred runs, the first included.
            found = s.lease and not rules.rechecks_late
            after = _at(s, stage, None) if found else _at(s, stage, "look", just=s.excused)
            yield Label("recheck", "ok", "held" if found else "gone"), after
        case "look":
            yield _look(s, stage, rules)
        case "forget" if stage.target == "ghost":
            yield Label("ghost-forget"), _at(s._replace(ghost=False), stage, None)
        case "forget":
            yield Label(f"{who}forget"), _at(s._replace(in_set=False), stage, "count" if not who else None)
        case "drop":
            yield Label("own-drop"), _at(s._replace(in_set=False), stage, None)
        case "count":
            seen = s.seen and not rules.delists
            outcome = "some" if s.in_set else "seen" if seen else "none"
            yield Label("count", "ok", outcome), _at(s, stage, "delist" if outcome == "none" else None)
        case "delist":
            yield Label("delist"), _at(s._replace(listed=False), stage, None)


def _look(s: State, stage: Stage, rules: Rules) -> Move:
    who = "" if stage.target == "owner" else f"{stage.target}-"
    if s.record == "-":
        return Label(f"{who}look", "ok", "missing"), _at(s, stage, _next_without_record(s, stage, rules))
    if s.record != "running":
        return Label(f"{who}look", "ok", "ended"), _at(s, stage, "forget")
    if stage.target == "ghost" and not rules.verdict_any_owner:
        return Label(f"{who}look", "ok", "another's"), _at(s, stage, "forget")
    just = stage.just and (stage.target != "ghost" or s.excused)
    outcome = "intent" if s.intent else "running"
    return Label(f"{who}look", "ok", outcome), _at(s, stage, "judge", intent=s.intent, just=just)


def _next_without_record(s: State, stage: Stage, rules: Rules) -> str | None:
    """A frozen owner may yet write the record. A living one does not: after a minute none of its creates is late."""
    if stage.target == "own":
        return "drop" if rules.drops_at_once or not create_on_its_way(s) else None
    if rules.forgets_missing:
        return "forget"
    return "count" if stage.target == "owner" else None


def _judge(s: State, stage: Stage, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    action = "own-judge" if stage.target == "own" else "judge"
    by = "v" if stage.just else "x"
    message = bounds.late_message("judge", by, stage.intent)

    def answered(t: State, answer: str) -> State:
        # A cancel came between look and verdict: look again, without asking for the lease.
        return _at(t, stage, "look", intent=False) if answer == "intent" else _at(t, stage, "forget", intent=False)

    ask = lambda t: scripts.verdict(t, rules, by=by, intent=stage.intent)  # noqa: E731
    # One run's verdict that fails keeps the reaper from nothing else; the run stays in the set.
    failed = lambda t: _at(t, stage, "count" if stage.target == "owner" else None, intent=False)  # noqa: E731
    yield from call(s, action, ask, answered, failed, message=message)
