"""A model that Dify serves, as Pydantic AI's `Model`. One object per run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings, merge_model_settings
from pydantic_ai.tools import RunContext

from dify_agent.model.dify.answer import open_answer
from dify_agent.model.dify.call import LlmCall, LlmRoute, model_parameters, stop_sequences
from dify_agent.model.dify.errors import NoAddressError
from dify_agent.model.dify.lines import MAX_LINE_BYTES
from dify_agent.model.dify.messages import prompt_messages, tool_declarations
from dify_agent.model.dify.prepared import feedback_as_prompts, without_notes
from dify_agent.model.dify.stream import DifyStream
from dify_agent.model.dify.usage import add_usage
from dify_agent.protocol.usage import AgentRunUsage

_ECHO_FACTOR: Final = 2
"""A line may repeat the request, written with more white space, defaults and escapes."""

_PROFILE: Final = ModelProfile(supports_inline_system_prompts=True)
"""System prompts stay what they are wherever they stand: all of them become one message (integrations 3.5)."""


class DifyModel(Model[httpx2.AsyncClient]):
    """Asks one model of one plugin. Sends each request once: retries are the caller's decision, and it makes none."""

    def __init__(self, model: str, route: LlmRoute, *, settings: ModelSettings | None = None) -> None:
        """Take the model's name and the way to it."""
        super().__init__(settings=settings, profile=_PROFILE)
        self._model: Final = model
        self._route: Final = route
        self._total: AgentRunUsage | None = None

    @property
    def model_name(self) -> str:
        """The name inside the provider."""
        return self._model

    @property
    def system(self) -> str:
        """The way and the plugin: ``DifyAPI/<plugin id>`` or ``DifyPlugin/<plugin id>``."""
        return self._route.provider_name

    def total_usage(self) -> AgentRunUsage | None:
        """Tokens and prices of all calls whose answer was read to its end; None before the first."""
        return self._total

    def prepare_messages(
        self, messages: list[ModelMessage], model_request_parameters: ModelRequestParameters | None = None
    ) -> list[ModelMessage]:
        """The history in the parts that Dify's wire has. Nobody's words are changed, and nothing is told about them.

        Pydantic AI has more to say to a model than Dify's contract: it puts the request for a usable answer into the
        system's voice, marks text that looks like one of its tags, and announces both. All else that it does (results
        in the order of their calls, parts of other providers and of older histories) stays.
        """
        prepared = super().prepare_messages(feedback_as_prompts(messages), model_request_parameters)
        return without_notes(prepared)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """The answer in one piece. It travels as a stream all the same.

        Raises:
            ModelHTTPError, RunFailedError, UserError: as `request_stream` and its stream.
        """
        async with self._ask(messages, model_settings, model_request_parameters, stream=False) as answer:
            async for _ in answer:
                pass
            return answer.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """The answer as a stream of events. Leaving early closes the connection, which is all the provider learns.

        Raises:
            ModelHTTPError: the provider, Dify or the way there failed.
            RunFailedError: an error of Dify that has no HTTP status.
            UserError: the request cannot be made.
        """
        async with self._ask(messages, model_settings, model_request_parameters, stream=True) as answer:
            yield answer

    @asynccontextmanager
    async def _ask(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        *,
        stream: bool,
    ) -> AsyncIterator[DifyStream]:
        merged = merge_model_settings(self.settings, model_settings)
        settings, parameters = self.prepare_request(merged, model_request_parameters)
        call = LlmCall(
            model=self._model,
            prompt_messages=prompt_messages(messages, parameters),
            model_parameters=model_parameters(settings),
            tools=tool_declarations(parameters),
            stop=stop_sequences(settings),
            stream=stream,
        )
        url, headers, body = self._route.request(call)
        client = self._route.client
        try:
            request = client.build_request("POST", url, headers=headers, content=body)
        except httpx2.InvalidURL as error:
            raise NoAddressError(self._route.peer) from error
        async with open_answer(
            client,
            request,
            peer=self._route.peer,
            redactor=self._route.redactor,
            model_name=self._model,
            max_line_bytes=MAX_LINE_BYTES + _ECHO_FACTOR * len(body),
        ) as answer:
            yield DifyStream(
                parameters,
                answer=answer,
                model=self._model,
                provider=self._route.provider_name,
                on_completed=self._count,
            )

    def _count(self, call: AgentRunUsage) -> None:
        self._total = add_usage(self._total, call)
