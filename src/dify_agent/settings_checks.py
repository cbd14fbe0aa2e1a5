"""Checks and normal forms of single settings. Errors name the variable and never repeat its value."""

import base64
import binascii
import json
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import SplitResult, urlsplit

SECRET_KEY_BYTES = 32
_STUB_PATH = "/agent-stub"
_INNER_API_PATH = "/inner/api"


def blank_to_none(value: Any) -> Any:
    """Compose files pass unset variables as empty text: blank counts as unset."""
    return None if isinstance(value, str) and not value.strip() else value


def trim_to_none(value: Any) -> Any:
    """Trimmed on both sides, blank counts as unset."""
    return (value.strip() or None) if isinstance(value, str) else value


def _split(value: str, variable: str) -> SplitResult:
    """The parts of an http(s) URL with a host and a valid port, without query and fragment."""
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or any(char.isspace() for char in value):
        raise ValueError(f"{variable} must be an http:// or https:// URL")
    if "?" in value or "#" in value:
        raise ValueError(f"{variable} must not include a query string or fragment")
    return parts


def http_base_url(value: str, variable: str) -> str:
    """An http(s) URL without query and fragment, trailing slashes removed.

    Raises:
        ValueError: it is not.
    """
    _split(value, variable)
    return value.rstrip("/")


def inner_api_root(value: str) -> str:
    """The root of the Dify API, as by `http_base_url`.

    Raises:
        ValueError: it is no base URL, or ends in the path that is put behind it; the text has the root, without user
            info.
    """
    variable = "DIFY_AGENT_INNER_API_URL"
    url = http_base_url(value.strip(), variable)
    parts = urlsplit(url)
    if not parts.path.endswith(_INNER_API_PATH):
        return url
    root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.removesuffix(_INNER_API_PATH).rstrip('/')}"
    raise ValueError(f"{variable} must be the root of the Dify API, without {_INNER_API_PATH}: {root}")


def http_base_urls(values: tuple[str, ...]) -> tuple[str, ...]:
    """Base URLs of models, each as by `http_base_url`.

    Raises:
        ValueError: one is none.
    """
    return tuple(http_base_url(value, "each of DIFY_AGENT_MODEL_BASE_URLS") for value in values)


def origins(values: tuple[str, ...]) -> tuple[str, ...]:
    """Origins as browsers send them, any scheme.

    Raises:
        ValueError: one is not ``scheme://host[:port]``.
    """
    if not all(map(_is_origin, values)):
        raise ValueError("each of DIFY_AGENT_ALLOWED_ORIGINS must be scheme://host[:port]")
    return values


def _is_origin(value: str) -> bool:
    try:
        parts = urlsplit(value)
        usable = bool(parts.scheme and parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    is_bare = value.lower() == f"{parts.scheme}://{parts.netloc}".lower()  # no path, query or fragment
    return usable and is_bare and "@" not in parts.netloc and "*" not in value and not any(map(str.isspace, value))


def stub_base_url(value: Any) -> Any:
    """The Agent Stub's URL, brought to end in ``/agent-stub``; blank counts as unset.

    Raises:
        ValueError: not http(s), has user info, query or fragment, or another path.
    """
    value = trim_to_none(value)
    if not isinstance(value, str):
        return value
    variable = "DIFY_AGENT_STUB_API_BASE_URL"
    parts = _split(value, variable)
    if "@" in parts.netloc:
        raise ValueError(f"{variable} must not include user info")
    if parts.path.rstrip("/") not in ("", _STUB_PATH):
        raise ValueError(f"{variable} must be the service root or end in {_STUB_PATH}")
    return f"{parts.scheme}://{parts.netloc}{_STUB_PATH}"


def secret_key(value: Any) -> Any:
    """A root secret: strict unpadded base64url of exactly 32 bytes; trimmed, blank counts as unset.

    Raises:
        ValueError: it is not; encodings that decode to the same bytes but are not canonical are refused too.
    """
    value = trim_to_none(value)
    if not isinstance(value, str):
        return value
    try:
        raw = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != SECRET_KEY_BYTES or base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != value:
        raise ValueError("DIFY_AGENT_SERVER_SECRET_KEY must be unpadded base64url of exactly 32 bytes")
    return value


def absolute_posix_path(value: str) -> str:
    """An absolute POSIX path, as given.

    Raises:
        ValueError: it is not absolute.
    """
    if not PurePosixPath(value).is_absolute():
        raise ValueError("must be an absolute POSIX path")
    return value


def parse_list(value: Any) -> Any:
    """A JSON array or a comma-separated list of texts; each trimmed, blank ones dropped, trailing slashes removed.

    Raises:
        ValueError: it starts like a JSON array and is none of strings.
    """
    if isinstance(value, str):
        value = _split_list(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(text for item in value if (text := item.strip().rstrip("/")))
    raise ValueError("must be a JSON array of strings or a comma-separated list")


def _split_list(text: str) -> Any:
    if not text.lstrip().startswith("["):
        return text.split(",")
    try:
        return json.loads(text)
    except ValueError:
        return None
