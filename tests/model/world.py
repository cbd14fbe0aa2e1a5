"""Network, time and the world's faults: what happens to the replicas, and to what they ask of the store."""

from collections.abc import Callable, Iterator

from tests.model import scripts
from tests.model.state import ACTIVE, Bounds, Label, Rules, State

Move = tuple[Label, State]

FAULTS = frozenset(
    {
        "pause",
        "cut",
        "crash",
        "actor-lost",
        "settle-timeout",
        "down",
        "node-down",
        "expire",
        "seen-expires",
        "set-expires",
        "other-set-expires",
        "watcher-crash",
        "cancel",
        "work-fails",
        "retire",
        "resume",
        "heal",
    }
)
"""Actions that nobody may count on. Lost and late messages are not counted on either."""


def is_fair(label: Label) -> bool:
    """Whether this happens sooner or later when no further fault comes."""
    return label.network == "ok" and label.action not in FAULTS


def call(
    s: State,
    action: str,
    ask: Callable[[State], scripts.Answer],
    answered: Callable[[State, str], State],
    failed: Callable[[State], State],
    *,
    message: tuple[str | int | bool, ...] = (),
) -> Iterator[Move]:
    """One request in all its fates. ``message`` is what the network holds of it when it comes late."""
    if s.up:
        done, answer = ask(s)
        yield Label(action, "ok", answer), answered(done, answer)
        if done is not s:
            yield Label(action, "reply lost", answer), failed(done)
        if message and not s.late:
            yield Label(action, "late"), failed(s._replace(late=message))
    yield Label(action, "request lost"), failed(s)


def renewed(s: State) -> State:
    """After a heartbeat."""
    return s._replace(lease=True, seen=True, listed=True, excused=False)


def create_on_its_way(s: State) -> bool:
    """The network holds a create, or its second half."""
    return s.late[:1] in (("create",), ("record",))


def moves(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    """Everything that is no process's own doing."""
    yield from _owner_fate(s, bounds)
    yield from _store_fate(s, rules, bounds)
    if bounds.expiry:
        yield from _retention(s, bounds)
    if s.late and s.up:
        yield _delivered_late(s, rules)
    if s.watching:
        yield Label("watcher-crash"), s._replace(watching=False, healthy=False, stage=None)
        if bounds.cancels:
            same = lambda t, *_: t  # noqa: E731
            yield from call(s, "cancel", scripts.request_cancel, same, same, message=bounds.late_message("cancel"))


def _owner_fate(s: State, bounds: Bounds) -> Iterator[Move]:
    if s.life == "up":
        yield Label("pause"), s._replace(life="paused", excused=True)
        if bounds.cut:
            yield Label("cut"), s._replace(life="cut", excused=True)
    elif s.life == "paused":
        yield Label("resume"), s._replace(life="up")
    elif s.life == "cut":
        yield Label("heal"), s._replace(life="up")
    if s.life not in ("left", "dead"):
        yield Label("crash"), buried(s)


def buried(s: State) -> State:
    """The owner is dead; only what others still have of it is kept."""
    return s._replace(
        life="dead",
        excused=True,
        phase="over",
        tries=0,
        offered=0,
        in_flight=0,
        taken=False,
        told=False,
        ending="",
        step="",
        knows=True,
        release=False,
        strays=None,
    )


def _store_fate(s: State, rules: Rules, bounds: Bounds) -> Iterator[Move]:
    if not s.up:
        yield Label("up"), s._replace(up=True)
    else:
        # Every reaper that looks sees it; a break too short for that is a lost message.
        yield Label("down"), s._replace(up=False, healthy=False)
    if s.up and not s.node_up:
        yield Label("node-up"), s._replace(node_up=True)
    elif s.up and bounds.partial:
        yield Label("node-down"), s._replace(node_up=False, healthy=s.healthy and rules.reaper_blind)
    if s.lease and (s.life != "up" or not (s.up and s.node_up)):
        # An outage that costs a healthy owner its lease is so long that a reaper meets it within its pass.
        yield Label("lease-expires"), s._replace(lease=False, stage=s.stage if s.excused else None)
    # A retired replica's: after a minute, which is longer than any request of its own is late.
    if s.life == "left" and (rules.seen_too_short or not create_on_its_way(s)):
        yield Label("seen-expires"), s._replace(life="dead", seen=False)


def _retention(s: State, bounds: Bounds) -> Iterator[Move]:
    """Keys that nobody has renewed for a retention are gone. It is longer than any request is late or a pass lasts."""
    if s.late or s.stage is not None or s.life == "left":
        return
    # A living owner touches its run's keys.
    if s.record != "-" and s.strays is None and not (s.life == "up" and s.phase in ACTIVE):
        yield Label("expire"), s._replace(record="-", log=(), intent=False, accepted=False)
    # A living owner renews its own keys; one that was out of reach for so long, and then creates a run, is `thaw`.
    if s.seen and s.life != "up" and (s.phase != "creating" or bounds.thaw):
        yield Label("seen-expires"), s._replace(seen=False)
    # The set is renewed whenever `seen` is. A running run's record is gone by then: only a beat lies between its last
    # renewal by the owner and the set's, and a reaper that lived all that time has judged it.
    if s.in_set and not s.seen and s.life != "up" and s.record != "running":
        yield Label("set-expires"), s._replace(in_set=False)
    if s.ghost:
        yield Label("other-set-expires"), s._replace(ghost=False)


def _delivered_late(s: State, rules: Rules) -> Move:
    kind, *arguments = s.late
    t = s._replace(late=())
    match kind:
        case "create":
            t, answer = scripts.create(t, rules)
        case "record":
            t, answer = scripts.write_record(t)
        case "append":
            t, answer = scripts.append(t, rules, *arguments)
        case "finish":
            t, answer = scripts.finalize(t, rules, *arguments)
        case "finish-cancel":
            t, answer = scripts.finalize_cancel(t, rules, *arguments)
        case "cancel":
            t, answer = scripts.request_cancel(t)
        case _:
            t, answer = scripts.verdict(t, rules, by=arguments[0], intent=arguments[1])
    return Label(f"late {kind}", "ok", answer), t
