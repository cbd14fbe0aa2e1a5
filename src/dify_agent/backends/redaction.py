"""Takes secrets out of what a service says: one that is in trouble may answer with the request that it was sent, key
and credentials included, and its answer becomes an event, a text for the model, and a line of the log."""

import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, quote_plus

MASK: Final = "***"
MIN_SECRET_CHARS: Final = 4
"""Of a secret: shorter values ("on", "v1") protect nothing, and stand in many a text."""
MAX_PIECE_CHARS: Final = 64
"""Longer secrets, keys in PEM say, are looked for piece by piece: a service may show one in part."""
MAX_FORMS: Final = 1000
"""Of all secrets. With more, nothing is shown of an error: looking for them would take too long."""
MAX_SEARCHED_CHARS: Final = 64 << 10
"""Of an error's text; what comes later is not shown."""
MIN_CUT_CHARS: Final = 8
"""Of the beginning of a secret at the end of an error's text, where the service has cut it."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]+")
"""What every notation leaves as it is."""
_GO: Final = str.maketrans({"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"})
"""What Go writes in JSON."""


class Redactor:
    """Puts `MASK` in place of secrets, as they are or as JSON, JSON in JSON, URLs and HTML write them.

    Not in place of their base64: in an echo it would be that of a longer text, and differ. A secret that is not there
    costs one search for a plain text, or a few when it has characters that are escaped.
    """

    def __init__(self, keys: Iterable[str], credentials: Any = None) -> None:
        """Take keys, and a JSON value whose texts are secrets."""
        self._keys: Final = tuple(keys)
        forms = dict.fromkeys(form for key in self._keys for form in _forms(key))
        for form in (form for text in _texts(credentials) for form in _forms(text)):
            forms[form] = None
            if len(forms) > MAX_FORMS:
                break
        # A secret may be part of another.
        self._forms: Final = sorted(forms, key=len, reverse=True)

    def including(self, credentials: Any) -> "Redactor":
        """One for the same keys and for the texts in ``credentials``, a JSON value."""
        return Redactor(self._keys, credentials)

    def redact(self, text: str) -> str:
        """``text`` without the secrets."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def redact_error(self, text: str) -> str:
        """The first `MAX_SEARCHED_CHARS` characters of ``text`` without the secrets, nor the beginning of one at their
        end; only `MASK` when there are too many secrets to look for."""
        if len(self._forms) > MAX_FORMS:
            return MASK
        text = self.redact(text[:MAX_SEARCHED_CHARS])
        cut = max((_beginning_at_end(form, text) for form in self._forms), default=0)
        return text[:-cut] + MASK if cut else text


def _beginning_at_end(secret: str, text: str) -> int:
    """How many characters of ``secret`` are the end of ``text``; 0 when there are few, or none."""
    sizes = range(len(secret) - 1, MIN_CUT_CHARS - 1, -1)
    return next((size for size in sizes if text.endswith(secret[:size])), 0)


def _texts(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)


def _forms(secret: str) -> Iterator[str]:
    """What to look for: pieces of even length, each as it may be written."""
    secret = secret.strip()
    if len(secret) < MIN_SECRET_CHARS:
        return
    count = -(-len(secret) // MAX_PIECE_CHARS)
    size = -(-len(secret) // count)
    for start in range(0, len(secret), size):
        piece = secret[start : start + size]
        if _PLAIN.fullmatch(piece):
            yield piece
        else:
            yield from _notations(piece)


def _notations(text: str) -> set[str]:
    in_json = {form for one in (text, _json(text), _json(text, ascii_only=True)) for form in (one, one.translate(_GO))}
    in_json |= {form.replace("/", r"\/") for form in in_json}
    twice = {_json(form) for form in in_json}
    in_html = {html.escape(form) for form in in_json}
    in_html |= {form.replace("&#x27;", "&#39;").replace("&quot;", "&#34;") for form in in_html}
    in_urls = {quote(text, safe="", errors="replace"), quote_plus(text, errors="replace")}
    return {form for form in in_json | twice | in_html | in_urls if len(form.strip()) >= MIN_SECRET_CHARS}


def _json(text: str, *, ascii_only: bool = False) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]
