"""Our loop with Dify's gateway model on Trio, in a process of its own: ``python -m bench.gateway_side URL SECONDS``.

The clients are opened once, as in a server; way and model are new for each run, as there.
"""

import sys
from functools import partial

import trio
from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, TextPartDelta

from bench.gateway_text import PROMPT, check_run
from bench.sampling import sample_paces
from dify_agent.backends.transport import OutboundHttp, OutboundOptions, open_outbound
from dify_agent.loop.port import Capture, LoopRequest
from dify_agent.loop.run import run_agent_loop
from dify_agent.model.dify.gateway import GatewayRoute
from dify_agent.model.dify.model import DifyModel
from dify_agent.protocol.execution_context import DifyExecutionContextLayerConfig

CONTEXT = DifyExecutionContextLayerConfig(
    tenant_id="tenant-1",
    user_id="user-1",
    user_from="account",
    app_id="app-1",
    agent_mode="agent_app",
    invoke_from="web-app",
)
PLUGIN, PROVIDER = "langgenius/openai", "openai"


async def run_once(outbound: OutboundHttp, model_name: str) -> None:
    """One run with a sink that counts."""
    deltas = 0

    async def sink(event: AgentStreamEvent) -> None:  # noqa: ASYNC124 - sinks are async
        nonlocal deltas
        deltas += isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta)

    route = GatewayRoute(outbound, CONTEXT, run_id="run-1", plugin_id=PLUGIN, model_provider=PROVIDER)
    request = LoopRequest(model=DifyModel(model_name, route), prompt=PROMPT)
    check_run(await run_agent_loop(request, sink=sink, capture=Capture()), deltas)


async def main(url: str, seconds: float) -> None:
    """Print one sample."""
    async with open_outbound(
        daemon_url=url, daemon_api_key="", dify_api_url=url, dify_api_key="key", options=OutboundOptions()
    ) as outbound:
        await sample_paces(partial(run_once, outbound), seconds)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], float(sys.argv[2]))
