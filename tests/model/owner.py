"""The replica that executes the run: its actor, its publisher, its finaliser, its heartbeat, its leaving."""

from collections.abc import Iterator

from tests.model import scripts
from tests.model.state import ACTIVE, Bounds, Label, Rules, State, is_terminal, status_of
from tests.model.world import Move, buried, call, renewed

CREATE_TRIES = 2


def moves(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    """What the owner can do now."""
    if s.life in ("paused", "left", "dead"):
        return
    yield from _work(s, rules, bounds)
    reached = s if s.life == "up" else s._replace(up=False)
    for label, after in _calls(reached, rules, bounds):
        # A replica that is cut off meets only lost requests, whatever the store does for others.
        yield label, after if s.life == "up" else after._replace(up=s.up)
    if s.life == "up" and s.up:
        if s.node_up:
            yield from _heartbeat(s, rules)
            yield from _retire(s, rules)
        yield from _sweep(s)


def _work(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    if s.phase == "running":
        if s.offered < bounds.events and not s.told:
            yield Label("emit"), s._replace(offered=s.offered + 1)
        start = "read" if s.told else "finish"
        for name, ending in (("work-succeeds", "S"), ("work-fails", "F")):
            yield Label(name), s._replace(phase="ending", ending=ending, step=start)
    if s.phase in ("running", "ending"):
        yield Label("actor-lost"), _over(s._replace(knows=True))
    if s.phase == "settling" and not (s.up and s.life == "up"):
        yield Label("settle-timeout"), _over(s)


def _over(s: State) -> State:
    """The run has no actor any more. The heartbeat hears of it from the registry, which has no refused creates."""
    release = s.release if s.phase == "settling" else True
    return s._replace(
        phase="over", offered=0, in_flight=0, taken=False, told=False, tries=0, ending="", step="", release=release
    )


def _calls(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    if s.phase == "creating":
        yield from _create(s, rules, bounds)
    elif s.phase in ("running", "ending"):
        waiting = s.offered > s.stored
        if s.in_flight or (waiting and not s.taken):
            yield from _append(s, rules, bounds)
        if s.phase == "ending" and not s.in_flight:  # whoever is quicker takes what waits
            yield from _finalise(s._replace(taken=waiting), rules, bounds)
    elif s.phase == "settling":
        yield from _settle(s, rules, bounds)


def _create(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    def answered(t: State, answer: str) -> State:
        return t._replace(phase="running", tries=0) if answer == "created" else _over(t)

    def failed(t: State) -> State:
        if t.tries + 1 < CREATE_TRIES:
            return t._replace(tries=t.tries + 1)
        # Its caller has heard 503: the registry forgets it, and it is ended in case there is a record.
        return t._replace(phase="settling", tries=0, step="settle", release=True)

    message = bounds.late_message("create")
    if s.up and not s.node_up:
        yield Label("create", "request lost"), failed(s)
        return
    yield from call(s, "create", lambda t: scripts.create(t, rules), answered, failed, message=message)
    if s.up:
        yield Label("create", "cut"), failed(scripts.create_cut(s, rules))
        if message and not s.late:
            yield Label("create", "half late"), failed(scripts.create_cut(s, rules)._replace(late=("record",)))


def _append(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    sent = s._replace(in_flight=s.in_flight or s.offered)
    top, last = sent.stored, sent.in_flight

    def answered(t: State, answer: str) -> State:
        if answer == "appended":
            return t._replace(stored=last, in_flight=0)
        return _over(t)

    def failed(t: State) -> State:
        return t._replace(stored=last, in_flight=0) if rules.append_assumed else t

    message = bounds.late_message("append", top, last)
    yield from call(sent, "append", lambda t: scripts.append(t, rules, top, last), answered, failed, message=message)


def _finalise(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    start = "read" if s.told else "finish"
    top, last = s.stored, s.offered

    def failed(t: State) -> State:
        again = t.ending + "'" if rules.finish_rebuilt and "'" not in t.ending else t.ending
        # A cancellation that may have been applied has deleted its intent: it is repeated as it is.
        return t._replace(step="cancel" if t.step == "cancel" else start, ending=again)

    def answered(t: State, answer: str) -> State:
        if answer == "applied":
            return _over(t._replace(knows=True, stored=last))
        if answer != "unapplied running":
            return _over(t)
        return t._replace(step="read" if t.step == "finish" else start)

    if s.step == "read":
        ask = lambda t: (t, "intent" if t.intent else "none")  # noqa: E731
        found = lambda t, answer: t._replace(step="cancel" if answer == "intent" else "last")  # noqa: E731
        yield from call(s, "read-intent", ask, found, failed)
    elif s.step == "cancel":
        message = bounds.late_message("finish-cancel", "C", top, last)
        cancel = lambda t: scripts.finalize_cancel(t, rules, "C", top, last)  # noqa: E731
        yield from call(s, "finish-cancel", cancel, answered, failed, message=message)
    else:
        message = bounds.late_message("finish", s.ending, top, last)
        finish = lambda t: scripts.finalize(t, rules, s.ending, top, last)  # noqa: E731
        yield from call(s, "finish", finish, answered, failed, message=message)


def _settle(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    """The create's outcome is unknown: a verdict of the owner itself, in case there is a record."""
    if s.step == "intent":
        ask = lambda t: (t, "intent" if t.intent else "none")  # noqa: E731
        found = lambda t, answer: t._replace(step="both" if answer == "intent" else "settle")  # noqa: E731
        yield from call(s, "settle-read", ask, found, lambda t: t._replace(step="settle"))
        return
    with_cancel = s.step == "both"

    def answered(t: State, answer: str) -> State:
        return t._replace(step="intent") if answer == "intent" else _over(t)

    message = bounds.late_message("judge", "s", with_cancel)
    verdict = lambda t: scripts.verdict(t, rules, by="s", intent=with_cancel)  # noqa: E731
    yield from call(s, "settle", verdict, answered, lambda t: t, message=message)


def _heartbeat(s: State, rules: Rules) -> Iterator[Move]:
    in_hand = s.phase in ACTIVE or s.release
    yield Label("beat"), renewed(s)._replace(in_set=s.in_set or in_hand)
    if s.release:
        after, outcome = _released(s, rules)
        yield Label("release", "ok", outcome), after
        if outcome == "ended":
            yield Label("release", "reply lost", outcome), after._replace(release=True)
    if s.phase in ACTIVE:
        yield Label("touch"), s._replace(in_set=True)


def _released(s: State, rules: Rules) -> scripts.Answer:
    """A look, and the run is taken out of the set if it has ended, which stays so. The rest is left to the reapers."""
    ended = is_terminal(s.record) or rules.releases_unended
    return s._replace(in_set=s.in_set and not ended, release=False), "ended" if ended else "left"


def _retire(s: State, rules: Rules) -> Iterator[Move]:
    """It leaves after a drain, which does not wait for refused creates to be settled, and beats no more.

    Its keys are deleted, then `seen` is shortened. That a cluster may do the second alone is left out: the lease only
    holds the reapers off for a while.
    """
    if s.phase in ACTIVE:
        return
    gone = buried(_released(s, rules)[0] if s.release else s)._replace(lease=False)
    if rules.leaves_at_once:
        yield Label("retire"), gone._replace(seen=False, listed=s.listed and gone.in_set)
        return
    yield Label("retire", "cut"), gone
    yield Label("retire"), gone._replace(life="left") if s.seen else gone


def _sweep(s: State) -> Iterator[Move]:
    """The observer's look at the run, or the bell's."""
    if s.phase != "running" or s.told:
        return
    if s.record == "running" and s.intent:
        yield Label("told", "ok", "cancel"), s._replace(told=True)
    elif s.stored and s.record == "-":
        yield Label("told", "ok", "missing"), _over(s)
    elif s.stored and is_terminal(s.record):
        yield Label("told", "ok", status_of(s.record)), _over(s)
