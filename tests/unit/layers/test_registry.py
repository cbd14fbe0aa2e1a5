"""Which types are registered, and what an unknown one says."""

import subprocess
import sys

import pytest

from agenton.compositor import Compositor
from dify_agent.layers.registry import create_layer_providers
from dify_agent.model.provider import open_model_registry


async def providers(scripted_layers):
    async with open_model_registry() as models:
        return create_layer_providers(models=models, scripted_layers=scripted_layers)


async def test_type_ids():
    plain = [
        "plain.prompt",
        "pydantic_ai.history",
        "dify.user_prompt",
        "dify.execution_context",
        "dify.config",
        "dify.ask_human",
        "dify.output",
        "pydantic_ai.model",
    ]
    assert [provider.type_id for provider in await providers(False)] == plain
    assert [provider.type_id for provider in await providers(True)] == [*plain, "scripted.model", "scripted.tools"]


async def test_scripted_types_are_unknown_unless_admitted():
    graph = {"layers": [{"name": "llm", "type": "scripted.model"}]}
    with pytest.raises(KeyError, match=r"Layer type id 'scripted\.model' is not registered"):
        Compositor.from_config(graph, providers=await providers(False))
    Compositor.from_config(graph, providers=await providers(True))


async def test_a_whole_composition_enters():
    graph = {
        "layers": [
            {"name": "prompt", "type": "plain.prompt"},
            {"name": "tools", "type": "scripted.tools"},
            {"name": "llm", "type": "scripted.model"},
        ]
    }
    configs = {
        "prompt": {"user": "hi"},
        "tools": {"tools": [{"name": "t", "result": 1}]},
        "llm": {"turns": [{"text": "a"}]},
    }
    compositor = Compositor.from_config(graph, providers=await providers(True))
    async with compositor.enter(configs=configs) as run:
        assert [tool.value.name for tool in run.tools] == ["t"]


@pytest.mark.slow
def test_config_packages_are_light():
    """Callers import the DTOs with the client's dependencies only: no Trio, no SDK, no server code."""
    program = (
        "import sys\n"
        "import dify_agent.layers.pydantic_ai_model\n"
        "import dify_agent.layers.scripted_model, dify_agent.layers.scripted_tools\n"
        "heavy = {'trio', 'httpx2', 'openai', 'jsonschema', 'dify_agent.loop', 'dify_agent.model.scripted'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
