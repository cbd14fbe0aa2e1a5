"""The two model layers: their configs, and what they give the loop."""

import pytest
from pydantic import ValidationError

from agenton.compositor import LayerProvider
from dify_agent.errors import ModelNotAllowedError
from dify_agent.layers.pydantic_ai_model.layer import PydanticAIModelLayer
from dify_agent.layers.scripted_model.layer import ScriptedModelLayer
from dify_agent.model.provider import open_model_registry

SCRIPTED = LayerProvider.from_layer_type(ScriptedModelLayer)


def named(models):
    return LayerProvider.from_factory(layer_type=PydanticAIModelLayer, create=lambda _: PydanticAIModelLayer(models))


async def test_the_named_model_and_its_settings():
    async with open_model_registry() as models:
        layer = named(models).create_layer({"model": "test", "model_settings": {"temperature": 0.5}})
        assert layer.get_model("run").system == "test"
        assert layer.get_model_settings() == {"temperature": 0.5}
        assert named(models).create_layer({"model": "test"}).get_model_settings() is None


async def test_a_base_url_that_is_not_allowed_fails_when_the_model_is_asked_for():
    async with open_model_registry() as models:
        layer = named(models).create_layer({"model": "test", "base_url": "http://169.254.169.254/"})
        with pytest.raises(ModelNotAllowedError, match="DIFY_AGENT_MODEL_BASE_URLS"):
            layer.get_model("run")


@pytest.mark.parametrize("config", [{}, {"model": ""}, {"model": "test", "api_key": "k"}, {"model": 5}])
async def test_invalid_named_models(config):
    async with open_model_registry() as models:
        with pytest.raises(ValidationError):
            named(models).create_layer(config)


def test_scripted_model_is_one_per_layer():
    config = {"turns": [{"text": "a"}]}
    layer = SCRIPTED.create_layer(config)
    assert layer.get_model("run") is layer.get_model("run")
    assert layer.get_model("run") is not SCRIPTED.create_layer(config).get_model("run")
    assert layer.get_model_settings() is None


@pytest.mark.parametrize("config", [{}, {"turns": []}, {"turns": [{}]}, {"turns": [{"text": "a"}], "x": 1}])
def test_invalid_scripts(config):
    with pytest.raises(ValidationError):
        SCRIPTED.create_layer(config)


def test_dumped_config_can_be_sent_and_read_again():
    from dify_agent.layers.scripted_model import ScriptedModelLayerConfig

    for turn in (
        {"text": "a"},
        {"chunks": 2, "chunk": "x", "delay_ms": 1},
        {"tool_calls": [{"name": "t"}]},
        {"hang": True},
        {"error": "e"},
    ):
        config = ScriptedModelLayerConfig.model_validate({"turns": [turn]})
        assert SCRIPTED.create_layer(config).config == config
        assert ScriptedModelLayerConfig.model_validate_json(config.model_dump_json()) == config
