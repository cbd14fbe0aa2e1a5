"""The Dify API's endpoints: those that a run calls (model gateway, core tools, knowledge, files) are here, those of the
Agent Stub and its sandboxes in `dify_agent.testing.files` and `dify_agent.testing.agent_config`."""

import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from dify_agent.testing.agent_config import FakeAgentConfigs
from dify_agent.testing.answers import Answer, step_answer, stream_answer
from dify_agent.testing.choosing import Call, Chooser, last_user_text
from dify_agent.testing.files import DATA_PLANE, Act, FakeFiles, not_found, public_root
from dify_agent.testing.frames import llm_frames
from dify_agent.testing.kept import KeptState
from dify_agent.testing.record import RecordedRequest
from dify_agent.testing.refusals import envelope, parsed, refusal
from dify_agent.testing.requests import CoreToolRequest, FileRequest, KnowledgeRequest, LlmRequest
from dify_agent.testing.script import FileStep

PREFIX: Final = "/inner/api/"


class FakeDifyApi:
    """Answers from the script. A wrong key is 404, a body that does not fit 400 `invalid_request`."""

    def __init__(self, chooser: Chooser, key: str, state: KeptState) -> None:
        self._chooser = chooser
        self._key = key.encode()
        self._files = FakeFiles(state)
        self._agent_configs = FakeAgentConfigs(state, self._files)
        self._endpoints: dict[str, Callable[[RecordedRequest], Answer]] = {
            f"{PREFIX}agent/llm/invoke": self._call_model,
            f"{PREFIX}agent/tools/invoke": self._call_tool,
            f"{PREFIX}knowledge/retrieve": self._retrieve,
            f"{PREFIX}download/file/request": self._resolve_file,
        }

    def answer(self, request: RecordedRequest) -> Answer:
        """The answer to a request.

        Raises:
            Refused: wrong key, unknown path, or a request that does not fit.
        """
        key = request.headers.get("x-inner-api-key", "").encode()
        if not request.path.startswith(DATA_PLANE) and not hmac.compare_digest(key, self._key):
            raise not_found("wrong X-Inner-Api-Key")
        endpoint = self._endpoints.get(request.path)
        if endpoint is None:
            return self._stub_answer(request)
        if request.method != "POST":
            raise refusal(405, "method_not_allowed", f"{request.method} is not allowed")
        return endpoint(request)

    def _stub_answer(self, request: RecordedRequest) -> Answer:
        act: Act | None = self._files.act(request) or self._agent_configs.act(request)
        if act is None:
            raise not_found("no such path")
        step = self._chooser.stub(request.path)
        if step.http_error is not None or step.body is not None:
            return step_answer(step, None, envelope)
        return replace(act(), first_delay=step.first_delay_ms / 1000, end=step.end)

    def _call_model(self, request: RecordedRequest) -> Answer:
        asked = parsed(LlmRequest, request.raw_body)
        caller, target = asked.caller, asked.target
        messages = target.prompt_messages
        step, number = self._chooser.llm(Call(target.model, messages, caller.agent_run_id, caller.call_index))
        prompt = last_user_text(messages) if step.echo_text else ""
        return stream_answer(
            step,
            lambda: llm_frames(step, model=target.model, messages=messages, prompt=prompt, number=number, success=""),
            envelope,
        )

    def _call_tool(self, request: RecordedRequest) -> Answer:
        step = self._chooser.core_tool(parsed(CoreToolRequest, request.raw_body).tool.tool_name)
        value = {"messages": step.messages, "observation": step.observation, "metadata": step.metadata}
        return step_answer(step, value, envelope)

    def _retrieve(self, request: RecordedRequest) -> Answer:
        asked = parsed(KnowledgeRequest, request.raw_body)
        problem = asked.config_problem
        if problem is not None:
            raise refusal(422, "retrieval_config_invalid", problem)
        step = self._chooser.knowledge(asked.dataset_ids)
        results = step.results if step.results is not None else _results(asked)
        return step_answer(step, {"results": results, "usage": step.usage}, envelope)

    def _resolve_file(self, request: RecordedRequest) -> Answer:
        asked = parsed(FileRequest, request.raw_body)
        default = self._resolved(asked, public_root(request))
        step = self._chooser.file(asked.file.reference or asked.file.url or "", default)
        members = {name: getattr(step, name) for name in ("filename", "mime_type", "size", "download_url")}
        return step_answer(step, {"data": {} if step.error else members, "error": step.error}, envelope)

    def _resolved(self, asked: FileRequest, root: str) -> FileStep:
        """Of an uploaded file what it is; any other is one that cannot be downloaded from here."""
        file = self._files.find(asked.file.reference or "", asked.tenant_id)
        if file is None:
            return FileStep()
        url = f"{root}{self._files.download_uri(file)}"
        return FileStep(filename=file.name, mime_type=file.mime_type, size=len(file.data), download_url=url)


def _results(request: KnowledgeRequest) -> list[dict[str, Any]]:
    return [
        {
            "metadata": {
                "_source": "knowledge",
                "dataset_id": dataset,
                "dataset_name": dataset,
                "document_id": f"{dataset}-document",
                "document_name": f"{dataset}.txt",
                "score": 0.9,
            },
            "title": f"{dataset}.txt",
            "files": [],
            "content": f"What {dataset} says about: {request.query}",
            "summary": None,
        }
        for dataset in request.dataset_ids
    ]
