"""Requests as a run server sends them, and the parts of the answers."""

import json
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio

from dify_agent.testing import open_fakes

INNER_KEY = "inner"
DAEMON_KEY = "daemon"
LLM = "/inner/api/agent/llm/invoke"
CORE_TOOL = "/inner/api/agent/tools/invoke"
KNOWLEDGE = "/inner/api/knowledge/retrieve"
FILE = "/inner/api/download/file/request"
TOOL = "/plugin/t-1/dispatch/tool/invoke"
DAEMON_LLM = "/plugin/t-1/dispatch/llm/invoke"
HEADERS = {"X-Inner-Api-Key": INNER_KEY, "X-Api-Key": DAEMON_KEY, "X-Plugin-ID": "langgenius/search"}
BOUND_SECONDS = 20

CALLER = {
    "tenant_id": "t-1",
    "user_id": "u-1",
    "user_from": "account",
    "app_id": "app-1",
    "invoke_from": "web-app",
}
PLACES = {"workflow_id": None, "workflow_run_id": None, "node_id": None, "node_execution_id": None}
CONFIG = {"conversation_id": None, "agent_id": None, "agent_config_version_id": None}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, "name": None}


def assistant(text: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": text, "name": None, "tool_calls": []}


def llm_body(
    *messages: dict[str, Any], model: str = "gpt-x", run_id: str = "run-1", call_index: int = 1
) -> dict[str, Any]:
    call = {"invocation_id": "i-1", "agent_run_id": run_id, "call_index": call_index}
    more = {"agent_config_version_kind": None, "agent_mode": "agent_app", "trace_id": None}
    return {
        "caller": {**CALLER, **PLACES, **CONFIG, **more, **call},
        "target": {
            "provider": "langgenius/openai/openai",
            "model": model,
            "prompt_messages": list(messages) or [user("hello")],
            "model_parameters": {"temperature": 0.2},
            "tools": None,
            "stop": None,
            "stream": True,
        },
    }


def daemon_llm_body(*messages: dict[str, Any], model: str = "gpt-x") -> dict[str, Any]:
    target = llm_body(*messages, model=model)["target"]
    return {"user_id": "u-1", "data": {**target, "model_type": "llm", "credentials": {"k": "v"}}}


def tool_body(tool: str = "web_search") -> dict[str, Any]:
    return {
        "user_id": "u-1",
        "data": {
            "provider": "search",
            "tool": tool,
            "credential_type": "api-key",
            "credentials": {"api_key": "x"},
            "tool_parameters": {"query": "dify"},
        },
    }


def core_tool_body(tool: str = "current_time") -> dict[str, Any]:
    return {
        "caller": {**CALLER, **PLACES, **CONFIG},
        "tool": {
            "provider_type": "builtin",
            "provider_id": "time",
            "tool_name": tool,
            "credential_id": None,
            "tool_parameters": {},
            "runtime_parameters": {},
        },
    }


def knowledge_body(*datasets: str) -> dict[str, Any]:
    return {
        "caller": CALLER,
        "dataset_ids": list(datasets) or ["d1"],
        "query": "reset password",
        "retrieval": {
            "mode": "multiple",
            "score_threshold": 0.0,
            "reranking_mode": "reranking_model",
            "reranking_enable": True,
            "top_k": 4,
            "reranking_model": None,
            "weights": None,
        },
        "metadata_filtering": {"mode": "disabled"},
        "attachment_ids": [],
    }


def file_body(reference: str = "f-1") -> dict[str, Any]:
    file = {"transfer_method": "tool_file", "reference": reference}
    identity = {name: CALLER[name] for name in ("tenant_id", "user_id", "user_from", "invoke_from")}
    return {**identity, "file": file}


BODIES = {LLM: llm_body, CORE_TOOL: core_tool_body, KNOWLEDGE: knowledge_body, FILE: file_body, TOOL: tool_body}
BODIES[DAEMON_LLM] = daemon_llm_body


def llm(*steps: dict[str, Any], **rule: Any) -> dict[str, Any]:
    """A script with one rule for model calls."""
    return {"llm": [{**rule, "steps": list(steps)}]}


@asynccontextmanager
async def asking(script: dict[str, Any] | None = None):
    """Fakes and a client with all headers; nothing takes longer than the bound."""
    with trio.fail_after(BOUND_SECONDS):
        async with open_fakes(script, inner_key=INNER_KEY, daemon_key=DAEMON_KEY) as fakes:
            async with httpx2.AsyncClient(base_url=fakes.url, headers=HEADERS) as client:
                yield fakes, client


@asynccontextmanager
async def raw(fakes, path: str, body: Any):
    """A connection on which a request has been sent."""
    data = json.dumps(body).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    stream = await trio.open_tcp_stream(*fakes.address)
    with stream.socket:
        text = f"POST {path} HTTP/1.1\r\nHost: fakes\r\n{head}Content-Length: {len(data)}\r\n\r\n"
        await stream.send_all(text.encode() + data)
        yield stream


async def until(stream: trio.SocketStream, mark: bytes) -> bytes:
    """What arrives, up to the first packet that completes ``mark``."""
    received = b""
    while mark not in received:
        data = await stream.receive_some()
        assert data, f"the connection ended after {received!r}"
        received += data
    return received


def envelopes(text: str) -> list[dict[str, Any]]:
    """The envelopes of a stream, split at LF only."""
    lines = (line.removeprefix("data: ") for line in text.split("\n"))
    return [json.loads(line) for line in lines if line.startswith("{")]


def deltas(text: str) -> list[dict[str, Any]]:
    return [envelope["data"]["delta"] for envelope in envelopes(text)]


def contents(text: str) -> list[str]:
    return [delta["message"]["content"] for delta in deltas(text)]


async def ask(client: httpx2.AsyncClient, path: str = LLM, body: Any = None) -> str:
    """The body of an answer with status 200."""
    response = await client.post(path, json=BODIES[path]() if body is None else body)
    assert response.status_code == 200, response.text
    return response.text
