"""What random scenarios are made of where a call needs more than a number: questions, reports, answers."""

from typing import Any

from tests.oracle.catalogue import REPORT

NOTE = {"type": "paragraph", "name": "note", "label": "Note"}
YES = {"id": "yes", "label": "Yes"}

QUESTIONS: tuple[dict[str, Any], ...] = (
    {"question": "why?"},
    {"question": "why?", "title": "T", "markdown": "*m*", "urgency": "high"},
    {"question": "why?", "fields": [NOTE], "actions": [YES]},
)
NO_QUESTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"question": 1, "more": 2},
    {"question": " "},
    {"question": "?" * 50},
    {"question": "why?", "fields": [NOTE, NOTE]},
    {"question": "why?", "fields": [{"type": "file", "name": "f", "label": "F"}]},
    {"question": "why?", "fields": [{"type": "select", "name": "s", "label": "S", "options": []}], "actions": [{}]},
    {"question": "why?", "actions": [YES, {"id": "no", "label": "No"}]},
)
"""Some by the tool's parameters, some by the limits of `CONFIG`."""
CONFIG: dict[str, Any] = {"max_actions": 1, "max_question_chars": 40}

REPORTS: tuple[dict[str, Any], ...] = (
    {"title": "t"},
    {"title": "t", "rows": [{"name": "a"}, {"name": "b", "more": None}], "score": 5},
)
NO_REPORTS: tuple[dict[str, Any], ...] = (
    {},
    {"title": "", "rows": {}, "more": 1},
    {"title": "t", "score": 3},
    {"title": "t", "rows": [{"name": "a"}, {"name": "{B}"}, {}]},
)
CONTRACTS = (REPORT, REPORT.model_copy(update={"description": None, "strict": True}))

ANSWERS: tuple[Any, ...] = ("r", None, "", 0, False, [], {}, {"kind": "x"}, {"status": "submitted", "values": {}})
