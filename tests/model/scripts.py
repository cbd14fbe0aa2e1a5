"""The store's scripts as pure functions: state in, state and answer out. One function per Lua file.

Ids are ordinals: that is the worst case, two clocks that show the same millisecond, in which a verdict's terminal and
an event of the slow owner have the same id.
"""

from tests.model.state import Rules, State, is_terminal, status_of

Answer = tuple[State, str]


def create(s: State, rules: Rules) -> Answer:
    """Set first, then record and owner key."""
    return write_record(s._replace(in_set=True))


def write_record(s: State) -> Answer:
    """Create's second half, the script. A repeat is recognised by the record's text."""
    if s.record == "-":
        return s._replace(record="running"), "created"
    return s, "exists" if is_terminal(s.record) else "created"


def create_cut(s: State, rules: Rules) -> State:
    """The connection broke between the two writes."""
    if not rules.record_first:
        return s._replace(in_set=True)
    return s._replace(record="running") if s.record == "-" else s


def append(s: State, rules: Rules, top: int, last: int) -> Answer:
    if s.record == "-":
        return s, "missing"
    if is_terminal(s.record) and not rules.append_unsealed:
        return s, "sealed"
    found = len(s.log)
    if rules.append_any_top:
        found = top
    elif not top <= found <= last:
        return s, "gap"
    return s._replace(log=s.log + tuple(range(found + 1, last + 1))), "appended"


def finalize(s: State, rules: Rules, name: str, top: int, last: int) -> Answer:
    """``top`` is the event that the log must end with, ``last`` the run's last one, which goes along."""
    refused = _refused(s, name, blind=rules.finish_ignores_status)
    if refused:
        return s, refused
    if s.intent and not rules.finish_ignores_intent:
        return s, "unapplied running"
    if len(s.log) != top and not rules.finish_ignores_status:
        return s, "gap"
    return _seal(_with_last(s, rules, last), name), "applied"


def finalize_cancel(s: State, rules: Rules, name: str, top: int, last: int) -> Answer:
    refused = _refused(s, name, blind=rules.finish_ignores_status)
    if refused:
        return s, refused
    if not s.intent:
        return s, "unapplied running"
    if len(s.log) != top and not rules.finish_ignores_status:
        return s, "gap"
    return _seal(_with_last(s, rules, last), name)._replace(intent=False), "applied"


def request_cancel(s: State) -> Answer:
    if s.record != "running":
        return s, status_of(s.record)
    return s._replace(intent=True, accepted=True), "running"


def verdict(s: State, rules: Rules, *, by: str, intent: bool) -> Answer:
    """``by`` is the first letter of the terminal's name; ``intent``: the judge saw one.

    The owner it names is the one it saw, and a run's owner never changes. Only an owner that settles its create repeats
    the very same verdict, which is then recognised by the record's text.
    """
    if s.record == "-":
        return s, "missing"
    if by == "s" and s.record in ("sF", "sC" if intent else ""):
        return s, status_of(s.record)
    if is_terminal(s.record) and not rules.verdict_ignores_status:
        return s, f"unapplied {status_of(s.record)}"
    if not s.intent or rules.verdict_ignores_intent:
        sealed, answer = _seal(s, by + "F"), "failed"
    elif not intent:
        return s, "intent"
    else:
        sealed, answer = _seal(s, by + "C")._replace(intent=False), "cancelled"
    return (sealed._replace(record=s.record) if rules.verdict_keeps_record else sealed), answer


def _refused(s: State, name: str, *, blind: bool) -> str:
    if s.record == "-":
        return "missing"
    if s.record == name:
        return "applied"
    return f"unapplied {status_of(s.record)}" if is_terminal(s.record) and not blind else ""


def _with_last(s: State, rules: Rules, last: int) -> State:
    return s if rules.finish_drops_last else s._replace(log=s.log + tuple(range(len(s.log) + 1, last + 1)))


def _seal(s: State, name: str) -> State:
    return s._replace(record=name, log=(*s.log, name))
