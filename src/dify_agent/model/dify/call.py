"""One model request as Dify takes it, and the port of the two ways that lead there."""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import httpx2
from pydantic_ai.settings import ModelSettings
from pydantic_core import to_json

from dify_agent.backends.redaction import Redactor
from dify_agent.backends.transport import Peer

JSON_HEADERS: Final = {"Content-Type": "application/json"}

_NOT_SENT: Final = frozenset(
    {
        "extra_body",
        "stop_sequences",
        # Forced tool use cannot be said on this wire (integrations 3.5); the others are for the loop or Pydantic AI.
        "tool_choice",
        "request_timeout",
        "first_event_timeout",
        "framing_announcement",
        "max_retries",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmCall:
    """What a model is asked, apart from who asks and by which way."""

    model: str
    prompt_messages: list[dict[str, Any]]
    model_parameters: dict[str, Any]
    tools: list[dict[str, Any]] | None
    stop: list[str] | None
    stream: bool


class LlmRoute(Protocol):
    """A way to Dify's models. One object per run: it counts the run's calls."""

    @property
    def client(self) -> httpx2.AsyncClient:
        """The process's client for this way; its default headers carry the key."""

    @property
    def peer(self) -> Peer:
        """Who answers, for error texts and the log."""

    @property
    def redactor(self) -> Redactor:
        """Takes out of error texts what a request holds that is secret."""

    @property
    def provider_name(self) -> str:
        """Who answers, for events and history."""

    def request(self, call: LlmCall) -> tuple[str, dict[str, str], bytes]:
        """Address, headers beside the client's own, and JSON body of the next call.

        Raises:
            UserError: the run's execution context lacks what this way needs.
        """


def model_parameters(settings: ModelSettings | None) -> dict[str, Any]:
    """Settings as Dify takes them: each one that is set, then the keys of ``extra_body`` on top.

    Raises:
        ValueError: ``extra_body`` is not an object.
    """
    if settings is None:
        return {}
    chosen = {name: value for name, value in settings.items() if value is not None and name not in _NOT_SENT}
    extra = settings.get("extra_body")
    if extra is None:
        return chosen
    if not isinstance(extra, dict):
        raise ValueError("model_settings.extra_body must be an object: its keys become parameters of the model")
    return {**chosen, **extra}


def stop_sequences(settings: ModelSettings | None) -> list[str] | None:
    """Stop sequences, or None when there are none."""
    return (settings.get("stop_sequences") if settings else None) or None


def encode(body: dict[str, Any]) -> bytes:
    """The body as compact JSON.

    Raises:
        ValueError: a value has no JSON form.
    """
    return to_json(body)
