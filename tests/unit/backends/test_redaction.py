"""Secrets in what a service says, however it writes them."""

import html
import json
from base64 import b64encode
from hashlib import sha384
from urllib.parse import quote, quote_plus

import pytest

from dify_agent.backends.redaction import (
    MASK,
    MAX_FORMS,
    MAX_SEARCHED_CHARS,
    MIN_CUT_CHARS,
    MIN_SECRET_CHARS,
    Redactor,
)

KEY = "sk-inner_KEY.of~this-test"
ODD = "p<a>&s's \"w\\rd/+é%"
PEM = "\n".join(["-----BEGIN PRIVATE KEY-----", *(b64encode(sha384(bytes([n])).digest()).decode() for n in range(30))])


def test_a_key_is_masked_wherever_it_stands():
    redact = Redactor([KEY, ""]).redact
    assert redact(f"X-Inner-Api-Key: {KEY}\r\nx{KEY}x{KEY}") == f"X-Inner-Api-Key: {MASK}\r\nx{MASK}x{MASK}"
    assert redact("nothing") == "nothing"
    assert redact("") == ""


def dumped(text, **options):
    return json.dumps({"k": text}, **options)


@pytest.mark.parametrize(
    "write",
    [
        str,
        dumped,
        lambda text: dumped(text, ensure_ascii=False),
        lambda text: dumped(dumped(text)),
        lambda text: dumped(dumped(text, ensure_ascii=False), ensure_ascii=False),
        lambda text: dumped(text).replace("/", r"\/"),
        lambda text: dumped(text).replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026"),
        html.escape,
        lambda text: html.escape(dumped(text)),
        lambda text: html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
        lambda text: quote(text, safe=""),
        quote_plus,
    ],
)
@pytest.mark.parametrize("secret", [KEY, ODD, PEM])
def test_notations(write, secret):
    text = f"<pre>before {write(secret)} after</pre>"
    found = Redactor([], {"a": [secret]}).redact_error(text)
    assert MASK in found
    for piece in (secret, *(part for part in PEM.splitlines() if secret is PEM)):
        assert write(piece).strip('{}"') not in found
    assert found.startswith("<pre>before ")
    assert found.endswith(" after</pre>")


def test_credentials_are_all_texts_of_a_value():
    values = {"a": "first-secret", "b": ["second-secret", {"c": "third-secret", "d": 12345, "e": None, "f": True}]}
    redactor = Redactor([KEY]).including(values)
    text = f"{KEY} first-secret second-secret third-secret 12345"
    assert redactor.redact_error(text) == f"{MASK} {MASK} {MASK} {MASK} 12345"
    assert redactor.including(None).redact_error(text) == text.replace(KEY, MASK), "only the keys are kept"


def test_short_values_are_no_secrets():
    short, least = "x" * (MIN_SECRET_CHARS - 1), "y" * MIN_SECRET_CHARS
    assert Redactor([short, least, "   "]).redact(f"{short} {least}") == f"{short} {MASK}"


def test_a_secret_that_is_part_of_another():
    assert Redactor(["secret-key", "secret"]).redact("secret-key secret") == f"{MASK} {MASK}"


def test_a_secret_that_was_cut():
    redactor = Redactor([KEY])
    for size in range(MIN_CUT_CHARS, len(KEY)):
        assert redactor.redact_error(f"k: {KEY[:size]}") == f"k: {MASK}"
    assert redactor.redact_error(f"k: {KEY[: MIN_CUT_CHARS - 1]}") == f"k: {KEY[: MIN_CUT_CHARS - 1]}"
    long = PEM.replace("\n", "")
    for size in range(100, len(long), 37):
        found = Redactor([], long).redact_error(f"k: {long[:size]}")
        assert len(found.replace(MASK, "")) < len("k: ") + MIN_CUT_CHARS, found


def test_where_the_search_ends_the_text_ends():
    text = "." * (MAX_SEARCHED_CHARS - MIN_CUT_CHARS) + KEY + "tail"
    found = Redactor([KEY]).redact_error(text)
    assert found.endswith(f".{MASK}")
    assert KEY[:MIN_CUT_CHARS] not in found


def test_more_secrets_than_can_be_looked_for_leave_no_text():
    many = [f"secret-{number}" for number in range(MAX_FORMS)]
    assert Redactor([], many).redact_error("secret-7 of many") == f"{MASK} of many"
    assert Redactor([], [*many, "one more"]).redact_error("harmless") == MASK
    assert Redactor([], "".join(many) * 10).redact_error("harmless") == MASK


def test_secrets_that_repeat_hide_no_other():
    redactor = Redactor([], ["x" * 1_000_000, *["again and again"] * MAX_FORMS, "last-secret"])
    assert redactor.redact_error("the last-secret") == f"the {MASK}"
