"""Questions and answers as DTOs: texts, defaults, order of members."""

from typing import Any

import pytest
from pydantic import ValidationError

from dify_agent.layers.ask_human import AskHumanToolArgs, AskHumanToolResult


def question(**members: Any) -> dict[str, Any]:
    return {"question": "Deploy?", **members}


def field(**members: Any) -> dict[str, Any]:
    return question(fields=[{"type": "paragraph", "name": "note", "label": "Note", **members}])


def select(options: Any, **members: Any) -> dict[str, Any]:
    return field(type="select", options=options, **members)


def action(**members: Any) -> dict[str, Any]:
    return question(actions=[{"id": "go", "label": "Go", **members}])


YES = {"value": "y", "label": "Yes"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Field required"),
        ({"question": None}, "Input should be a valid string"),
        ({"question": ""}, "String should have at least 1 character"),
        ({"question": " \n"}, "question must not be blank"),
        (question(title=""), "title must not be blank"),
        (question(title="  "), "title must not be blank"),
        (question(urgency="low"), "Input should be 'normal' or 'high'"),
        (question(extra=1), "Extra inputs are not permitted"),
        (field(name="1st"), "field name must be a valid identifier"),
        (field(name=""), "field name must be a valid identifier"),
        (field(name="a\n"), "field name must be a valid identifier"),
        (field(label=""), "String should have at least 1 character"),
        (field(label=" "), "field label must not be blank"),
        (field(options=[YES]), "Extra inputs are not permitted"),
        (field(type="file-list", max_files=0), "Input should be greater than or equal to 1"),
        (field(type="file", max_files=1), "Extra inputs are not permitted"),
        (select([]), "select fields must define at least one option"),
        (select([YES, YES]), "select field 'note' contains duplicate option value 'y'"),
        (select([YES], default="n"), "select field 'note' default must match one of its option values"),
        (select([{"value": "", "label": "Yes"}]), "String should have at least 1 character"),
        (select([{"value": " ", "label": "Yes"}]), "option value must not be blank"),
        (select([{"value": "y", "label": " "}]), "option label must not be blank"),
        (action(id="go now"), "action id must be a valid identifier"),
        (action(label=""), "action label must not be blank"),
        (action(label="\t"), "action label must not be blank"),
        (action(style="danger"), "Input should be 'default', 'primary' or 'destructive'"),
        (question(actions=[{"id": "a", "label": "A"}] * 2), "action id 'a' must be unique"),
        (
            question(fields=[{"type": kind, "name": "f", "label": "F"} for kind in ("paragraph", "file")]),
            "field name 'f' must be unique",
        ),
    ],
)
def test_validation_texts(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AskHumanToolArgs.model_validate(arguments)
    [error] = caught.value.errors()
    assert error["msg"].removeprefix("Value error, ") == text


def test_an_unknown_field_type_names_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"expected tags: 'paragraph', 'select', 'file', 'file-list'"):
        AskHumanToolArgs.model_validate(field(type="date"))


def test_every_kind_of_field_is_expanded_in_the_order_of_the_contract() -> None:
    common = {"name": "a", "label": "A"}
    given = question(
        fields=[
            {"type": "paragraph", **common},
            {"type": "select", **common, "name": "b", "options": [YES], "default": "y", "required": True},
            {"type": "file", **common, "name": "c"},
            {"type": "file-list", **common, "name": "d", "max_files": 2},
        ]
    )
    dumped = AskHumanToolArgs.model_validate(given).model_dump(mode="json")
    assert list(dumped) == ["title", "question", "markdown", "fields", "actions", "urgency"]
    assert [list(one.items()) for one in dumped["fields"]] == [
        [
            ("name", "a"),
            ("label", "A"),
            ("required", False),
            ("type", "paragraph"),
            ("placeholder", None),
            ("default", None),
        ],
        [
            ("name", "b"),
            ("label", "A"),
            ("required", True),
            ("type", "select"),
            ("options", [YES]),
            ("default", "y"),
        ],
        [("name", "c"), ("label", "A"), ("required", False), ("type", "file")],
        [("name", "d"), ("label", "A"), ("required", False), ("type", "file-list"), ("max_files", 2)],
    ]


def test_results() -> None:
    assert AskHumanToolResult(status="timeout").model_dump(mode="json") == {
        "status": "timeout",
        "action": None,
        "values": {},
        "message": None,
        "rendered_content": None,
    }
    given = {
        "status": "submitted",
        "action": {"id": "submit", "label": "Submit"},
        "values": {"note": ["ok", {"n": None}]},
        "message": "m",
        "rendered_content": "r",
    }
    assert AskHumanToolResult.model_validate(given).model_dump(mode="json") == given


@pytest.mark.parametrize(
    "given", [{}, {"status": "done"}, {"status": "submitted", "x": 1}, {"status": "timeout", "action": {"id": "a"}}]
)
def test_results_are_strict(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AskHumanToolResult.model_validate(given)
