"""No schema and no value holds the thread for long: each case is done or refused, in CPU time of this thread.

The validator holds the interpreter lock, so what a check takes is what every other task of the process waits.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dify_agent.protocol import json_schema
from dify_agent.protocol.json_schema import TooCostlyError, checked_extent, compile_schema

SECONDS = 2.0
"""Several times what each case may take on a slow machine; most took more, some minutes, before they were bounded."""


@contextmanager
def bounded() -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < SECONDS


def fits(schema: dict[str, Any], value: Any) -> bool:
    return compile_schema(schema).is_valid(value, checked_extent(value))


def texts(*patterns: str) -> dict[str, Any]:
    return {"properties": {f"p{number}": {"type": "string", "pattern": one} for number, one in enumerate(patterns)}}


@pytest.mark.parametrize(
    "pattern", ["(?=(a+)+b)c", "a(?!b)", "(?<=a)b", "(?<!a)b", r"(a)\1", r"(?<n>a)\k<n>", r"\\(?=a)", r"\\\1"]
)
@pytest.mark.parametrize("place", ["pattern", "patternProperties"])
def test_patterns_that_backtrack_are_refused(pattern: str, place: str) -> None:
    schema = {"properties": {"a": {place: pattern if place == "pattern" else {pattern: {}}}}}
    with pytest.raises(ValueError, match="look-around and backreferences in a pattern are not supported"):
        compile_schema(schema)


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "a{5}{", r"[a-z]{30000}", r"\p{Nothing}"])
def test_other_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no regular expression, or one that takes more than 524288 bytes compiled"):
        compile_schema({"pattern": pattern})


CASELESS = r"(?i)\w{40}\p{L}{10}x"
SCHEMAS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "large patterns": (lambda: texts(*(f"{CASELESS}{n}" for n in range(100))), "16777216 bytes compiled"),
    "many large patterns": (lambda: texts(*(rf"^.{{1,{400 + n}}}$" for n in range(100))), "16777216 bytes compiled"),
    "many patterns": (lambda: texts(*(f"a{n}" for n in range(1000))), "250 different patterns"),
    "long patterns": (lambda: texts("[" + r"\p{L}\p{N}" * 2000 + "]"), "10000 characters together"),
    "many properties": (lambda: {"properties": {f"p{n}": {"type": "string"} for n in range(49_000)}}, "subschemas"),
    "much data": (lambda: {"enum": list(range(200_000))}, "100000 values"),
    "shared data": (
        lambda: {
            "properties": {f"p{n}": {"$ref": "#/$defs/d"} for n in range(1000)},
            "$defs": {"d": {"enum": list(range(1000))}},
        },
        "100000 values",
    ),
    "long bound": (lambda: {"maximum": 10**2000}, "integer of more than 128 bits"),
    "unevaluated in a cycle": (
        lambda: {"unevaluatedProperties": False, "properties": {"a": {"$ref": "#"}}},
        "not supported in a schema with a cycle",
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_that_would_take_long_are_refused(name: str) -> None:
    made, text = SCHEMAS[name]
    schema = made()
    with bounded(), pytest.raises(ValueError, match=text):
        compile_schema(schema)


def items(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


def any_of(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*parts, {}]}


def unevaluated(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"patternProperties": {"k": True}, "unevaluatedProperties": False}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


CHECKS: dict[str, Callable[[], tuple[dict[str, Any], Any]]] = {
    "pattern and a long text": lambda: ({"pattern": "a[ab]{500}c"}, "ab" * 100_000),
    "patterns and keys": lambda: ({"patternProperties": {"a[ab]{500}c": {}}}, {"ab" * 50_000: 1, "ba" * 50_000: 1}),
    "patterns of names": lambda: ({"propertyNames": {"pattern": "a[ab]{500}c"}}, {"ab" * 100_000: 1}),
    "options that are arrays": lambda: (items({"enum": [[n] for n in range(1000)]}), [[999]] * 20_000),
    "choices": lambda: (items(any_of(*({"minimum": 10 + n} for n in range(1000)))), [5] * 20_000),
    "divisors": lambda: (items(any_of(*({"multipleOf": 0.01 + n / 1e5} for n in range(1000)))), [1.2345] * 1000),
    "long integers": lambda: ({"uniqueItems": True}, [2**64 + n for n in range(5000)]),
    "contains": lambda: (items(any_of(*({"contains": {"const": n}} for n in range(1, 1000)))), [[0] * 100] * 200),
    "unique in unique": lambda: (items(any_of(*[{"uniqueItems": True}] * 1000)), [[[n] for n in range(100)]] * 100),
    "unevaluated in unevaluated": lambda: (unevaluated(20), {f"k{n}": 1 for n in range(500)}),
    "many values": lambda: ({}, [[1] * 1000] * 1000),
}


@pytest.mark.parametrize("name", CHECKS)
def test_checks_that_would_take_long_are_refused(name: str) -> None:
    schema, value = CHECKS[name]()
    with bounded(), pytest.raises(TooCostlyError, match=r"too large to be checked|more than \d+ (integers|values)"):
        fits(schema, value)


def nested(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = {"a": value}
    return value


CYCLE = {"$ref": "#"}
CYCLES: dict[str, dict[str, Any]] = {
    "all": {"allOf": [{"properties": {"a": CYCLE}}, {"properties": {"a": CYCLE}, "minProperties": 0}]},
    "any": {
        "anyOf": [
            {"type": "object", "properties": {"a": CYCLE}, "required": ["x"]},
            {"type": "object", "properties": {"a": CYCLE}, "required": ["y"]},
        ]
    },
    "one": {"oneOf": [{"properties": {"a": CYCLE}}, {"properties": {"a": CYCLE}, "required": ["y"]}]},
    "kinds": {"additionalProperties": CYCLE, "patternProperties": {"a": CYCLE, "^": CYCLE}, "propertyNames": CYCLE},
    "conditions": {"if": {"properties": {"a": CYCLE}}, "then": {"properties": {"a": CYCLE}}, "else": CYCLE},
}


@pytest.mark.parametrize("name", CYCLES)
def test_schemas_with_a_cycle_do_not_double(name: str) -> None:
    check, value = compile_schema(CYCLES[name]), nested(170)
    extent = checked_extent(value)
    with bounded():
        if not check.is_valid(value, extent):
            check.first_error(value, extent)


def test_the_error_of_nested_choices_is_told_while_it_is_bounded() -> None:
    check = compile_schema(CYCLES["any"])
    shallow, deep = nested(4), nested(40)
    error = check.first_error(shallow, checked_extent(shallow))
    assert error is not None
    assert "not valid under any of the schemas" in error.message
    assert check.first_error(deep, checked_extent(deep)) is None


def test_a_check_at_the_limit_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    schema, value = items({"minimum": 1}), [1] * 100
    monkeypatch.setattr(json_schema, "COST_LIMIT", 203)
    assert fits(schema, value)
    monkeypatch.setattr(json_schema, "COST_LIMIT", 202)
    with pytest.raises(TooCostlyError):
        fits(schema, value)


# What people really send


ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\r\n]+$"},
        "postcode": {"type": "string", "pattern": r"^[A-Z0-9][A-Z0-9 -]{2,9}$"},
        "country": {"type": "string", "enum": [f"{a}{b}" for a in "ABCDEFGHIJ" for b in "ABCDEFGHIJKLMNOPQRSTUVWXY"]},
        "mail": {"type": "string", "format": "email", "pattern": r"^[^\s@]+@[^\s@]+\.[^\s@]+$"},
        "phone": {"anyOf": [{"type": "string", "pattern": r"^\+?[0-9 ()/-]{5,20}$"}, {"type": "null"}]},
        "since": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2}))?$"},
        "id": {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
    },
    "required": ["street", "postcode", "country"],
    "additionalProperties": False,
}
LIVING = {
    "street": "Long Lane 12",
    "postcode": "AB1 2CD",
    "country": "JY",
    "mail": "someone@example.com",
    "phone": "+47 22 33 44 55",
    "since": "2026-11-30T17:45:36.7Z",
    "id": "4bdd7439-e95f-4907-a9cd-749fd4561cad",
}


def test_a_list_of_addresses() -> None:
    schema = {"type": "object", "properties": {"all": items({"$ref": "#/$defs/a"})}, "$defs": {"a": ADDRESS}}
    with bounded():
        assert fits(schema, {"all": [LIVING] * 200})
        assert not fits(schema, {"all": [*[LIVING] * 200, {**LIVING, "id": "x"}]})


def test_a_form_of_hundreds_of_properties_and_dozens_of_patterns() -> None:
    fields: dict[str, Any] = {
        f"field_{n}": {"title": f"Field {n}", "description": "What to fill in. " * 5, "type": ["string", "null"]}
        for n in range(600)
    }
    for n in range(60):
        fields[f"field_{n}"]["pattern"] = rf"^[A-Za-z]{{2,20}}-{n}(-\d+)?$"
    schema = {"type": "object", "properties": fields, "required": [*fields][:300], "additionalProperties": False}
    values = {name: f"Abc-{n}" for n, name in enumerate(fields)}
    with bounded():
        assert fits(schema, values)
        assert not fits(schema, values | {"field_0": "Abc-1"})


def test_a_tree_of_kinds() -> None:
    branch = {
        "type": "object",
        "properties": {"kind": {"const": "and"}, "of": items(CYCLE)},
        "required": ["kind", "of"],
    }
    leaf = {"type": "object", "properties": {"kind": {"const": "is"}, "name": {"type": "string"}}, "required": ["name"]}
    schema = {"oneOf": [branch, leaf]}
    tree: Any = {"kind": "is", "name": "x"}
    for _ in range(8):
        tree = {"kind": "and", "of": [tree, tree]}
    with bounded():
        assert fits(schema, tree)


def test_a_long_text_and_a_table() -> None:
    row = {"type": "object", "properties": {f"c{n}": {"type": ["number", "string"]} for n in range(8)}}
    schema = {"type": "object", "properties": {"text": {"type": "string", "minLength": 1}, "rows": items(row)}}
    rows = [{f"c{n}": n for n in range(8)} for _ in range(10_000)]
    with bounded():
        assert fits(schema, {"text": "é" * 1_000_000, "rows": rows})


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-07/schema#", None])
def test_a_format_is_an_annotation(draft: str | None) -> None:
    named = {"$schema": draft} if draft is not None else {}
    assert fits({**named, "format": "date"}, "x")


CHOICE = {
    "oneOf": [
        {"type": "array", "items": {"$ref": "#/$defs/n"}},
        {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 5},
        {"type": "integer"},
    ]
}


def test_a_part_with_an_id_of_its_own_is_refused():
    """Its references mean its own definitions, and the way there was measured as harmless: that hung a process."""
    inner = {"$id": "urn:x", "$defs": {"n": CHOICE}, "$ref": "#/$defs/n"}
    schema = {"type": "object", "properties": {"a": inner}, "$defs": {"n": {"type": "array"}}}
    with pytest.raises(ValueError, match="inside the schema is not supported"):
        compile_schema(schema)
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"id": "urn:x", "type": "object"}}}
    with pytest.raises(ValueError, match="'id' inside the schema"):
        compile_schema(old)
    compile_schema({"$id": "urn:whole", "properties": {"id": {"type": "string"}, "$id": {"type": "string"}}})
    compile_schema({"properties": {"a": {"id": "urn:x", "type": "object"}}})
