"""The plugin daemon's endpoints that a run calls: tools, and models for the legacy transport."""

import hmac
import re
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from dify_agent.testing.answers import Answer, json_answer, stream_answer
from dify_agent.testing.choosing import Call, Chooser, last_user_text
from dify_agent.testing.frames import error_message, llm_frames, tool_frames
from dify_agent.testing.record import RecordedRequest
from dify_agent.testing.refusals import Refused, problems
from dify_agent.testing.requests import DaemonLlmRequest, DaemonToolRequest
from dify_agent.testing.script import HttpError

PREFIX: Final = "/plugin/"
HEALTH: Final = "/health/check"
_DISPATCH: Final = re.compile(r"/plugin/[^/]+/dispatch/(tool|llm)/invoke")

ModelT = TypeVar("ModelT", bound=BaseModel)


class FakePluginDaemon:
    """Answers from the script. A wrong key is 401; a missing plugin id or a body that does not fit is 400."""

    def __init__(self, chooser: Chooser, key: str) -> None:
        self._chooser = chooser
        self._key = key.encode()

    def answer(self, request: RecordedRequest) -> Answer:
        """The answer to a request. Its path is the raw one: a tenant's id is one segment, whatever it holds.

        Raises:
            Refused: wrong key, unknown path, no plugin id, or a body that does not fit.
        """
        if request.path == HEALTH and request.method == "GET":
            return json_answer({"status": "ok"})
        if not hmac.compare_digest(request.headers.get("x-api-key", "").encode(), self._key):
            raise _refusal(401, "PluginDaemonUnauthorizedError", "wrong X-Api-Key")
        dispatch = _DISPATCH.fullmatch(request.path)
        if dispatch is None or request.method != "POST":
            raise _refusal(404, "PluginDaemonNotFoundError", "no such path")
        if not request.headers.get("x-plugin-id"):
            raise _refusal(400, "PluginDaemonBadRequestError", "X-Plugin-ID is missing")
        body = request.raw_body
        return self._call_tool(body) if dispatch[1] == "tool" else self._call_model(body)

    def _call_tool(self, body: bytes) -> Answer:
        step = self._chooser.tool(_parsed(DaemonToolRequest, body).data.tool)
        return stream_answer(step, lambda: tool_frames(step), _envelope)

    def _call_model(self, body: bytes) -> Answer:
        target = _parsed(DaemonLlmRequest, body).data
        messages = target.prompt_messages
        step, number = self._chooser.llm(Call(target.model, messages))
        prompt = last_user_text(messages) if step.echo_text else ""
        return stream_answer(
            step,
            lambda: llm_frames(
                step, model=target.model, messages=messages, prompt=prompt, number=number, success="success"
            ),
            _envelope,
        )


def _parsed(model: type[ModelT], body: bytes) -> ModelT:
    try:
        return model.model_validate_json(body)
    except ValidationError as invalid:
        raise _refusal(400, "PluginDaemonBadRequestError", problems(invalid)) from None


def _envelope(error: HttpError) -> dict[str, Any]:
    return _error(error.status, error.code, error.message)


def _error(status: int, error_type: str, message: str) -> dict[str, Any]:
    return {"code": -status, "message": error_message(error_type, message, {}), "data": None}


def _refusal(status: int, error_type: str, message: str) -> Refused:
    return Refused(json_answer(_error(status, error_type, message), status), message)
