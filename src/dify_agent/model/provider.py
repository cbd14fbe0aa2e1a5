"""Pydantic AI's models by name (`openai:gpt-…`, `anthropic:claude-…`, `test`), on clients that the process owns."""

import importlib
import os
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import httpx2
import trio
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers import Provider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from dify_agent.backends.pool import NOT_ENCODED, EncodedAnswerError, GuardedTransport
from dify_agent.errors import ModelNotAllowedError

TEST_MODEL: Final = "test"
CLOSE_SECONDS: Final = 5.0

DEFAULT_TIMEOUT: Final = httpx2.Timeout(connect=10.0, read=600.0, write=30.0, pool=10.0)
"""Defaults of ``DIFY_AGENT_OUTBOUND_HTTP_*``. ``read`` bounds the silence between two chunks; the run's own deadline
and cancellation come on top."""
DEFAULT_LIMITS: Final = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30.0)

_ProviderFactory = Callable[[str | None, httpx2.AsyncClient], Provider[Any]]


class ModelRegistry:
    """Hands out models; SDK clients are built once per provider and base URL. Made by `open_model_registry`."""

    def __init__(self, client: httpx2.AsyncClient, base_urls: Collection[str]) -> None:
        """Take the HTTP client, which its opener closes, and the base URLs that a request may name."""
        self._client: Final = client
        self._base_urls: Final = frozenset(_normal(url) for url in base_urls)
        self._providers: dict[tuple[str, str | None], Provider[Any]] = {}

    def get_model(self, name: str, base_url: str | None = None) -> Model[Any]:
        """The model called ``name``: ``test``, or ``<provider>:<model>`` with the provider's key in the environment.

        Raises:
            ModelNotAllowedError: ``base_url`` is not one of the operator's.
            ValueError: the provider is not one of ours, or its SDK is not installed.
            pydantic_ai.exceptions.UserError: the environment has no key (a `RuntimeError`).
        """
        if base_url is not None:
            base_url = _normal(base_url)
            if base_url not in self._base_urls:
                raise ModelNotAllowedError(
                    "the model layer's base_url is not allowed; no request was sent. "
                    "Add the URL to DIFY_AGENT_MODEL_BASE_URLS or leave base_url out"
                )
        if name == TEST_MODEL:
            return infer_model(TEST_MODEL)
        provider_name, colon, model_name = name.partition(":")
        if not colon or not model_name or provider_name not in _FACTORIES:
            known = ", ".join(sorted(_FACTORIES))
            raise ValueError(f"a model is '{TEST_MODEL}' or '<provider>:<model>' with one of these providers: {known}")
        return PooledModel(infer_model(name, provider_factory=lambda _: self._provider(provider_name, base_url)))

    def _provider(self, name: str, base_url: str | None) -> Provider[Any]:
        family, build = _FACTORIES[name]
        key = (family, base_url)
        if key not in self._providers:
            try:
                self._providers[key] = build(base_url, self._client)
            except ImportError as error:
                raise ValueError(
                    f"this server has no '{family}' SDK; no request was sent. Install it in the server's checkout: "
                    f".venv/bin/pip install --constraint constraints.txt --editable '.[{family}]'"
                ) from error
        return self._providers[key]


class PooledModel(WrapperModel):
    """Says what went wrong below the SDKs, which turn it into a time-out or a lost connection like any other."""

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """The wrapped model's stream.

        Raises:
            ModelAPIError: as the wrapped model, for want of a connection (decision R10), and when the answer is
                compressed.
        """
        try:
            async with self.wrapped.request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
        except ModelAPIError as error:
            message = _told(error)
            if message is None:
                raise
            raise ModelAPIError(self.model_name, message) from error


def _told(error: BaseException | None) -> str | None:
    """A text for what one of the causes of ``error`` is; None for what the SDKs tell well enough."""
    while error is not None:
        if isinstance(error, httpx2.PoolTimeout):
            return (
                "all outbound connections of this server are in use; the model was not asked. "
                "Try again later, or raise DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS or "
                "DIFY_AGENT_OUTBOUND_HTTP_POOL_TIMEOUT"
            )
        if isinstance(error, EncodedAnswerError):
            return (
                f"the model's provider answered HTTP {error.status} with a Content-Encoding, although none was asked "
                "for, so the answer was not read. Check that no proxy on the way compresses answers"
            )
        error = error.__cause__
    return None


@asynccontextmanager
async def open_model_registry(
    base_urls: Collection[str] = (),
    *,
    http_client: httpx2.AsyncClient | None = None,
    timeout: httpx2.Timeout = DEFAULT_TIMEOUT,
    limits: httpx2.Limits = DEFAULT_LIMITS,
) -> AsyncIterator[ModelRegistry]:
    """A registry for the life of the process. SDKs that the environment has a key for are imported before it opens.

    With ``http_client`` the models share a pool (decision R10), and its owner closes it; it must not follow redirects.
    Otherwise the registry has a client of its own with ``timeout`` and ``limits``, on connections guarded as the
    process's are, and closes it.

    Raises:
        ValueError: the given client follows redirects: they would lead a request past the list of base URLs.
    """
    if http_client is not None and http_client.follow_redirects:
        raise ValueError("the models' HTTP client must not follow redirects")
    await trio.to_thread.run_sync(_import_sdks, bool(base_urls))
    if http_client is not None:
        yield ModelRegistry(http_client, base_urls)
        return
    client = httpx2.AsyncClient(
        transport=GuardedTransport(limits), headers=NOT_ENCODED, follow_redirects=False, timeout=timeout
    )
    try:
        yield ModelRegistry(client, base_urls)
    finally:
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await client.aclose()


def _normal(url: str) -> str:
    return url.strip().rstrip("/")


def _import_sdks(has_base_urls: bool) -> None:
    """Import what runs are likely to ask for: the first import of an SDK takes a second, in which no run would move."""
    for family, key in _KEYS.items():
        # An OpenAI-compatible endpoint of the operator's own may need no key.
        if key in os.environ or (has_base_urls and family == "openai"):
            with suppress(ImportError):
                importlib.import_module(f"pydantic_ai.models.{family}")


def _openai(base_url: str | None, client: httpx2.AsyncClient) -> Provider[Any]:
    from pydantic_ai.providers.openai import OpenAIProvider

    # Pydantic AI's provider knows which key to take and what to say without one. The SDK's own retries are off: the
    # loop decides, and a 429 must not take seconds (agent-loop 6).
    keyed = OpenAIProvider(base_url=base_url, http_client=client).client
    return OpenAIProvider(openai_client=keyed.with_options(max_retries=0))


def _anthropic(base_url: str | None, client: httpx2.AsyncClient) -> Provider[Any]:
    from pydantic_ai.providers.anthropic import AnthropicProvider

    keyed = AnthropicProvider(base_url=base_url, http_client=client).client
    return AnthropicProvider(anthropic_client=keyed.with_options(max_retries=0))


_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
"""SDK → where it finds its key."""

_FACTORIES: Final[dict[str, tuple[str, _ProviderFactory]]] = {
    "openai": ("openai", _openai),
    "openai-chat": ("openai", _openai),
    "openai-responses": ("openai", _openai),
    "anthropic": ("anthropic", _anthropic),
}
"""Provider name in a model string → the extra it needs, and how its client is built."""
