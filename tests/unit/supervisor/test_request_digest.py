"""The canonical digest: what makes no difference, and what does."""

import json
from typing import Any

import pytest

from dify_agent.protocol.schemas import CreateRunRequest
from dify_agent.supervisor.request_digest import SMALL, RequestDigests, digest_of, is_small

BODY: dict[str, Any] = {
    "composition": {
        "layers": [{"name": "prompt", "type": "plain.prompt", "config": {"user": "é", "prefix": ["a", "b"]}}]
    }
}


def digest(body: dict[str, Any] | str) -> str:
    return digest_of(CreateRunRequest.model_validate_json(body if isinstance(body, str) else json.dumps(body)))


def with_config(config: Any) -> dict[str, Any]:
    return {"composition": {"layers": [{"name": "prompt", "type": "plain.prompt", "config": config}]}}


def reversed_members(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_members(item) for key, item in reversed(value.items())}
    return [reversed_members(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "same",
    [
        BODY,
        json.dumps(BODY, indent=4),
        json.dumps(BODY, ensure_ascii=False),
        reversed_members(BODY),
        {**BODY, "idempotency_key": "k"},
        {**BODY, "idempotency_key": "another"},
        {**BODY, "session_snapshot": None, "metadata": {}, "on_exit": {"default": "suspend", "layers": {}}},
    ],
)
def test_form_and_key_make_no_difference(same: Any) -> None:
    assert digest(same) == digest(BODY)


@pytest.mark.parametrize(
    "other",
    [
        with_config({"user": "e", "prefix": ["a", "b"]}),
        with_config({"user": "é", "prefix": ["b", "a"]}),
        with_config(json.dumps({"user": "é", "prefix": ["a", "b"]})),
        {**BODY, "metadata": {"a": 1}},
        {**BODY, "deferred_tool_results": {}},
        {**BODY, "on_exit": {"default": "delete"}},
    ],
)
def test_content_makes_a_difference(other: Any) -> None:
    assert digest(other) != digest(BODY)


def test_numbers_are_told_apart_as_they_are_written() -> None:
    assert len({digest(with_config({"n": n})) for n in (1, 1.0, True, "1", 10**400)}) == 5


async def test_a_large_request_has_the_same_digest_as_at_once() -> None:
    large = CreateRunRequest.model_validate(with_config({"user": "x" * (SMALL + 1)}))
    assert not is_small(large)
    assert await RequestDigests().of(large) == digest_of(large)


@pytest.mark.parametrize("config", [["x"] * SMALL, {str(n): n for n in range(SMALL)}, [["x" * SMALL]], "x" * SMALL])
def test_what_is_large(config: Any) -> None:
    assert not is_small(CreateRunRequest.model_validate(with_config(config)))
    assert is_small(CreateRunRequest.model_validate(with_config([])))
