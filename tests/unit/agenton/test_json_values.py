"""Values as JSON data: what stays, what is replaced, what is refused."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import from_json, to_json

from agenton.json_values import NotJsonDataError, has_long_integer, is_exact, json_data, plain_data


def nested(levels: int, leaf: Any = 1) -> Any:
    for _ in range(levels):
        leaf = [leaf]
    return leaf


class Opaque:
    pass


@pytest.mark.parametrize("value", [None, True, 0, -0.0, 2**64 + 1, "é\x00", nested(100), {"a": [1.5, 10**4300 - 1]}])
def test_what_is_exact_is_given_back_itself(value: Any) -> None:
    assert is_exact(value, 180)
    assert json_data(value, 180) is value


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (math.nan, None),
        ([-math.inf], [None]),
        ("\ud800", "\ufffd"),
        ("\ud83d\ude00", "😀"),
        ({"\ud83d\ude00": 1}, {"😀": 1}),
        ({"a\udfff": 1, b"a\xef\xbf\xbd": 2}, {"a\ufffd": 2}),
        ({1: "a", "1": "b"}, {"1": "b"}),
        ({b"\xff": 1}, {"_w==": 1}),
        (bytearray(b"\xff"), "_w=="),
        (object(), "<object>"),
        ({object(): 1}, {"<object>": 1}),
        (iter([1, 2]), [1, 2]),
        ([object(), {"a": (math.nan, {"\ud800"})}], ["<object>", {"a": [None, ["\ufffd"]]}]),
    ],
)
def test_what_is_not_exact_is_replaced(value: Any, data: Any) -> None:
    assert repr(json_data(value, 180)) == repr(data)


def test_what_no_reader_takes_is_refused() -> None:
    for value in (10**4300, [-(10**4300)], {10**4300: 1}, nested(181), nested(100_000)):
        with pytest.raises(NotJsonDataError):
            json_data(value, 180)


def test_a_cycle_is_refused() -> None:
    value: list[Any] = []
    value.append({"a": value})
    with pytest.raises(NotJsonDataError, match="contains itself"):
        json_data(value, 180)


def test_opaque_objects_stay() -> None:
    item = Opaque()
    assert json_data(["\ud800", item], 180, opaque=(Opaque,)) == ["\ufffd", item]


def test_plain_data_refuses_objects() -> None:
    for value in (Opaque(), [Opaque()], {Opaque(): 1}):
        with pytest.raises(NotJsonDataError, match="<Opaque> has no JSON form"):
            plain_data(value, 180)


def test_bytes_of_a_model_do_not_stop_the_rest() -> None:
    class Model(BaseModel):
        data: bytes = b"\xff"
        note: str = "n"

    assert json_data(Model(), 180) == {"data": "_w==", "note": "n"}


@pytest.mark.parametrize("before", [0, 1, 4299, 4300, 4301])
@pytest.mark.parametrize(("digits", "found"), [(4300, False), (4301, True), (9000, True)])
def test_long_integers_are_found_wherever_they_stand(before: int, digits: int, found: bool) -> None:
    assert has_long_integer(b"[%b%b]" % (b" " * before, b"1" * digits)) is found
    assert not has_long_integer(b'["%b%b"]' % (b" " * before, b"1" * digits)), "a text of digits is no integer"


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=4)
_KEYS = st.text(st.characters()) | st.integers() | st.none() | st.booleans() | st.floats() | st.binary(max_size=4)


@given(st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner) | st.tuples(inner)))
def test_the_data_of_any_value_is_strict_json_and_stays_as_it_is(value: Any) -> None:
    data = json_data(value, 180)
    text = to_json(data)
    assert repr(json.loads(text)) == repr(from_json(text, allow_inf_nan=False))
    assert is_exact(data, 180)
