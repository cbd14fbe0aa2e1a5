"""docs/doctor.md is the program's."""

from tests.docs.pages import ROOT, table_under

from dify_agent.cli.doctor import INTERRUPTED, DoctorStatus
from dify_agent.doctor.rules import RULES

PAGE = ROOT / "docs" / "doctor.md"
STATUSES = ROOT / "docs" / "shutdown.md"
WRONG_COMMAND_LINE = 2


def test_the_table_of_rules_is_the_rules() -> None:
    written = list(table_under(PAGE, "Rules"))
    assert written == [[f"`{rule.id}`", rule.severity, rule.meaning, rule.repair or "none"] for rule in RULES.values()]


def test_the_exit_statuses_are_the_programs() -> None:
    written = {int(status) for status, _, doctor in table_under(STATUSES, "Exit statuses") if doctor}
    assert written == {*map(int, DoctorStatus), INTERRUPTED, WRONG_COMMAND_LINE}
