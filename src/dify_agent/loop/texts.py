"""Sentences the loop writes into the history or raises. Models read the first group, callers the second.

The wording of results and feedback is Pydantic AI's: its ``prepare_messages`` gives feedback the system's voice only
when it knows the text, and callers compare results with it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

FINAL_RESULT_PROCESSED = "Final result processed."
OUTPUT_REVOKED = "Output not used as the final result - addressing tool retries from this round first."
OUTPUT_SKIPPED = "Output tool not used - a final result was already processed."
TOOL_SKIPPED = "Tool not executed - a final result was already processed."

FEEDBACK_TEXT = "Please return text."
FEEDBACK_TEXT_OR_TOOL = "Please return text or call a tool."
FEEDBACK_OUTPUT = "Please include your response in a tool call."

NOTHING_TO_SEND = "No message history, user prompt, or instructions provided"
PROMPT_WHILE_PENDING = (
    "Cannot provide a new user prompt when the message history contains unprocessed tool calls. "
    "Give the results of those calls, or continue without a prompt so that they are executed."
)
PROMPT_WHILE_SUSPENDED = (
    "Cannot continue a message history that ends in a suspended response. Providers' background jobs are not "
    "supported: drop the last response from the history."
)
RESULTS_WITHOUT_HISTORY = "Tool call results were provided, but the message history is empty."
RESULTS_WITHOUT_RESPONSE = (
    "Tool call results were provided, but the message history does not contain a `ModelResponse`."
)
RESULTS_WITHOUT_CALLS = (
    "Tool call results were provided, but the message history does not contain any unprocessed tool calls."
)
DEFERRAL_REFUSED = (
    "A deferred tool call was present, but `DeferredToolRequests` is not among output types. "
    "Offer external tools only to runs that may end with a deferred call."
)
DEFAULT_OUTPUT_DESCRIPTION = "The final response which ends this conversation"


MAX_NAMES_CHARACTERS: Final = 4000
"""Of tool names in one text. Sixty names of the longest kind fit; each unknown call of a response repeats them all."""


def unknown_tool(name: str, available: Iterable[str]) -> str:
    """What the model is told about a call of a tool that is not offered; names are cut at `MAX_NAMES_CHARACTERS`."""
    told = name if len(name) <= MAX_NAMES_CHARACTERS else f"{name[:MAX_NAMES_CHARACTERS]}…"
    names = _listed(map(repr, sorted(available)))
    return f"Unknown tool name: {told!r}. " + (f"Available tools: {names}" if names else "No tools available.")


def _listed(names: Iterable[str]) -> str:
    """The names, or as many of them as fit, and an ellipsis."""
    listed: list[str] = []
    characters = 0
    for name in names:
        characters += len(name) + 2
        if characters > MAX_NAMES_CHARACTERS:
            return ", ".join([*listed, "…"])
        listed.append(name)
    return ", ".join(listed)


def timed_out(seconds: float) -> str:
    """What the model is told when a tool did not finish within its own timeout."""
    return f"Timed out after {seconds} seconds."


def retries_exhausted(name: str, limit: int) -> str:
    """Why the run ends when a tool failed once more than it may."""
    return (
        f"Tool {name!r} exceeded max retries count of {limit}. "
        "The run fails; what was wrong each time is in the results of this call in its events."
    )


def output_retries_exhausted(limit: int) -> str:
    """Why the run ends when the model did not produce a usable output."""
    return f"Exceeded maximum output retries ({limit})"


def result_overridden(call_id: str) -> str:
    """Why a result for a call that already has one is refused."""
    return f"Tool call {call_id!r} was already executed and its result cannot be overridden."


def results_mismatch(expected: Iterable[str], got: Iterable[str]) -> str:
    """Why a set of results is refused: it must cover exactly the pending calls."""
    return (
        "Tool call results need to be provided for all deferred tool calls. "
        f"Expected: {_braces(expected)}, got: {_braces(got)}"
    )


def _braces(ids: Iterable[str]) -> str:
    names = sorted(ids)
    return "{" + ", ".join(map(repr, names)) + "}" if names else "set()"


def duplicate_calls(ids: list[str]) -> str:
    """Why a response that uses one call id twice is refused."""
    return f"Function tool calls must have unique `tool_call_id` values; duplicate `tool_call_id`s: {ids}"


def duplicate_deferred(ids: list[str]) -> str:
    """Why deferred calls that share an id are refused."""
    return f"Deferred tool calls must have unique tool_call_id values; duplicate ids: {ids}"


def duplicate_results(ids: list[str]) -> str:
    """Why results cannot be matched with a history that uses one call id twice."""
    return (
        "Tool call results cannot be matched unambiguously because the message history contains "
        f"duplicate tool_call_id values: {ids}"
    )


def cut_before_output(max_tokens: int | None) -> str:
    """Why the run ends when the token limit left nothing usable."""
    return (
        f"Model token limit ({max_tokens or 'provider default'}) exceeded before any response was generated. "
        "Increase the `max_tokens` model setting, or simplify the prompt to result in a shorter response "
        "that will fit within the limit."
    )


def cut_tool_call(max_tokens: int | None) -> str:
    """Why the run ends when the token limit cut a tool call's arguments."""
    return (
        f"Model token limit ({max_tokens or 'provider default'}) exceeded while generating a tool call, "
        "resulting in incomplete arguments. Increase the `max_tokens` model setting, or simplify the prompt "
        "to result in a shorter response that will fit within the limit."
    )


def content_filtered(details: Mapping[str, Any] | None) -> str:
    """Why the run ends when the provider filtered the whole response; names the provider's own reason."""
    details = details or {}
    reasons = []
    if reason := details.get("finish_reason"):
        reasons.append(f"Finish reason: '{reason}'")
    elif reason := details.get("block_reason"):
        reasons.append(f"Block reason: '{reason}'")
    if refusal := details.get("refusal"):
        reasons.append(f"Refusal: {refusal!r}")
    return " ".join(["Content filter triggered.", ". ".join(reasons)]).strip()


def too_many_neighbours(most: int) -> str:
    """Why a history is not taken up."""
    return (
        f"The message history has more than {most} requests in a row without a response, which no run leaves behind; "
        "the model was not asked. Send the snapshot of an earlier run unchanged, or start a new session."
    )


def too_long_to_summarise(most: int) -> str:
    """Why a history is not compacted."""
    return (
        f"The message history is so long for the model that more than {most} requests would be needed to summarise "
        "what is old; the model was not asked. Raise `context_window_tokens` of the model layer to what the model can "
        "read (and leave room beside `max_tokens`), or start a new session."
    )


def too_many_calls(most: int) -> str:
    """Why the calls of a response are not executed."""
    return (
        f"The model's response has more than {most} tool calls, so none of them was executed and the run fails. "
        "Run it again; ask for less at once, or use a model that repeats itself less."
    )
