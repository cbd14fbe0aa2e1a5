"""Structured output: the config, the schema that a model sees, and the check of what it sends."""

import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from pydantic import ValidationError
from tests.unit.loop.scripted import Call, Ran, Text, play, turn

from agenton.compositor import LayerProvider
from dify_agent.layers import output
from dify_agent.layers.output import DIFY_OUTPUT_LAYER_TYPE_ID, DifyOutputLayerConfig
from dify_agent.layers.output import check as check_module
from dify_agent.layers.output.output_layer import DifyOutputLayer
from dify_agent.loop.port import OutputContract, OutputLayer
from dify_agent.loop.toolbox import output_definition

PROVIDER = LayerProvider.from_layer_type(DifyOutputLayer)
SECONDS = 2.0
"""Far above what a bounded step takes, far below what an unbounded one takes."""


def contract(schema: dict[str, Any], **config: Any) -> OutputContract:
    return PROVIDER.create_layer({"json_schema": {"type": "object"} | schema, **config}).output_contract()


def exposed(schema: dict[str, Any]) -> dict[str, Any]:
    """What the model sees, without the members that every schema here has."""
    seen = dict(contract(schema).json_schema)
    assert (seen.pop("title"), seen.pop("type")) == ("final_output", "object")
    return seen


def refusal(schema: dict[str, Any], value: Any) -> str:
    """The text of the only error."""
    validator = contract(schema).validator
    with pytest.raises(ValidationError) as caught:
        validator.validate_json(value) if isinstance(value, str) else validator.validate_python(value)
    [error] = caught.value.errors()
    assert (error["type"], error["loc"]) == ("json_schema_validation", ())
    return error["msg"]


def test_importing_the_package_takes_no_server_dependency() -> None:
    program = (
        "import sys, dify_agent.layers.output as m;"
        "heavy = {'trio', 'jsonschema_rs', 'pydantic_ai', 'dify_agent.loop'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert output.__all__ == ["DIFY_OUTPUT_LAYER_TYPE_ID", "DifyOutputLayerConfig"]


@pytest.mark.parametrize("schema", [{}, {"type": "string"}, {"type": ["object"]}, {"type": None}])
def test_only_objects_are_outputs(schema: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"Value error, Schema must declare an object output\. "):
        DifyOutputLayerConfig(json_schema=schema)


def test_config_fields() -> None:
    config = DifyOutputLayerConfig(json_schema={"type": "object"})
    assert (config.description, config.strict) == (None, None)
    with pytest.raises(ValidationError, match="Extra inputs"):
        DifyOutputLayerConfig.model_validate({"json_schema": {"type": "object"}, "name": "x"})
    with pytest.raises(ValidationError, match="json_schema"):
        DifyOutputLayerConfig.model_validate({})


def test_the_layer_is_what_the_loop_asks_for() -> None:
    layer = PROVIDER.create_layer({"json_schema": {"type": "object"}})
    assert isinstance(layer, OutputLayer)
    assert DifyOutputLayer.type_id == DIFY_OUTPUT_LAYER_TYPE_ID == "dify.output"


@pytest.mark.parametrize(
    ("config", "own", "told"),
    [
        ("configured", "own", "configured"),
        ("configured", None, "configured"),
        (None, "own", "own"),
        ("", None, "The final response which ends this conversation"),
        (None, None, "The final response which ends this conversation"),
    ],
)
@pytest.mark.parametrize("strict", [True, False, None])
def test_definition_of_the_output_tool(config: str | None, own: str | None, told: str, strict: bool | None) -> None:
    schema = {"title": "Mine"} | ({"description": own} if own else {})
    definition = output_definition(contract(schema, description=config, strict=strict))
    assert (definition.name, definition.kind, definition.strict) == ("final_output", "output", strict)
    assert definition.description == told
    assert definition.parameters_json_schema == {"type": "object", "title": "final_output"}


REMOTE = "Remote $ref values are not supported; only local fragment refs beginning with '#' are allowed."
RECURSIVE = "Recursive $defs refs are not supported for structured output exposure."


def unsupported(reference: str) -> str:
    return f"Only local refs under '#/$defs/' are supported in this version; got unsupported local ref '{reference}'."


def unresolved(reference: str) -> str:
    return f"Local $ref '{reference}' could not be resolved from $defs."


def ref(reference: str, **siblings: Any) -> dict[str, Any]:
    return {"$ref": reference, **siblings}


def using(reference: str, **defs: Any) -> dict[str, Any]:
    return {"properties": {"a": ref(reference)}, "$defs": defs}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (using("https://example.com/s"), REMOTE),
        (using("other.json#/$defs/x"), REMOTE),
        (using(""), REMOTE),
        ({"$defs": {"unused": ref("file:///etc/hostname")}}, REMOTE),
        ({"properties": {"default": ref("http://127.0.0.1/")}}, REMOTE),
        ({"$dynamicRef": "http://127.0.0.1/"}, REMOTE),
        (using("#"), unsupported("#")),
        (using("#/properties/b"), unsupported("#/properties/b")),
        (using("#/definitions/b"), unsupported("#/definitions/b")),
        (using("#anchor"), unsupported("#anchor")),
        (using("#/%24defs/b", b={}), unsupported("#/%24defs/b")),
        ({"x-unknown": [[ref("#/x")]]}, unsupported("#/x")),
        ({"$recursiveRef": "#"}, unsupported("#")),
        (using("#/$defs/none"), unresolved("#/$defs/none")),
        (using("#/$defs/b", b=True), unresolved("#/$defs/b")),
        (using("#/$defs/a/b", **{"a/b": {}}), unresolved("#/$defs/a/b")),
        (using("#/$defs/a", a={"items": ref("#/$defs/none")}), unresolved("#/$defs/none")),
        (using("#/$defs/a/allOf/7", a={"allOf": [{}]}), unresolved("#/$defs/a/allOf/7")),
        (using("#/$defs/a", a=ref("#/$defs/a")), RECURSIVE),
        (using("#/$defs/a", a={"items": ref("#/$defs/a")}), RECURSIVE),
        (using("#/$defs/a", a={"items": ref("#/$defs/b")}, b={"not": ref("#/$defs/a")}), RECURSIVE),
        (using("#/$defs/a/items", a={"items": {"not": ref("#/$defs/a")}}), RECURSIVE),
        ({"properties": 5}, '5 is not of type "object"'),
        ({"required": "a"}, '"a" is not of type "array"'),
        (using("#/$defs/b", b={"minimum": "x"}), '"x" is not of type "number"'),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": "x"}, '"x" is not of type "number"'),
    ],
)
def test_schemas_that_are_refused(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        contract(schema)
    assert str(caught.value) == text


CIRCLE = using("#/$defs/a", a={"items": ref("#/$defs/a")})
MISSING = using("#/$defs/none")
TORN = {"properties": {"a": ref("#/$defs/none"), "b": ref("#/$defs/c")}, "$defs": {"c": {"not": ref("#/$defs/c")}}}
UNKNOWN_DRAFT = (
    "Unknown meta-schema: 'https://json-schema.org/draft/none'. "
    "Custom meta-schemas must be registered in the registry before use"
)
NONSENSE = "\"nonsense\" is not valid under any of the schemas listed in the 'anyOf' keyword"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"if": ref("#/x"), "else": {"type": "nonsense"}, **CIRCLE}, unsupported("#/x")),
        ({"else": {"type": "nonsense"}, "not": {"items": [ref("http://x")]}, **MISSING}, REMOTE),
        ({"not": {"type": "nonsense"}, **CIRCLE}, NONSENSE),
        ({"not": {"type": "nonsense"}, **MISSING}, NONSENSE),
        ({"not": {"type": "nonsense"}, **TORN}, NONSENSE),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": "x", **CIRCLE},
            '"x" is not of type "number"',
        ),
        ({"$schema": "https://json-schema.org/draft/none", **CIRCLE}, UNKNOWN_DRAFT),
        ({"properties": {"a": ref("#/$defs/c"), "b": ref("#/$defs/none")}, "$defs": TORN["$defs"]}, RECURSIVE),
        ({"pattern": "(?=x)", **CIRCLE}, RECURSIVE),
    ],
)
def test_the_first_check_that_fails_is_reported(schema: dict[str, Any], text: str) -> None:
    """In the order of layers 2.6: form of the references, meta-schema, where references lead; bounds of ours last."""
    with pytest.raises(ValueError, match=r".+") as caught:
        contract(schema)
    assert str(caught.value) == text


def test_no_draft_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        for schema in ({}, CIRCLE):
            with pytest.raises(ValueError, match="Unknown meta-schema"):
                contract({"$schema": f"http://127.0.0.1:{listening.getsockname()[1]}/draft", **schema})
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize("schema", [{"$schema": 5}, {"$schema": "http://127.0.0.1:9/x"}, {"pattern": "("}])
def test_other_schemas_that_are_none(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        contract(schema)


NAME = {"type": "string", "minLength": 1}


@pytest.mark.parametrize(
    ("schema", "seen"),
    [
        ({}, {}),
        (using("#/$defs/name", name=NAME), {"properties": {"a": NAME}}),
        (
            {"properties": {"a": {"items": ref("#/$defs/b")}}, "$defs": {"b": {"not": ref("#/$defs/c")}, "c": NAME}},
            {"properties": {"a": {"items": {"not": NAME}}}},
        ),
        ({"allOf": [ref("#/$defs/c"), True], "$defs": {"c": NAME}}, {"allOf": [NAME, True]}),
        ({"$ref": "#/$defs/c", "$defs": {"c": {"required": ["x"]}}}, {"required": ["x"]}),
        (
            {"properties": {"a": ref("#/$defs/c", minLength=9, title="T")}, "$defs": {"c": NAME}},
            {"properties": {"a": {"type": "string", "minLength": 9, "title": "T"}}},
        ),
        (
            {"properties": {"a": ref("#/$defs/c", items=ref("#/$defs/d"))}, "$defs": {"c": {"items": {}}, "d": NAME}},
            {"properties": {"a": {"items": NAME}}},
        ),
        ({"$defs": {"loop": ref("#/$defs/loop"), "torn": ref("#/$defs/none")}}, {}),
        (using("#/$defs/a~1b~0c", **{"a/b~c": NAME}), {"properties": {"a": NAME}}),
        (using("#/$defs/a%20b", **{"a b": NAME}), {"properties": {"a": NAME}}),
        (using("#/$defs/a/allOf/1", a={"allOf": [{}, NAME]}), {"properties": {"a": NAME}}),
        (
            {keyword: [ref("#/$defs/none"), ref("http://x")] for keyword in ("enum", "examples")},
            {keyword: [ref("#/$defs/none"), ref("http://x")] for keyword in ("enum", "examples")},
        ),
        (
            {keyword: ref("http://x") for keyword in ("const", "default", "example")},
            {keyword: ref("http://x") for keyword in ("const", "default", "example")},
        ),
        (
            {
                "properties": {name: ref("#/$defs/c") for name in ("default", "const", "enum", "$ref", "$defs")},
                "$defs": {"c": NAME, "enum": NAME},
            },
            {"properties": dict.fromkeys(("default", "const", "enum", "$ref", "$defs"), NAME)},
        ),
        (
            {
                "patternProperties": {"default": ref("#/$defs/const")},
                "dependentSchemas": {"enum": ref("#/$defs/const")},
                "$defs": {"const": NAME},
            },
            {"patternProperties": {"default": NAME}, "dependentSchemas": {"enum": NAME}},
        ),
        ({"properties": {"properties": {"default": ref("#")}}}, {"properties": {"properties": {"default": ref("#")}}}),
    ],
)
def test_the_model_sees_no_references(schema: dict[str, Any], seen: dict[str, Any]) -> None:
    assert exposed(schema) == seen


def test_the_original_schema_stays_and_decides() -> None:
    # In draft 7 the siblings of a reference mean nothing: the model is told 9, the check wants 1.
    original = {
        "type": "object",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"a": {"$ref": "#/$defs/c", "minLength": 9}},
        "$defs": {"c": NAME},
    }
    config = DifyOutputLayerConfig(json_schema=original)
    before = config.model_dump_json()
    made = DifyOutputLayer.from_config(config).output_contract()
    assert made.json_schema["properties"]["a"]["minLength"] == 9
    assert made.validator.validate_python({"a": "x"}) == {"a": "x"}
    assert config.model_dump_json() == before


def doubling(steps: int) -> dict[str, Any]:
    names: dict[str, Any] = {"n0": {}}
    names |= {f"n{i}": {"allOf": [ref(f"#/$defs/n{i - 1}"), ref(f"#/$defs/n{i - 1}")]} for i in range(1, steps)}
    return using(f"#/$defs/n{steps - 1}", **names)


def test_definitions_that_double_are_refused_in_time() -> None:
    assert exposed(doubling(4))
    began = time.monotonic()
    with pytest.raises(ValueError, match="more than 20000 subschemas once its references are put in"):
        contract(doubling(60))
    with pytest.raises(ValueError, match="more than 20000 parts once its references are put in"):
        contract(doubling(13))
    assert time.monotonic() - began < SECONDS


def nested(levels: int, inner: Any, key: str = "not") -> Any:
    for _ in range(levels):
        inner = {key: inner}
    return inner


@pytest.mark.parametrize(
    "schema",
    [
        nested(5000, {}),
        nested(1000, {}, "const"),
        using("#/$defs/n0", **{f"n{i}": {"items": ref(f"#/$defs/n{i + 1}")} for i in range(400)}, n400={}),
        using("#/$defs/n0", **{f"n{i}": ref(f"#/$defs/n{i + 1}") for i in range(5000)}, n5000={}),
    ],
)
def test_deep_schemas_are_refused(schema: dict[str, Any]) -> None:
    # Past the config, whose own JSON type has a bound of nesting too.
    config = DifyOutputLayerConfig.model_construct(json_schema={"type": "object"} | schema)
    with pytest.raises(ValueError, match=r"levels deep|Recursion limit"):
        DifyOutputLayer(config).output_contract()


INVOICE = {
    "properties": {
        "items": {"type": "array", "items": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}},
        "a": {"properties": {"b": {"enum": ["{x}", "{text}"]}}},
    },
    "additionalProperties": False,
}
MISMATCH = "Output does not match JSON Schema: "


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"x": 1}, "$: Additional properties are not allowed ('x' was unexpected)"),
        ({"a": {"b": 1}}, '$.a.b: 1 is not one of "{x}" or "{text}"'),
        ({"a": {"b": "{} {0} {msg}"}}, '$.a.b: "{} {0} {msg}" is not one of "{x}" or "{text}"'),
        ({"items": ["x", {"n": "x"}]}, '$.items[1].n: "x" is not of type "integer"'),
        ({"items": [{}] * 2 + [{"s": 0}] * 9}, '$.items[2].s: 0 is not of type "string"'),
        ({"items": 0, "a": {"b": 0}, "x": 1}, "$: Additional properties are not allowed ('x' was unexpected)"),
        ({"items": 0, "a": {"b": 0}}, '$.a.b: 0 is not one of "{x}" or "{text}"'),
    ],
)
def test_the_first_error_by_path_is_told(value: dict[str, Any], text: str) -> None:
    assert refusal(INVOICE, value) == MISMATCH + text


@pytest.mark.parametrize(
    "text", ['{"a": 1', '{"a": 1}{"a": 1}', "", "[1]", "null", '"x"', "{'a': 1}", '{"a":"\\ud800"}']
)
def test_text_that_is_no_object(text: str) -> None:
    with pytest.raises(ValidationError):
        contract({}).validator.validate_json(text)


@pytest.mark.parametrize("value", [[1], None, "x", 5, {1: 2}, {b"a": 1}])
def test_values_that_are_no_object(value: Any) -> None:
    with pytest.raises(ValidationError):
        contract({}).validator.validate_python(value)


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '{"a": [1.5e300, "\\ud83d\\ude00", null, true, {}]}', "{}", '{"a":1,"a":2}']
)
def test_what_is_accepted_comes_back(text: str) -> None:
    validator = contract({}).validator
    value = validator.validate_json(text)
    assert validator.validate_python(value) == value
    assert isinstance(value, dict)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('{"a": [NaN]}', "$.a[0]: nan is not a JSON number"),
        ('{"a": -Infinity}', "$.a: -inf is not a JSON number"),
        ('{"a": {"b": 1e999}}', "$.a.b: inf is not a JSON number"),
        ({"a": 10**4300}, "$.a: an integer of more than 4300 digits"),
        ({"a": ["ok", "\ud800"]}, "$.a[1]: the text has half of a surrogate pair"),
        ({"\udfff": 1}, r"$.\udfff: the text has half of a surrogate pair"),
        ({"a": {2: 1}}, "$.a: a key is int, not a string"),
        ({"a": b"x"}, "$.a: bytes is not a JSON type"),
        ({"a": (1,)}, "$.a: tuple is not a JSON type"),
        (nested(250, 1, "a"), "$" + ".a" * 180 + ": nested more than 180 levels deep"),
        (nested(100_000, 1, "a"), "$" + ".a" * 180 + ": nested more than 180 levels deep"),
    ],
)
def test_outputs_are_strict_json(value: Any, text: str) -> None:
    assert refusal({}, value) == f"Output is not JSON: {text}"


def test_the_largest_values_that_are_json() -> None:
    validator = contract({}).validator
    for value in ({"a": 10**4300 - 1}, {"a": -(10**4299)}, nested(180, 1, "a")):
        assert validator.validate_python(value) == value


def test_deep_text_is_an_error() -> None:
    with pytest.raises(ValidationError, match="recursion limit"):
        contract({}).validator.validate_json('{"a":' * 10_000 + "1" + "}" * 10_000)


def test_messages_are_bounded() -> None:
    text = refusal({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 100_000})
    assert text.startswith(f'{MISMATCH}$.a: "xxx')
    assert len(text) < 2100


def test_many_errors_of_a_large_output_are_not_listed() -> None:
    # Listing them all would take 300 messages of 5 MB.
    parts = [{"type": "integer", "title": str(number)} for number in range(300)]
    made = contract({"properties": {"a": {"allOf": parts}}})
    value = {"a": "x" * 5_000_000}
    began = time.monotonic()
    with pytest.raises(ValidationError, match="json_schema_validation"):
        made.validator.validate_python(value)
    assert time.monotonic() - began < SECONDS


def test_beyond_the_bound_the_first_error_of_the_schema_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}
    value = {"b": "x", "a": "x"}
    assert refusal(schema, value).startswith(f"{MISMATCH}$.a: ")
    monkeypatch.setattr(check_module, "LISTING_COST", 0)
    assert refusal(schema, value) in {f'{MISMATCH}$.{name}: "x" is not of type "integer"' for name in "ab"}


def test_an_output_that_would_take_long_to_check_is_refused() -> None:
    choices = [{"type": "integer", "minimum": 10 + number} for number in range(1000)]
    text = refusal({"properties": {"a": {"items": {"anyOf": choices}}}}, {"a": [5] * 20_000})
    assert text.startswith("Output cannot be checked: it is too large to be checked against its schema; send less")
    assert refusal({}, {"a": [[1] * 1000] * 1000}) == "Output cannot be checked: it has more than 200000 values"


def test_an_error_that_would_take_long_to_find_is_not_told() -> None:
    inner: dict[str, Any] = {"type": "integer"}
    for _ in range(9):
        inner = {"anyOf": [{"items": inner, "minItems": 1}, {"items": inner, "maxItems": 0}]}
    value: Any = "x"
    for _ in range(9):
        value = [value] * 2
    text = refusal({"properties": {"a": inner}}, {"a": value})
    assert text == f"{MISMATCH}$: too large to say where"


def test_a_large_output_is_checked_in_time() -> None:
    row = {"id": {"type": "integer"}, "name": {"type": "string"}}
    made = contract({"properties": {"rows": {"type": "array", "items": {"properties": row}}}})
    value = {"rows": [{"id": number, "name": "é" * 20} for number in range(20_000)]}
    began = time.monotonic()
    assert made.validator.validate_python(value) == value
    assert time.monotonic() - began < SECONDS


COUNT = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def ran(*args: str | dict[str, Any]) -> Ran:
    """A run in which the model sends these outputs, one per response."""
    turns = [turn(Call("final_output", sent, id=f"c{number}")) for number, sent in enumerate(args)]
    return await play(*turns, output=contract(COUNT))


@pytest.mark.parametrize("args", ['{"n": 1}', {"n": 1}])
async def test_run_with_an_accepted_output(args: str | dict[str, Any]) -> None:
    run = await ran(args)
    assert (run.result, run.error, len(run.model.sent)) == ({"n": 1}, None, 1)
    [tool] = run.model.sent[0].parameters.output_tools
    assert tool.parameters_json_schema == {"type": "object", "title": "final_output", **COUNT}


@pytest.mark.parametrize("bad", ['{"n": "x"}', '{"n": NaN}', '{"n": 1', "", {"n": "\ud800"}, {"n": nested(300, 1)}])
async def test_run_that_corrects_its_output(bad: str | dict[str, Any]) -> None:
    run = await ran(bad, '{"n": 2}')
    assert (run.result, run.error, len(run.model.sent)) == ({"n": 2}, None, 2)
    [answer] = run.parts(2)
    assert (answer.outcome, answer.retry.attempt, answer.retry.max_retries) == ("retried", 1, 1)


async def test_the_model_is_told_what_is_wrong() -> None:
    run = await ran('{"n": "x"}', '{"n": 2}')
    [answer] = run.parts(2)
    text = 'Output does not match JSON Schema: $.n: "x" is not of type "integer"'
    assert answer.content == [{"type": "json_schema_validation", "loc": [], "msg": text, "input": {"n": "x"}}]


async def test_run_whose_outputs_are_all_wrong() -> None:
    run = await ran("{}", '{"n": null}')
    assert str(run.error) == "Exceeded maximum output retries (1)"
    assert run.result is None


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (Text("hello"), Call("final_output", "{}"), {"n": 3}),
        (Call("final_output", "{}"), Text("hello"), None),
        (Text("hello"), Text("hello"), None),
    ],
)
async def test_text_is_answered_only_as_long_as_no_output_was_refused(
    first: Text | Call, second: Text | Call, result: dict[str, Any] | None
) -> None:
    turns = (turn(first), turn(second), turn(Call("final_output", '{"n": 3}', id="c3")))
    run = await play(*turns, output=contract(COUNT))
    error = None if result else "Exceeded maximum output retries (1)"
    assert (run.result, str(run.error) if run.error else None) == (result, error)


async def test_text_is_no_output() -> None:
    run = await play(turn(Text("hello")), turn(Call("final_output", '{"n": 3}')), output=contract(COUNT))
    assert run.result == {"n": 3}
