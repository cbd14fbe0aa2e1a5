"""From the configured schema to what the agent loop needs."""

from dify_agent.layers.output import DifyOutputLayerConfig
from dify_agent.layers.output.check import output_validator
from dify_agent.layers.output.exposure import check_references, expose
from dify_agent.loop.port import OutputContract
from dify_agent.protocol.json_schema import check_schema


def build_contract(config: DifyOutputLayerConfig) -> OutputContract:
    """The contract: the model sees the schema without references, its output is held against the original one.

    The checks have the order of layers 2.6: the form of references, the schema itself, where references lead.

    Raises:
        ValueError: the schema is none, or has references that are not supported (layers 2.6).
    """
    check_references(config.json_schema)
    check_schema(config.json_schema)
    exposed = expose(config.json_schema)
    described = exposed.pop("description", None)
    own = described if isinstance(described, str) else None
    return OutputContract(
        json_schema=exposed,
        validator=output_validator(config.json_schema, exposed),
        description=config.description or own,
        strict=config.strict,
    )
