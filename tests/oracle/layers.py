"""What the layers `dify.ask_human` and `dify.output` themselves give to a run, for both sides.

The layers are imported when they are first needed, so that a mutant of one can be loaded before.
"""

from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from tests.oracle.scenario import OutputSpec, ToolSpec


def human_layer(spec: ToolSpec) -> Any:
    """The ask-human layer whose tool ``spec`` is."""
    from agenton.compositor import LayerProvider
    from dify_agent.layers.ask_human.layer import DifyAskHumanLayer

    return LayerProvider.from_layer_type(DifyAskHumanLayer).create_layer({"tool_name": spec.name, **spec.config})


def output_contract(spec: OutputSpec) -> Any:
    """What the output layer gives the loop."""
    from dify_agent.layers.output import DifyOutputLayerConfig
    from dify_agent.layers.output.output_layer import DifyOutputLayer

    config = DifyOutputLayerConfig(json_schema=spec.json_schema, description=spec.description, strict=spec.strict)
    return DifyOutputLayer.from_config(config).output_contract()


def contract_type(contract: Any) -> Any:
    """A type that `Agent` shows and validates as the contract says, by the contract's own validator."""
    shown: dict[str, Any] = dict(contract.json_schema)
    if contract.description is not None:
        shown["description"] = contract.description

    class Output(dict[str, Any]):
        __is_model_like__ = True

        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
            found: core_schema.CoreSchema = contract.validator.core_schema
            return found

        @classmethod
        def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
            return shown

    return Output
