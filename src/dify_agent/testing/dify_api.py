"""The Dify API's inner endpoints that a run calls: model gateway, core tools, knowledge, files.

Those of the Agent Stub (uploads, downloads, agent config) are not among them.
"""

import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from dify_agent.testing.answers import Answer, json_answer, step_answer, stream_answer
from dify_agent.testing.choosing import Call, Chooser, last_user_text
from dify_agent.testing.frames import llm_frames
from dify_agent.testing.requests import CoreToolRequest, FileRequest, KnowledgeRequest, LlmRequest
from dify_agent.testing.script import HttpError

PREFIX: Final = "/inner/api/"

ModelT = TypeVar("ModelT", bound=BaseModel)


class Refused(Exception):
    """Ends a request with an error of the service. The fakes themselves have not failed."""

    def __init__(self, answer: Answer, problem: str) -> None:
        super().__init__(problem)
        self.answer = answer


class FakeDifyApi:
    """Answers from the script. A wrong key is 404, a body that does not fit 400 `invalid_request`."""

    def __init__(self, chooser: Chooser, key: str) -> None:
        self._chooser = chooser
        self._key = key.encode()
        self._endpoints: dict[str, Callable[[bytes], Answer]] = {
            f"{PREFIX}agent/llm/invoke": self._call_model,
            f"{PREFIX}agent/tools/invoke": self._call_tool,
            f"{PREFIX}knowledge/retrieve": self._retrieve,
            f"{PREFIX}download/file/request": self._resolve_file,
        }

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to a request.

        Raises:
            Refused: wrong key, unknown path, or a body that does not fit.
        """
        endpoint = self._endpoints.get(path)
        if endpoint is None or not hmac.compare_digest(headers.get("x-inner-api-key", "").encode(), self._key):
            raise _refusal(404, "not_found", "no such path" if endpoint is None else "wrong X-Inner-Api-Key")
        if method != "POST":
            raise _refusal(405, "method_not_allowed", f"{method} is not allowed")
        return endpoint(body)

    def _call_model(self, body: bytes) -> Answer:
        request = _parsed(LlmRequest, body)
        caller, target = request.caller, request.target
        messages = target.prompt_messages
        step, number = self._chooser.llm(Call(target.model, messages, caller.agent_run_id, caller.call_index))
        prompt = last_user_text(messages) if step.echo_text else ""
        return stream_answer(
            step,
            lambda: llm_frames(step, model=target.model, messages=messages, prompt=prompt, number=number, success=""),
            _envelope,
        )

    def _call_tool(self, body: bytes) -> Answer:
        step = self._chooser.core_tool(_parsed(CoreToolRequest, body).tool.tool_name)
        value = {"messages": step.messages, "observation": step.observation, "metadata": step.metadata}
        return step_answer(step, value, _envelope)

    def _retrieve(self, body: bytes) -> Answer:
        request = _parsed(KnowledgeRequest, body)
        step = self._chooser.knowledge(request.dataset_ids)
        results = step.results if step.results is not None else _results(request)
        return step_answer(step, {"results": results, "usage": step.usage}, _envelope)

    def _resolve_file(self, body: bytes) -> Answer:
        file = _parsed(FileRequest, body).file
        step = self._chooser.file(file.reference or file.url or "")
        members = {name: getattr(step, name) for name in ("filename", "mime_type", "size", "download_url")}
        return step_answer(step, {"data": {} if step.error else members, "error": step.error}, _envelope)


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


def _parsed(model: type[ModelT], body: bytes) -> ModelT:
    try:
        return model.model_validate_json(body)
    except ValidationError as invalid:
        raise _refusal(400, "invalid_request", problems(invalid)) from None


def problems(invalid: ValidationError) -> str:
    """Where a value does not fit and why, without the value: it may be a secret."""
    items = invalid.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in items)


def _envelope(error: HttpError) -> dict[str, Any]:
    return _error(error.status, error.code, error.message)


def _error(status: int, code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "status": status}


def _refusal(status: int, code: str, message: str) -> Refused:
    return Refused(json_answer(_error(status, code, message), status), message)
