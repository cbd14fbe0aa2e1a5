"""Schemas from callers: nothing they contain stops the process, reads a file or reaches a host."""

import time
from typing import Any

import pytest

from dify_agent.protocol.json_schema import compile_schema

SECONDS = 1.0
"""Far above what these take (microseconds), far below what they took (minutes)."""


@pytest.mark.parametrize("pattern", ["(a+)+$", "(?=a)(a+)+$", "^(a|aa)+$"])
def test_no_pattern_backtracks_without_a_bound(pattern: str) -> None:
    validator = compile_schema({"pattern": pattern})
    began = time.monotonic()
    validator.is_valid("a" * 60 + "!")
    assert time.monotonic() - began < SECONDS


def doubling(steps: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"n0": {"type": "integer"}}
    for step in range(1, steps):
        definitions[f"n{step}"] = {"allOf": [{"$ref": f"#/$defs/n{step - 1}"}] * 2}
    return {"$defs": definitions, "$ref": f"#/$defs/n{steps - 1}"}


def test_references_that_double_are_refused() -> None:
    assert compile_schema(doubling(8)).is_valid(1)
    began = time.monotonic()
    with pytest.raises(ValueError, match="subschemas"):
        compile_schema(doubling(40))
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize(
    "reference", ["file:///etc/hostname", "http://127.0.0.1:9/x", "https://example.com/s", "other"]
)
def test_nothing_is_fetched(reference: str) -> None:
    with pytest.raises(ValueError, match=r"references within the schema|No base URI"):
        compile_schema({"$ref": reference})


@pytest.mark.parametrize("schema", [{"type": 5}, {"$schema": 5}, {"pattern": "("}, {"required": "a"}])
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        compile_schema(schema)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}])
def test_schemas_that_contain_themselves_end(schema: dict[str, Any]) -> None:
    assert compile_schema(schema).is_valid({"a": 1})


def test_recursive_schemas_follow_the_value() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    validator = compile_schema(tree)
    assert validator.is_valid({"children": [{"children": []}]})
    assert not validator.is_valid({"children": [{"children": [1]}]})


def test_data_keywords_are_not_looked_into() -> None:
    compile_schema({"enum": [{"$ref": "#/$defs/none"}] * 10})
