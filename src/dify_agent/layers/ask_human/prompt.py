"""What the system prompt tells the model about questions to a human."""

from collections.abc import Iterator

from dify_agent.layers.ask_human.config import DifyAskHumanLayerConfig
from dify_agent.layers.ask_human.policy import default_action


def guidance(config: DifyAskHumanLayerConfig) -> str:
    """When to use the tool, and the limits that `policy` will hold a question to."""
    return "\n".join(
        (
            f"Call the tool `{config.tool_name}` when you cannot continue without a human: for information that is "
            "missing and that you can neither infer nor find out yourself, or for a decision that is not yours to "
            "make. Do not use it for progress reports or for questions you can answer.",
            "Ask one question at a time and call the tool at most once per response; the answer arrives as the "
            "result of the call.",
            "Rules for a question:",
            *(f"- {rule}" for rule in _rules(config)),
        )
    )


def _rules(config: DifyAskHumanLayerConfig) -> Iterator[str]:
    yield f"Allowed field types: {', '.join(config.allowed_field_types) or 'none'}."
    yield f"File upload fields are {'enabled' if config.allow_file_fields else 'disabled'}."
    yield f"Use at most {config.max_fields} field(s)." if config.max_fields else "Do not add any fields."
    yield f"Use at most {config.max_actions} action(s)."
    yield (
        f"Lengths in characters: question at most {config.max_question_chars}, markdown at most "
        f"{config.max_markdown_chars}, each field label at most {config.max_field_label_chars}, each action label at "
        f"most {config.max_action_label_chars}."
    )
    action = default_action()
    if len(action.label) <= config.max_action_label_chars:
        yield f"Without actions the question gets one, '{action.label}' with id '{action.id}'."
    else:
        yield f"Always give an action: the default one, '{action.label}', has a label that is too long here."
