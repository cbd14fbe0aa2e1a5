"""Limits of a question: texts, bounds, and the order in which they are checked."""

from typing import Any

import pytest

from dify_agent.layers.ask_human import AskHumanToolArgs, DifyAskHumanLayerConfig
from dify_agent.layers.ask_human.policy import AskHumanPolicyError, apply_policy

TIGHT = {
    "max_fields": 2,
    "max_actions": 2,
    "max_question_chars": 10,
    "max_markdown_chars": 5,
    "allowed_field_types": ["paragraph"],
    "max_field_label_chars": 4,
    "max_action_label_chars": 6,
}
SUBMIT = {"id": "submit", "label": "Submit", "style": "primary"}


def fields(*labels: str, kind: str = "paragraph") -> list[dict[str, Any]]:
    return [{"type": kind, "name": f"f{at}", "label": label} for at, label in enumerate(labels)]


def actions(*labels: str) -> list[dict[str, Any]]:
    return [{"id": f"a{at}", "label": label} for at, label in enumerate(labels)]


def outcome(config: dict[str, Any] | DifyAskHumanLayerConfig, **arguments: Any) -> str | dict[str, Any]:
    """The text of the refusal, or the question as it passed."""
    if isinstance(config, dict):
        config = DifyAskHumanLayerConfig.model_validate(config)
    args = AskHumanToolArgs.model_validate({"question": "Go?", **arguments})
    try:
        return apply_policy(args, config).model_dump(mode="json")
    except AskHumanPolicyError as violation:
        return str(violation)


def test_at_the_limits_everything_passes() -> None:
    passed = outcome(
        TIGHT,
        question="q" * 10,
        markdown="m" * 5,
        fields=fields("abcd", "abcd"),
        actions=actions("abcdef", "abcdef"),
    )
    assert isinstance(passed, dict)
    assert [action["id"] for action in passed["actions"]] == ["a0", "a1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"fields": fields("a", "b", "c")}, "ask_human fields must contain at most 2 item(s)"),
        ({"actions": actions("a", "b", "c")}, "ask_human actions must contain at most 2 item(s)"),
        ({"question": "q" * 11}, "ask_human question must be <= 10 characters"),
        ({"markdown": "m" * 6}, "ask_human markdown must be <= 5 characters"),
        ({"fields": fields("a", kind="file")}, "ask_human field type 'file' is not allowed by this layer config"),
        ({"fields": fields("abcde")}, "ask_human field label 'abcde' must be <= 4 characters"),
        ({"actions": actions("abcdefg")}, "ask_human action label 'abcdefg' must be <= 6 characters"),
    ],
)
def test_texts(arguments: dict[str, Any], text: str) -> None:
    assert outcome(TIGHT, **arguments) == text


def test_file_fields_need_both_switches() -> None:
    file = fields("f", kind="file")
    allowed = {"allowed_field_types": ["file"], "allow_file_fields": True}
    assert isinstance(outcome(allowed, fields=file), dict)
    # Validation refuses this config; the check stands for configs that came another way.
    unchecked = DifyAskHumanLayerConfig.model_validate(allowed).model_copy(update={"allow_file_fields": False})
    assert outcome(unchecked, fields=file) == "ask_human file fields are disabled by this layer config"


def test_the_first_violation_in_the_order_of_the_contract_is_named() -> None:
    config = DifyAskHumanLayerConfig.model_validate(TIGHT).model_copy(update={"allowed_field_types": ["file"]})
    bad: dict[str, Any] = {
        "fields": [
            *fields("abcde", kind="file"),
            {"type": "paragraph", "name": "p", "label": "P"},
            {"type": "paragraph", "name": "q", "label": "Q"},
        ],
        "actions": actions("abcdefg", "b", "c"),
        "question": "q" * 11,
        "markdown": "m" * 6,
    }
    repairs: list[tuple[str, dict[str, Any]]] = [
        ("fields must contain", {"fields": bad["fields"][:2]}),
        ("actions must contain", {"actions": actions("abcdefg")}),
        ("question must be", {"question": "q"}),
        ("markdown must be", {"markdown": None}),
        ("field type 'paragraph'", {"fields": bad["fields"][:1]}),
        ("field label 'abcde'", {"fields": fields("f", kind="file")}),
        ("file fields are disabled", {"fields": []}),
        ("action label 'abcdefg'", {"actions": actions("ok")}),
    ]
    for text, repair in repairs:
        refusal = outcome(config, **bad)
        assert isinstance(refusal, str)
        assert text in refusal
        bad |= repair
    assert isinstance(outcome(config, **bad), dict)


def test_a_question_without_actions_gets_one() -> None:
    passed = outcome({"max_actions": 1})
    assert isinstance(passed, dict)
    assert passed["actions"] == [SUBMIT]


def test_the_default_action_is_held_to_the_limit_too() -> None:
    config = {"max_action_label_chars": 5}
    assert outcome(config) == "ask_human action label 'Submit' must be <= 5 characters"
    assert isinstance(outcome(config, actions=actions("Send")), dict)


def test_no_fields_can_be_allowed() -> None:
    assert outcome({"max_fields": 0}, fields=fields("a")) == "ask_human fields must contain at most 0 item(s)"
    assert outcome({"allowed_field_types": []}, fields=fields("a")) == (
        "ask_human field type 'paragraph' is not allowed by this layer config"
    )


def test_the_arguments_themselves_are_not_changed() -> None:
    args = AskHumanToolArgs(question="Go?")
    assert len(apply_policy(args, DifyAskHumanLayerConfig()).actions) == 1
    assert args.actions == []
