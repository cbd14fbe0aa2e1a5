"""Whether a question keeps to the limits of the layer's config, and the button it has when the model named none."""

from collections.abc import Iterator, Sequence

from dify_agent.layers.ask_human.arguments import AskHumanAction, AskHumanToolArgs
from dify_agent.layers.ask_human.config import FILE_FIELD_TYPES, DifyAskHumanLayerConfig


class AskHumanPolicyError(ValueError):
    """The question breaks a limit. The text tells the model which."""


def default_action() -> AskHumanAction:
    """The button of a question without actions."""
    return AskHumanAction(id="submit", label="Submit", style="primary")


def apply_policy(args: AskHumanToolArgs, config: DifyAskHumanLayerConfig) -> AskHumanToolArgs:
    """The question as the human gets it.

    Raises:
        AskHumanPolicyError: it breaks a limit; the text names the first in the order of the checks.
    """
    actions = args.actions or [default_action()]
    violation = next(_violations(args, actions, config), None)
    if violation is not None:
        raise AskHumanPolicyError(violation)
    return args.model_copy(update={"actions": actions})


def _violations(
    args: AskHumanToolArgs, actions: Sequence[AskHumanAction], config: DifyAskHumanLayerConfig
) -> Iterator[str]:
    """Each check looks at the whole question before the next begins. Texts: specification, layers 2.7."""
    if len(args.fields) > config.max_fields:
        yield f"ask_human fields must contain at most {config.max_fields} item(s)"
    if len(actions) > config.max_actions:
        yield f"ask_human actions must contain at most {config.max_actions} item(s)"
    if len(args.question) > config.max_question_chars:
        yield f"ask_human question must be <= {config.max_question_chars} characters"
    if len(args.markdown or "") > config.max_markdown_chars:
        yield f"ask_human markdown must be <= {config.max_markdown_chars} characters"
    for field in args.fields:
        if field.type not in config.allowed_field_types:
            yield f"ask_human field type '{field.type}' is not allowed by this layer config"
    for field in args.fields:
        if len(field.label) > config.max_field_label_chars:
            yield f"ask_human field label '{field.label}' must be <= {config.max_field_label_chars} characters"
    if not config.allow_file_fields and any(field.type in FILE_FIELD_TYPES for field in args.fields):
        yield "ask_human file fields are disabled by this layer config"
    for action in actions:
        if len(action.label) > config.max_action_label_chars:
            yield f"ask_human action label '{action.label}' must be <= {config.max_action_label_chars} characters"
