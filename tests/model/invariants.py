"""What must hold in every state."""

from collections.abc import Iterator

from tests.model.state import State, is_terminal, status_of

ONE_TERMINAL = "at most one terminal event"
STATUS = "the status is the terminal event's type"
BEHIND = "nothing behind the terminal event"
ORDER = "no event doubled or out of order"
KEPT = "no acknowledged event lost"
TOLD = "an owner's readers see the terminal event it wrote"
CANCELLED = "an accepted cancel ends as cancelled"
ASKED = "only an accepted cancel ends as cancelled"
LIVING = "no living owner is judged"


def violated(s: State) -> Iterator[str]:
    """Names of the invariants that do not hold."""
    terminals = [entry for entry in s.log if isinstance(entry, str)]
    events = [entry for entry in s.log if isinstance(entry, int)]
    if len(terminals) > 1:
        yield ONE_TERMINAL
    if [status_of(name) for name in terminals[-1:]] != ([status_of(s.record)] if is_terminal(s.record) else []):
        yield STATUS
    if terminals and isinstance(s.log[-1], int):
        yield BEHIND
    if events != list(range(1, len(events) + 1)):
        yield ORDER
    if s.record != "-" and len(events) < s.stored:
        yield KEPT
    if s.phase == "over" and not s.knows and s.record[0] in "SFC":
        yield TOLD
    if is_terminal(s.record) and s.accepted != (status_of(s.record) == "cancelled"):
        yield CANCELLED if s.accepted else ASKED
    if any(name.startswith("x") for name in terminals):
        yield LIVING
