"""Every rule that the doctor knows, in one table; docs/doctor.md shows the same."""

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning"]
"""``error``: a caller has been, or will be, told something wrong, or a run never ends. ``warning``: the rest."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that can be broken."""

    id: str
    severity: Severity
    meaning: str
    """What a broken one means."""
    advice: str
    """What to do, the repair aside."""
    repair: str | None = None
    """What ``--repair`` does; None: nothing, on purpose."""


def _rule(rule: Rule) -> Rule:
    RULES[rule.id] = rule
    return rule


RULES: Final[dict[str, Rule]] = {}
_READ_HERE: Final = "Look for another program that writes under this prefix."

TWO_TERMINALS: Final = _rule(
    Rule(
        "two-terminals",
        "error",
        "The log has more than one event that ends the run; streams end at the first, pages show all.",
        "Nothing is deleted that a caller may have seen. " + _READ_HERE,
    )
)
EVENT_AFTER_TERMINAL: Final = _rule(
    Rule(
        "event-after-terminal",
        "error",
        "Events lie behind the one that ends the run: the log was not sealed.",
        "Nothing is deleted that a caller may have seen. " + _READ_HERE,
    )
)
RECORD_RUNNING: Final = _rule(
    Rule(
        "record-running",
        "error",
        "The log has its terminal event, but the record says running: its status is wrong, it is not sealed.",
        "Repair it; the log is what callers were told.",
        "writes the terminal event's status, time and error into the record, which seals the log",
    )
)
STATUS_MISMATCH: Final = _rule(
    Rule(
        "status-mismatch",
        "error",
        "The record's status is not the one that the terminal event tells.",
        "Repair it; the log is what callers were told.",
        "writes the terminal event's status, time and error into the record",
    )
)
TERMINAL_MISSING: Final = _rule(
    Rule(
        "terminal-missing",
        "error",
        "The record says that the run has ended, but no event of the log does: streams wait until it expires.",
        "The result is lost and is not invented. Check the server's eviction policy: it must be noeviction.",
    )
)
ORDINAL_GAP: Final = _rule(
    Rule(
        "ordinal-gap",
        "error",
        "Events are missing inside the log or at its end; trimming takes them from the front only.",
        "A failover may lose events that were acknowledged; otherwise somebody deleted them. They cannot be restored.",
    )
)
ORDINAL_ORDER: Final = _rule(
    Rule(
        "ordinal-order",
        "error",
        "An ordinal repeats or descends from one event to the next.",
        "Two writers had the run at once. " + _READ_HERE,
    )
)
FRONT_MISSING: Final = _rule(
    Rule(
        "front-missing",
        "error",
        "The first events are missing, and the stream has not trimmed that many.",
        "The log was deleted or evicted while the run lived. Check the eviction policy: it must be noeviction.",
    )
)
PAYLOAD_UNREADABLE: Final = _rule(
    Rule(
        "payload-unreadable",
        "error",
        "An entry of the log is no event: not one field `payload` with a JSON object that has `run_id` and `type`.",
        _READ_HERE,
    )
)
PAYLOAD_FOREIGN: Final = _rule(
    Rule("payload-foreign", "error", "An event of the log names another run.", _READ_HERE),
)
RECORD_UNREADABLE: Final = _rule(
    Rule(
        "record-unreadable",
        "error",
        "The record cannot be read, or names another run: the run's routes fail, or tell of the other.",
        "Delete the run's keys, or wait until they expire. " + _READ_HERE,
    )
)
LOG_WITHOUT_RECORD: Final = _rule(
    Rule(
        "log-without-record",
        "warning",
        "Events or an owner without a record: to callers the run does not exist.",
        "They expire by themselves. Check the eviction policy: it must be noeviction.",
    )
)
WRONG_TYPE: Final = _rule(
    Rule("wrong-type", "error", "A key holds another type than the server writes; commands on it fail.", _READ_HERE)
)
INTENT_WITHOUT_RUN: Final = _rule(
    Rule(
        "intent-without-run",
        "warning",
        "A cancellation is accepted for a run that has no record.",
        "Repair it, or wait until it expires.",
        "deletes the intent if there is still no record",
    )
)
INTENT_AFTER_END: Final = _rule(
    Rule(
        "intent-after-end",
        "warning",
        "A cancellation still waits for a run that has ended.",
        "Repair it, or wait until it expires.",
        "deletes the intent if the record still says that the run has ended",
    )
)
OWNER_MISSING: Final = _rule(
    Rule(
        "owner-missing",
        "error",
        "A running run without an owner key, and no lost owner's set names it: nobody will judge it.",
        "Repair it when nobody has touched the run for half the retention; until then its owner may live.",
        "puts a run that nobody touched for half the retention into the set of an owner that never lived",
    )
)
OWNER_UNREADABLE: Final = _rule(
    Rule(
        "owner-unreadable",
        "error",
        "A running run's owner key is not `<epoch>:<owner id>`; no verdict can be given.",
        "Delete the owner key and look again. " + _READ_HERE,
    )
)
OWNER_LOST: Final = _rule(
    Rule(
        "owner-lost",
        "error",
        "A running run's owner has no lease and is in no list: nobody will judge the run, it never ends.",
        "Repair it while a replica runs, which then judges it.",
        "puts the run into its owner's set and the owner into the list, so that reapers judge it after a lease",
    )
)
OWNER_UNLISTED: Final = _rule(
    Rule(
        "owner-unlisted",
        "warning",
        "A running run is not in its owner's set: nobody will judge it when the owner is lost.",
        "Repair it; a living owner mends it by itself within a third of the retention.",
        "puts the run into its owner's set and the owner into the list",
    )
)
SET_DANGLING: Final = _rule(
    Rule(
        "set-dangling",
        "warning",
        "An owner's set names a run that has no record.",
        "A living owner drops it by itself; of a lost one it stays until the set expires, for a frozen owner may yet "
        "write the record. Repair what is left of an owner that cannot.",
        "takes it out if there is still no record and the owner has neither a lease nor a `seen` key any more",
    )
)
TTL_MISSING: Final = _rule(
    Rule(
        "ttl-missing",
        "error",
        "A key never expires. A lease without a TTL means that its owner is never found to be lost.",
        "Repair it. " + _READ_HERE,
        "gives it the retention, or a lease key the lease, if it still has no TTL, and a run's other keys the same",
    )
)
TTL_TOO_LONG: Final = _rule(
    Rule(
        "ttl-too-long",
        "warning",
        "A key outlives the retention: written under a longer one, or by another program.",
        "It expires by itself, and nothing that may be wanted is cut short. If the replicas have another "
        "DIFY_AGENT_RUN_RETENTION_SECONDS than this command, give it theirs and look again.",
    )
)
RETENTION_DIFFERS: Final = _rule(
    Rule(
        "retention-differs",
        "warning",
        "A living replica keeps runs for another time than this command was told.",
        "Give all replicas and this command the same DIFY_AGENT_RUN_RETENTION_SECONDS. Until then no repair is made "
        "that depends on it.",
    )
)
TTL_DRIFT: Final = _rule(
    Rule(
        "ttl-drift",
        "warning",
        "The keys of one run expire at different times: for a while it will be there in part.",
        "Repair it. " + _READ_HERE,
        "lengthens the shorter TTLs to the longest of the run's",
    )
)
CLAIM_WITHOUT_RUN: Final = _rule(
    Rule(
        "claim-without-run",
        "warning",
        "An idempotency key stands for a run that was never created: whoever held it died in between.",
        "Nothing: a repeat of the request takes it over under the same run id, which deleting it would prevent.",
    )
)
CLAIM_UNREADABLE: Final = _rule(
    Rule(
        "claim-unreadable",
        "error",
        "An idempotency key holds what is no claim; requests with it fail.",
        "Delete the key. " + _READ_HERE,
    )
)
