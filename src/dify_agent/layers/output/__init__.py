"""`dify.output`: structured output, a JSON object that fits a schema of the request."""

from typing import Final, Self

from pydantic import ConfigDict, JsonValue, model_validator

from agenton.layers import LayerConfig

__all__ = ["DIFY_OUTPUT_LAYER_TYPE_ID", "DifyOutputLayerConfig"]

DIFY_OUTPUT_LAYER_TYPE_ID: Final = "dify.output"


class DifyOutputLayerConfig(LayerConfig):
    """What the output must look like. The tool that delivers it is always called ``final_output``.

    Raises:
        ValidationError: the schema's top-level ``type`` is not ``"object"``, or a field is unknown.
    """

    model_config = ConfigDict(extra="forbid")

    json_schema: dict[str, JsonValue]
    """JSON Schema of an object, its references only to its own ``$defs``."""
    description: str | None = None
    """The output tool's description; without one, the schema's own."""
    strict: bool | None = None
    """Whether the provider is to enforce the schema; null leaves it to the provider's default."""

    @model_validator(mode="after")
    def _check_object(self) -> Self:
        if self.json_schema.get("type") != "object":
            raise ValueError("Schema must declare an object output.")
        return self
