"""Arguments of plugin tools: defaults, casts, hidden values (integrations 4.2)."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dify_agent.layers.dify_plugin.parameters import cast_value, check_hidden_parameters, prepare_parameters
from dify_agent.layers.dify_plugin.tools_config import (
    DifyPluginToolConfig,
    DifyPluginToolParameter,
    DifyPluginToolParameterType,
)

TEXTS = ["string", "secret-input", "select", "checkbox", "dynamic-select"]


def declared(name="p", type="string", form="llm", **members):
    return DifyPluginToolParameter(name=name, type=type, form=form, **members)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), ("", ""), ("ü", "ü"), (1, "1"), (1.5, "1.5"), (True, "True"),
        ({"ü": [1]}, '{"ü": [1]}'), ([None], "[null]"),
    ],
)  # fmt: skip
def test_texts(kind, value, text):
    assert cast_value(declared(type=kind), value) == text


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("boolean", None, False), ("boolean", True, True), ("boolean", 0, False), ("boolean", 2, True),
        ("boolean", "YES", True), ("boolean", "y", True), ("boolean", "1", True), ("boolean", "True", True),
        ("boolean", "No", False), ("boolean", "n", False), ("boolean", "0", False), ("boolean", "FALSE", False),
        ("boolean", "", False), ("boolean", "on", True), ("boolean", [], False),
        ("number", 3, 3), ("number", 3.5, 3.5), ("number", "42", 42), ("number", "-4.50", -4.5), ("number", "", ""),
        ("number", None, None), ("number", [1], [1]), ("number", True, True), ("number", " ٤٢ ", 42),
        ("number", "9" * 308, int("9" * 308)), ("number", "1.0e-999999", 0.0), ("number", 10**308, 10**308),
        ("array", "[" * 100_000, ["[" * 100_000]), ("object", '{"a":' * 9999, {}),
        ("boolean", 10**400, True), ("boolean", "١", True),
        ("array", [1], [1]), ("array", '["a", 1]', ["a", 1]), ("array", "a", ["a"]),
        ("array", '{"a": 1}', ['{"a": 1}']),
        ("array", 7, [7]), ("array", None, [None]), ("array", "[1", ["[1"]),
        ("object", {"a": 1}, {"a": 1}), ("object", '{"a": 1}', {"a": 1}), ("object", "[1]", {}), ("object", "x", {}),
        ("object", None, {}), ("object", 3, {}),
        ("any", None, None), ("any", {"a": [1]}, {"a": [1]}), ("any", "x", "x"), ("any", False, False),
        ("model-selector", {"m": 1}, {"m": 1}), ("app-selector", {}, {}),
        ("file", "a.txt", "a.txt"), ("file", ["a.txt"], "a.txt"),
        ("files", "a.txt", ["a.txt"]), ("files", ["a", "b"], ["a", "b"]),
        ("system-files", {"url": "u"}, [{"url": "u"}]),
        ("files", [], []),
    ],
)  # fmt: skip
def test_casts(kind, value, result):
    cast = cast_value(declared(type=kind), value)
    assert cast == result
    assert type(cast) is type(result)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("number", "ten", "'ten' is not a number"),
        ("number", "1e5", "is not a number"),
        ("number", "9.9e999", "is too large"),
        ("number", "9.9e-999x", "is not a number"),
        ("number", "9" * 310, "is too large"),
        ("number", "-" + "9" * 310, "is too large"),
        ("number", "9" * 5000, "is too large"),
        ("number", "٩" * 5000, "is too large"),
        ("number", "1e999999", "is too large"),
        ("number", "1.0e999999", "is too large"),
        ("number", "-1.e999999", "is too large"),
        ("number", 10**400, "is too large"),
        ("number", float("-inf"), "is too large"),
        ("number", float("nan"), "or none"),
        ("number", "inf", "is not a number"),
        ("number", "nan", "is not a number"),
        ("number", "x" * 5000, "is not a number"),
        ("number", "True", "is not a number"),
        ("file", [], "takes exactly one file, got 0"),
        ("file", ["a", "b"], "takes exactly one file, got 2"),
        ("model-selector", "m", "must be an object"),
        ("app-selector", None, "must be an object"),
    ],
)
def test_refused_values_name_the_parameter(kind, value, text):
    with pytest.raises(ValueError, match=f"^parameter p: .*{text}"):
        cast_value(declared(type=kind), value)


@pytest.mark.parametrize("kind", TEXTS)
def test_what_python_cannot_write_is_refused(kind):
    nested = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match=r"^parameter p: is nested too deeply$"):
        cast_value(declared(type=kind), nested)
    for value in (10**5000, [10**5000]):
        with pytest.raises(ValueError, match=r"^parameter p: holds a number that is too large$"):
            cast_value(declared(type=kind), value)


@given(
    st.sampled_from(DifyPluginToolParameterType),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.from_regex(r"[+-]?\d*\.?\d*e?\d*"),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
)
def test_a_cast_refuses_or_gives_a_value(kind, value):
    with suppress(ValueError):
        cast = cast_value(declared(type=kind), value)
        if kind is DifyPluginToolParameterType.NUMBER and isinstance(cast, int | float):
            assert math.isfinite(cast)


def test_arguments_lie_over_hidden_values_over_defaults():
    parameters = [
        declared("given", "number"),
        declared("hidden", "boolean", "form"),
        declared("both", "number", default="7"),
        declared("defaulted", "number", default="5"),
        declared("left_out"),
        declared("null", default="not this"),
    ]
    values = prepare_parameters(
        parameters,
        {"hidden": "yes", "both": "1", "stray": {"kept": 1}},
        {"given": "2", "both": "3", "null": None, "other": "1"},
    )
    assert values == {
        "given": 2, "hidden": True, "both": 3, "defaulted": 5, "null": "", "stray": {"kept": 1}, "other": "1",
    }  # fmt: skip


def test_the_caller_keeps_its_values():
    hidden, arguments = {"a": "1"}, {"b": "2"}
    prepare_parameters([declared("a", "number"), declared("b", "number")], hidden, arguments)
    assert (hidden, arguments) == ({"a": "1"}, {"b": "2"})


def test_a_missing_required_parameter():
    with pytest.raises(ValueError, match=r"^tool parameter q not found in tool config$"):
        prepare_parameters([declared("q", required=True)], {}, {"p": 1})


def tool(*parameters, **runtime):
    return DifyPluginToolConfig(
        plugin_id="p", provider="p", tool_name="search", credential_type="api-key", name="seen",
        parameters=list(parameters), runtime_parameters=runtime,
    )  # fmt: skip


def test_hidden_parameters_must_be_there_before_the_run():
    needed = {"required": True, "form": "form"}
    lacking = tool(
        declared("z", **needed), declared("a", form="schema", required=True), declared("c", **needed, default=0),
        declared("d", **needed), declared("e", required=True), declared("f", form="form"), d=None,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"^Tool 'search' requires non-LLM runtime_parameters for: z, a\.$"):
        check_hidden_parameters(lacking)
    check_hidden_parameters(tool(declared("z", **needed), z=1))
