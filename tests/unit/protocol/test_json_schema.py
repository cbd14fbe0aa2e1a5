"""Schemas from callers: nothing they contain stops the process, reads a file or reaches a host."""

import time
from typing import Any

import pytest

from dify_agent.protocol.extent import measure
from dify_agent.protocol.json_schema import compile_schema

SECONDS = 1.0
"""Far above what these take (microseconds), far below what they took (minutes)."""


def fits(schema: dict[str, Any], value: Any) -> bool:
    return compile_schema(schema).is_valid(value, measure(value))


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|aa)+$", "(a*)*b"])
def test_no_pattern_backtracks_without_a_bound(pattern: str) -> None:
    began = time.monotonic()
    assert not fits({"pattern": pattern}, "a" * 50_000 + "!")
    assert time.monotonic() - began < SECONDS


def doubling(steps: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"n0": {"type": "integer"}}
    for step in range(1, steps):
        definitions[f"n{step}"] = {"allOf": [{"$ref": f"#/$defs/n{step - 1}"}] * 2}
    return {"$defs": definitions, "$ref": f"#/$defs/n{steps - 1}"}


def test_references_that_double_are_refused() -> None:
    assert fits(doubling(8), 1)
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
    assert fits(schema, {"a": 1})


def test_recursive_schemas_follow_the_value() -> None:
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    assert fits(tree, {"children": [{"children": []}]})
    assert not fits(tree, {"children": [{"children": [1]}]})


def test_data_keywords_are_not_looked_into() -> None:
    compile_schema({"enum": [{"$ref": "#/$defs/none"}] * 10})


def chain(form: str, length: int) -> dict[str, Any]:
    """Schemas of which each refers to the one before twice, in one of the ways that references can be written."""

    def twice(reference: str, **more: Any) -> dict[str, Any]:
        return {"allOf": [{"$ref": reference}] * 2, **more}

    steps = range(1, length)
    last = length - 1
    match form:
        case "property named like a data keyword":
            names: dict[str, Any] = {"n0": {"properties": {"default": {}}}}
            names |= {f"n{i}": {"properties": {"default": twice(f"#/$defs/n{i - 1}")}} for i in steps}
            return {"$defs": names, "$ref": f"#/$defs/n{last}"}
        case "percent-encoded":
            names = {"n 0": {}} | {f"n {i}": twice(f"#/$defs/n%20{i - 1}") for i in steps}
            return {"$defs": names, "$ref": f"#/$defs/n%20{last}"}
        case "position in a list":
            return {"allOf": [{}, *(twice(f"#/allOf/{i - 1}") for i in steps)]}
        case "anchor":
            names = {"n0": {"$anchor": "n0"}} | {f"n{i}": twice(f"#n{i - 1}", **{"$anchor": f"n{i}"}) for i in steps}
            return {"$defs": names, "$ref": f"#n{last}"}
        case "dynamic":
            names = {"n0": {}}
            names |= {f"n{i}": {"allOf": [{"$dynamicRef": f"#/$defs/n{i - 1}"}] * 2} for i in steps}
            return {"$defs": names, "$dynamicRef": f"#/$defs/n{last}"}
        case "within data":
            return {"enum": [{}, *(twice(f"#/enum/{i - 1}") for i in steps)], "$ref": f"#/enum/{last}"}
        case _:
            raise AssertionError(form)


FORMS = [
    "property named like a data keyword",
    "percent-encoded",
    "position in a list",
    "anchor",
    "dynamic",
    "within data",
]


@pytest.mark.parametrize("form", FORMS)
def test_doubling_is_refused_however_the_references_are_written(form: str) -> None:
    fits(chain(form, 5), {"a": 1, "default": 1})
    began = time.monotonic()
    with pytest.raises(ValueError, match="subschemas"):
        compile_schema(chain(form, 40))
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize("backwards", [False, True])
def test_long_chains_are_refused(backwards: bool) -> None:
    steps = [{"not": {"$ref": f"#/enum/{i + 1}"}} for i in range(30_000)]
    schema: dict[str, Any] = {"enum": [*steps, {}]}
    if backwards:
        schema["allOf"] = [{"$ref": f"#/enum/{i}"} for i in range(30_000, 28_000, -300)]
    else:
        schema["$ref"] = "#/enum/0"
    with pytest.raises(ValueError, match="levels deep"):
        compile_schema(schema)


def test_chains_of_usual_length_are_followed() -> None:
    names = {f"n{i}": {"not": {"$ref": f"#/$defs/n{i + 1}"}} for i in range(200)}
    schema = {"$defs": {**names, "n200": {"type": "integer"}}, "$ref": "#/$defs/n0"}
    assert fits(schema, 1)
    assert not fits(schema, "x")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"$ref": {"type": "integer"}, "const": {"type": "integer"}}},
        {"$defs": {"enum": {"type": "integer"}}, "properties": {"$ref": {"$ref": "#/$defs/enum"}}},
    ],
)
def test_property_names_are_no_keywords(schema: dict[str, Any]) -> None:
    assert fits(schema, {"$ref": 1})
    assert not fits(schema, {"$ref": "x"})
