"""``dify-agent demo``: the whole product in one command, without a model provider."""

import json
from typing import Any, Final

import httpx2
import trio
from rich.console import Console
from rich.markup import escape

from dify_agent.cli.logs import configure_logging
from dify_agent.cli.running import development_settings
from dify_agent.http.server import Address
from dify_agent.main import Listen, serve

DEMO_SECONDS: Final = 60.0

RUN: Final[dict[str, Any]] = {
    "composition": {
        "layers": [
            {
                "name": "prompt",
                "type": "plain.prompt",
                "config": {"prefix": "You are concise.", "user": "What is the weather in Oslo?"},
            },
            {"name": "history", "type": "pydantic_ai.history"},
            {
                "name": "tools",
                "type": "scripted.tools",
                "config": {
                    "tools": [
                        {
                            "name": "weather",
                            "description": "The weather in a city.",
                            "parameters": {
                                "type": "object",
                                "properties": {"city": {"type": "string"}},
                                "required": ["city"],
                            },
                            "result": {"sky": "clear", "celsius": -3},
                            "delay_ms": 300,
                        }
                    ]
                },
            },
            {
                "name": "llm",
                "type": "scripted.model",
                "config": {
                    "turns": [
                        {"thinking": "I should look.", "tool_calls": [{"name": "weather", "args": {"city": "Oslo"}}]},
                        {"chunks": 12, "chunk": "clear sky ", "delay_ms": 60},
                    ]
                },
            },
        ]
    }
}


def run_demo() -> int:
    """Run the demonstration; 0 when the run succeeded."""
    configure_logging()
    return trio.run(_demo)


async def _demo() -> int:
    console = Console(soft_wrap=True)  # where it goes into a file or a pipe, nothing is broken at 80 columns
    status = 1
    with trio.move_on_after(DEMO_SECONDS):
        async with development_settings() as settings, trio.open_nursery() as nursery:
            stop = trio.Event()
            addresses: list[Address] = await nursery.start(_serve, settings, stop)
            host, port = addresses[0]
            status = await _watch_a_run(console, f"http://{host}:{port}", settings.api_token)
            stop.set()
    return status


async def _serve(settings: Any, stop: trio.Event, *, task_status: trio.TaskStatus[list[Address]]) -> None:
    await serve(settings, Listen(host="127.0.0.1", port=0, on_listening=task_status.started, stop=stop))


async def _watch_a_run(console: Console, base_url: str, token: str | None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(base_url=base_url, headers=headers, timeout=DEMO_SECONDS) as client:
        console.print(f"[bold]POST {base_url}/runs[/bold]")
        response = await client.post("/runs", json=RUN)
        console.print(f"{response.status_code} {response.text}", markup=False)
        run_id = response.raise_for_status().json()["run_id"]
        console.print(f"[bold]GET {base_url}/runs/{run_id}/events/sse[/bold]")
        last: dict[str, Any] = {}
        async with client.stream("GET", f"/runs/{run_id}/events/sse") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    last = json.loads(line.removeprefix("data: "))
                    _print_event(console, last)
    if last.get("type") != "run_succeeded":
        console.print("[red]the run did not succeed[/red]")
        return 1
    console.print(f"[bold green]output:[/bold green] {escape(str(last['data']['output']))}")
    return 0


def _print_event(console: Console, event: dict[str, Any]) -> None:
    data = event["data"]
    what = data.get("event_kind", "")
    detail = event.get("agent_message_delta")
    if detail is None:
        part = data.get("part") or {}
        detail = part.get("tool_name") or part.get("content") or data.get("error") or ""
    line = f"{event['id']:>16}  {event['type']:<17} {what:<20} {detail!r}"
    overflow: Final = "ellipsis" if console.is_terminal else "ignore"  # a terminal would break it inside a quote
    console.print(line, markup=False, highlight=False, overflow=overflow)
