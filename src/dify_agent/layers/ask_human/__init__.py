"""`dify.ask_human`: the model asks a human. The run ends with the question, and a later run has the answer.

The names here need Pydantic only, so that callers can read questions and write answers; the layer is in ``layer``.
"""

from typing import Final

from dify_agent.layers.ask_human.arguments import (
    AskHumanAction,
    AskHumanActionStyle,
    AskHumanField,
    AskHumanFieldType,
    AskHumanFileField,
    AskHumanFileListField,
    AskHumanParagraphField,
    AskHumanSelectField,
    AskHumanSelectOption,
    AskHumanToolArgs,
    AskHumanUrgency,
)
from dify_agent.layers.ask_human.config import DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION, DifyAskHumanLayerConfig
from dify_agent.layers.ask_human.result import AskHumanResultStatus, AskHumanSelectedAction, AskHumanToolResult

__all__ = [
    "DEFAULT_ASK_HUMAN_TOOL_DESCRIPTION",
    "DIFY_ASK_HUMAN_LAYER_TYPE_ID",
    "AskHumanAction",
    "AskHumanActionStyle",
    "AskHumanField",
    "AskHumanFieldType",
    "AskHumanFileField",
    "AskHumanFileListField",
    "AskHumanParagraphField",
    "AskHumanResultStatus",
    "AskHumanSelectField",
    "AskHumanSelectOption",
    "AskHumanSelectedAction",
    "AskHumanToolArgs",
    "AskHumanToolResult",
    "AskHumanUrgency",
    "DifyAskHumanLayerConfig",
]

DIFY_ASK_HUMAN_LAYER_TYPE_ID: Final = "dify.ask_human"
