"""What the model's world is made of: its state, its rules, its labels.

Everything is immutable and hashable; a state is one moment of the store, of the replica that executes the run (the
owner), of one more replica with its reaper, and of one request that the network still holds.
"""

from typing import NamedTuple

TERMINAL_STATUS = {"S": "succeeded", "F": "failed", "C": "cancelled"}
"""The last letter of a terminal's name tells its kind. The owner's own are `S`, `F`, `C` (`S'` when a faulty retry
builds another), a verdict's `vF`, `vC`, `xF`, `xC` when the owner it judged was alive and well, and `sF`, `sC` those by
which an owner settles a create of its own whose outcome it does not know."""

EVERY_KIND = ("create", "append", "finish", "finish-cancel", "judge", "cancel")
"""Requests that change a run."""

ACTIVE = ("creating", "running", "ending")
"""Phases in which the owner's registry has the run."""


class Label(NamedTuple):
    """A transition's name: who did what, what the network did to it, what the store answered."""

    action: str
    network: str = "ok"
    outcome: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.action, "" if self.network == "ok" else f"({self.network})") if part) + (
            f" -> {self.outcome}" if self.outcome else ""
        )


class Stage(NamedTuple):
    """How far a reaper is with the run."""

    target: str
    """Whose set it works on: `owner`, `ghost` (a replica lost before the run's record was written), `own` (strays)."""
    step: str
    just: bool = True
    """Whether the owner had been out of reach when its lease was last found missing."""
    intent: bool = False


class State(NamedTuple):
    """One moment. The fields of a dead owner are cleared, so that they do not multiply the states."""

    # The store.
    up: bool = True
    node_up: bool = True
    """The node that has the owner's keys, its lease and its set; the run may lie on another one."""
    record: str = "-"
    """`-`, `running`, or the name of the terminal that ended the run."""
    log: tuple[int | str, ...] = ()
    intent: bool = False
    in_set: bool = False
    """The run is a member of its owner's set."""
    ghost: bool = False
    """The run is a member of the set of a replica that was lost between its two writes."""
    listed: bool = True
    """The owner is in the set of owners."""
    lease: bool = True
    seen: bool = True
    """The owner has renewed its lease within a retention, as far as the store knows."""
    accepted: bool = False
    """History: an intent was stored for this run."""
    late: tuple[str | int | bool, ...] = ()
    """A request whose sender has given up waiting; the store still executes it, some time."""

    # The owner.
    life: str = "up"
    """`up`, `paused` (does nothing), `cut` (works, but reaches no store), `left` (dead, but `seen` stays for a minute,
    because it has retired), `dead`."""
    excused: bool = False
    """History: it was paused, cut or dead since its last renewal."""
    phase: str = "creating"
    tries: int = 0
    offered: int = 0
    stored: int = 0
    """Events whose append was answered."""
    in_flight: int = 0
    """Last event of the batch that is sent until it is answered; 0 for none."""
    taken: bool = False
    """The events that wait are the finaliser's: they go along with the terminal."""
    told: bool = False
    """Told to stop, because of an intent."""
    ending: str = ""
    step: str = ""
    """The finaliser's next call: `finish`, `read`, `cancel`, or `last` (a finish after no intent was found). While a
    create is settled: `settle`, `intent` (to be read), or `both` (a verdict that knows of an intent)."""
    knows: bool = False
    """Its own terminal is in the window that local readers see."""
    release: bool = False
    """The next heartbeat takes the run out of the owner's set, if it has ended."""
    strays: Stage | None = None
    """The owner's reaper, on its own set."""

    # The second replica.
    watching: bool = True
    """It is alive."""
    healthy: bool = True
    """Its reaper has seen the store healthy for a whole lease."""
    stage: Stage | None = None


class Rules(NamedTuple):
    """How the system behaves. The defaults are the design; every other value breaks it somewhere."""

    # What the source once did. This model shows that a run may stay running, or that a living owner is judged.
    releases_unended: bool = False
    """The heartbeat releases each run without an actor, not only those that have ended."""
    forgets_missing: bool = False
    """The reaper takes members without a record out of a lost owner's set."""
    delists: bool = False
    """A reaper takes an owner with an empty set out of the list, however long ago it renewed."""
    leaves_at_once: bool = False
    """A retired replica deletes its `seen` as well, and takes itself out of the list when its set is empty."""
    rechecks_late: bool = False
    """The reaper judges the first runs of an owner by the leases that it read at the beginning of its pass."""

    # Faults planted to see that the invariants can fail.
    drops_at_once: bool = False
    """An owner's reaper takes strays without a record out of the set while a create may be on its way."""
    append_any_top: bool = False
    append_unsealed: bool = False
    append_assumed: bool = False
    """A batch without an answer counts as stored."""
    finish_drops_last: bool = False
    """The terminal transition writes no event but the terminal one."""
    finish_ignores_intent: bool = False
    finish_ignores_status: bool = False
    """Nor does it look at what the log ends with."""
    finish_rebuilt: bool = False
    """A retry proposes a new terminal instead of the same."""
    verdict_any_owner: bool = False
    verdict_ignores_intent: bool = False
    verdict_ignores_status: bool = False
    verdict_keeps_record: bool = False
    reaper_hasty: bool = False
    """It judges without having seen the store healthy for a lease."""
    reaper_blind: bool = False
    """It counts a store as healthy of which the owner's node was away."""
    reaper_idle: bool = False
    seen_too_short: bool = False
    """A retired replica's `seen` may be gone while a create of its own is on its way."""
    record_first: bool = False
    """Create writes the record before the owner's set."""


class Bounds(NamedTuple):
    """How much of the world is explored. Faults are not counted: each may come at any time, any number of times."""

    events: int = 1
    cancels: bool = True
    late: tuple[str, ...] = ()
    """Kinds of requests that may come after their sender has given up waiting (`EVERY_KIND`)."""
    cut: bool = False
    partial: bool = False
    """The owner's node may be away while the run's is not."""
    ghost: bool = False
    expiry: bool = False

    # What the design does not stand (`test_exploration.py`, `LIMITS`).
    thaw: bool = False
    """An owner is out of reach for a whole retention, and goes on with a create after it."""

    def late_message(self, *message: str | int | bool) -> tuple[str | int | bool, ...]:
        """What the network may hold of a request: ``message``, if it is of a kind that comes late."""
        return message if message[0] in self.late else ()


def is_terminal(name: str) -> bool:
    """Whether a record or a log entry of this name ends the run."""
    return name not in ("-", "running")


def status_of(record: str) -> str:
    """The status that a record of this name holds; `missing` without one."""
    if record == "-":
        return "missing"
    return TERMINAL_STATUS[record.rstrip("'")[-1]] if is_terminal(record) else record
