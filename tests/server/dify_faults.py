"""Each way in which a service of Dify can fail, for each thing a run asks for, and what the run is to do then.

The tables are those of integrations 3.8, 4.4, 5 and 6.2. Nothing here waits.
"""

import json
from base64 import b64encode
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from tests.server.bodies import layer
from tests.server.dify_bodies import core_tools, dify_run, knowledge, plugin_tools
from tests.server.dify_fakes import CORE_TOOL_PATH, DAEMON_MODEL_PATH, KNOWLEDGE_PATH, MODEL_PATH, PLUGIN_TOOL_PATH
from tests.server.dify_scripts import DONE, call

READ_TIMEOUT_SECONDS: Final = 0.6
READ_TIMEOUT: Final = "DIFY_AGENT_OUTBOUND_HTTP_READ_TIMEOUT"
INNER_KEY: Final = "inner-key-of-this-test"
DAEMON_KEY_VALUE: Final = "daemon-key-of-this-test"
MODEL_SECRET: Final = 'model"secret'
TOOL_SECRET: Final = "tool-secret"

GATEWAY: Final = "gateway"
DAEMON: Final = "plugin_daemon"
"""Values of ``DIFY_AGENT_LLM_TRANSPORT``."""

INNER_URL: Final = "DIFY_AGENT_INNER_API_URL"
INNER_KEY_OR_URL: Final = f"DIFY_AGENT_INNER_API_KEY, {INNER_URL}"
DAEMON_URL: Final = "DIFY_AGENT_PLUGIN_DAEMON_URL"
DAEMON_KEY: Final = "DIFY_AGENT_PLUGIN_DAEMON_API_KEY"

TOOL_AWAY: Final = "Tool is temporarily unavailable. Please continue without it if possible."
SEARCH_AWAY: Final = "Knowledge base search is temporarily unavailable. Please continue without it if possible."


@dataclass(frozen=True)
class Asked:
    """Something that a run asks a service for."""

    name: str
    transport: str
    """The way to the model. For what is no model: through the other service, which is well."""
    path: str
    rule: str
    """The script's list for it."""
    layers: tuple[dict[str, Any], ...] = ()
    call: dict[str, Any] | None = None
    """What the model calls for it to be asked."""

    def script(self, step: dict[str, Any]) -> dict[str, Any]:
        """All is well but this step."""
        if self.rule == "llm":
            return {"llm": [{"steps": [step]}]}
        calls = [] if self.call is None else [{"tool_calls": [self.call]}]
        return {"llm": [{"steps": [*calls, DONE]}], self.rule: [{"steps": [step]}]}

    @property
    def model_path(self) -> str:
        return MODEL_PATH if self.transport == GATEWAY else DAEMON_MODEL_PATH

    def body(self) -> dict[str, Any]:
        """A run that asks for it."""
        return dify_run(*self.layers, llm={"credentials": {"key": MODEL_SECRET}})

    def scripted_body(self) -> dict[str, Any]:
        """The same on a model that needs no service; for what is no model."""
        if self.rule == "llm":
            return self.body()
        calls = [] if self.call is None else [{"name": self.call["name"], "args": self.call["arguments"]}]
        turns = [*({"tool_calls": [each]} for each in calls), DONE]
        body = self.body()
        body["composition"]["layers"][-1] = layer("llm", "scripted.model", turns=turns)
        return body


GATEWAY_MODEL: Final = Asked("gateway model", GATEWAY, MODEL_PATH, "llm")
DAEMON_MODEL: Final = Asked("daemon model", DAEMON, DAEMON_MODEL_PATH, "llm")
PLUGIN_TOOL: Final = Asked(
    "plugin tool", GATEWAY, PLUGIN_TOOL_PATH, "tools", (plugin_tools("web_search"),), call("web_search", query="a")
)
CORE_TOOL: Final = Asked(
    "core tool", DAEMON, CORE_TOOL_PATH, "core_tools", (core_tools("current_time"),), call("current_time", query="a")
)
SEARCH: Final = Asked(
    "search",
    DAEMON,
    KNOWLEDGE_PATH,
    "knowledge",
    (knowledge(mode="generated_query"),),
    call("knowledge_base_search", set_name="manual", query="a"),
)
FIRST_SEARCH: Final = Asked(
    "first search", DAEMON, KNOWLEDGE_PATH, "knowledge", (knowledge(mode="user_query", value="a"),)
)


@dataclass(frozen=True)
class Fails:
    """The run fails."""

    reason: str
    says: tuple[str, ...] = ()
    """Parts of the text."""
    named_by_dify: bool = False
    """The reason is an error type that came with the answer, so no table can list it."""
    setting: str | None = None
    """What the warning in the log names; None: no warning."""


@dataclass(frozen=True)
class Observes:
    """The run goes on; the model reads this."""

    start: str
    length: int | None = None
    """Of the whole text."""
    logged: str = ""
    """Part of the warning in the log."""
    setting: str | None = None
    """What that warning names."""


@dataclass(frozen=True)
class Fault:
    """One cell of the table."""

    asked: Asked
    cause: str
    step: dict[str, Any]
    outcome: Fails | Observes
    waits: bool = field(default=False)
    """The cause is complete only when the read timeout has passed."""

    def __str__(self) -> str:
        return f"{self.asked.name}: {self.cause}"


def raw(*packets: bytes) -> dict[str, Any]:
    """A step whose body is these bytes."""
    return {"raw": [b64encode(packet).decode() for packet in packets]}


def http(status: int, code: str = "", message: str = "no more", html: str | None = None) -> dict[str, Any]:
    """A step that is an HTTP error."""
    error = {"status": status, "html": html} if html else {"status": status, "code": code, "message": message}
    return {"http_error": error}


SILENT: Final = {"end": "silent"}
RESET: Final = {"end": "reset"}
CLOSE: Final = {"end": "close"}
HANG: Final = {"end": "hang"}
PAGE: Final = http(500, html="<html>Oops</html>")
ELSEWHERE: Final = http(404, html="404 page not found")
"""What another web server says: the address leads elsewhere."""


def _of_a_model(asked: Asked, peer: str, url: str) -> list[Fault]:
    lost = Fails("upstream_connection_lost", (f"{peer} (http://127.0.0.1:", "broke the connection off"))
    quiet = Fails(
        "upstream_read_timeout",
        (READ_TIMEOUT, f"was silent for {READ_TIMEOUT_SECONDS:g} seconds"),
        setting=READ_TIMEOUT,
    )
    page = Fails("upstream_http_error", ("status_code: 500", "<html>Oops</html>"), setting=url)
    some = {"chunks": 3}
    unavailable = {"type": "InvokeServerUnavailableError", "message": "gone", "nested": 1}
    quota = {"code": -429, "type": "AgentLLMQuotaExceededError", "message": "used up"}
    return [
        Fault(asked, "reset", {**some, **RESET}, lost),
        Fault(asked, "closed", {**some, **CLOSE}, lost),
        Fault(
            asked,
            "ended early",
            {**some, "finish_reason": None, "usage": None},
            Fails("incomplete_stream", (f"{peer} closed it without",)),
        ),
        Fault(asked, "page", PAGE, page),
        Fault(asked, "page that does not end", {**PAGE, **HANG}, page),
        Fault(asked, "page that breaks off", {**PAGE, **RESET}, page),
        Fault(
            asked,
            "elsewhere",
            ELSEWHERE,
            Fails("upstream_http_error", ("status_code: 404", f"(check {url}"), setting=url),
        ),
        Fault(
            asked,
            "page as a stream",
            raw(b"<html>\n"),
            Fails("upstream_malformed_answer", (peer, "not JSON", url), setting=url),
        ),
        Fault(
            asked,
            "error in the stream",
            {**some, "error": unavailable},
            Fails("InvokeServerUnavailableError", ("gone",), named_by_dify=True),
        ),
        Fault(
            asked,
            "error in a stream that stays open",
            {**some, "error": unavailable, **HANG},
            Fails("InvokeServerUnavailableError", ("gone",), named_by_dify=True),
        ),
        Fault(asked, "long line", {**some, "long_line_bytes": 2_000_000}, Fails("upstream_line_too_long", (peer,))),
        Fault(asked, "silent", SILENT, quiet, waits=True),
        Fault(asked, "silent after text", {**some, **HANG}, quiet, waits=True),
        Fault(asked, "429", http(429, html="slow down"), Fails("InvokeRateLimitError", ("429", "slow down"))),
        Fault(
            asked, "quota in the stream", {**some, "error": quota}, Fails("AgentLLMQuotaExceededError", ("used up",))
        ),
    ]


_BAD_CALL: Final = "tool parameters validation error: "
_BAD_LINE: Final = f"{_BAD_CALL}the tool's reply has a line that is not JSON"
_BAD_TOOL: Final = "tool invoke error: "
_UNREACHABLE: Final = Fails("plugin_daemon_unreachable", ("the plugin daemon (http", "broke the connection off"))
_UNANSWERED: Final = Fails("plugin_daemon_timeout", (READ_TIMEOUT,), setting=READ_TIMEOUT)
_NOT_RUN: Final = "plugin tool could not be run; the run goes on"
_TOOL_PAGE: Final = Observes(f"{_BAD_TOOL}<html>Oops</html>", logged=_NOT_RUN, setting=DAEMON_URL)

_PLUGIN_TOOL: Final = [
    Fault(PLUGIN_TOOL, "reset", {"text": "half", **RESET}, _UNREACHABLE),
    Fault(PLUGIN_TOOL, "closed", {"text": "half", **CLOSE}, _UNREACHABLE),
    Fault(PLUGIN_TOOL, "silent", SILENT, _UNANSWERED, waits=True),
    Fault(PLUGIN_TOOL, "silent after text", {"text": "half", **HANG}, _UNANSWERED, waits=True),
    Fault(PLUGIN_TOOL, "ended early", raw(b'data: {"code":0,"mess'), Observes(_BAD_LINE)),
    Fault(PLUGIN_TOOL, "page", PAGE, _TOOL_PAGE),
    Fault(PLUGIN_TOOL, "page that does not end", {**PAGE, **HANG}, _TOOL_PAGE),
    Fault(PLUGIN_TOOL, "page that breaks off", {**PAGE, **RESET}, _TOOL_PAGE),
    Fault(
        PLUGIN_TOOL,
        "elsewhere",
        ELSEWHERE,
        Observes(f"{_BAD_TOOL}404 page not found", logged=_NOT_RUN, setting=DAEMON_URL),
    ),
    Fault(
        PLUGIN_TOOL,
        "page as a stream",
        raw(b"<html>\n"),
        Observes(_BAD_LINE, logged=_NOT_RUN, setting=DAEMON_URL),
    ),
    Fault(PLUGIN_TOOL, "error in the stream", {"error": {"message": "gone"}}, Observes(f"{_BAD_TOOL}gone")),
    Fault(
        PLUGIN_TOOL,
        "error in a stream that stays open",
        {"error": {"message": "gone"}, **HANG},
        Observes(f"{_BAD_TOOL}gone"),
    ),
    Fault(PLUGIN_TOOL, "2 MiB line", {"long_line_bytes": 2 << 20, "text": ""}, Observes("xxx", length=2 << 20)),
    Fault(PLUGIN_TOOL, "long line", {"long_line_bytes": 9 << 20}, Observes(f"{_BAD_CALL}a line is longer than")),
    Fault(PLUGIN_TOOL, "429", http(429, html="slow down"), Observes(f"{_BAD_TOOL}slow down")),
    Fault(PLUGIN_TOOL, "quota", http(429, "QuotaExceededError", "used up"), Observes(f"{_BAD_TOOL}used up")),
]

_AWAY: Final = Observes(TOOL_AWAY, logged="broke the connection off")
_AWAY_IN_SILENCE: Final = Observes(TOOL_AWAY, logged=READ_TIMEOUT, setting=READ_TIMEOUT)
_CORE_PAGE: Final = Observes(TOOL_AWAY, logged="<html>Oops</html>", setting=INNER_URL)
_BAD_REPLY: Final = Observes(f"{_BAD_TOOL}Dify API's reply", logged="invalid_response")
_ERROR_BODY: Final = {"body": {"code": "agent_tool_invoke_failed", "message": "no", "status": 500}}

_CORE_TOOL: Final = [
    Fault(CORE_TOOL, "reset", RESET, _AWAY),
    Fault(CORE_TOOL, "closed", CLOSE, _AWAY),
    Fault(CORE_TOOL, "silent", SILENT, _AWAY_IN_SILENCE, waits=True),
    Fault(CORE_TOOL, "silent after the head", HANG, _AWAY_IN_SILENCE, waits=True),
    Fault(CORE_TOOL, "page", PAGE, _CORE_PAGE),
    Fault(CORE_TOOL, "page that does not end", {**PAGE, **HANG}, _CORE_PAGE),
    Fault(CORE_TOOL, "elsewhere", ELSEWHERE, Observes(_BAD_TOOL, logged="page not found", setting=INNER_URL)),
    Fault(CORE_TOOL, "error with 200", _ERROR_BODY, _BAD_REPLY),
    Fault(CORE_TOOL, "2 MiB line", {"observation": "x" * (2 << 20)}, Observes("xxx", length=2 << 20)),
    Fault(
        CORE_TOOL,
        "long line",
        {"observation": "x" * (17 << 20)},
        Observes(f"{_BAD_TOOL}Dify API's reply is larger than", logged="invalid_response"),
    ),
    Fault(CORE_TOOL, "429", http(429, html="slow down"), Observes(TOOL_AWAY, logged="slow down")),
    Fault(CORE_TOOL, "quota", http(429, "agent_llm_quota_exceeded"), Observes(TOOL_AWAY, logged="no more")),
]


def _of_a_search(asked: Asked) -> list[Fault]:
    away = Observes(SEARCH_AWAY, logged="broke the connection off")
    away_in_silence = Observes(SEARCH_AWAY, logged=READ_TIMEOUT, setting=READ_TIMEOUT)
    page = Fails("DifyKnowledgeBaseClientError", ("<html>Oops</html>",), setting=INNER_URL)
    elsewhere = Fails("DifyKnowledgeBaseClientError", ("page not found", f"(check {INNER_URL}"), setting=INNER_URL)
    passage = {"title": "t", "content": "x" * (2 << 20)}
    cut = Observes("Knowledge base search results:\n1. t" if asked.call else "1. t")
    return [
        Fault(asked, "reset", RESET, away),
        Fault(asked, "closed", CLOSE, away),
        Fault(asked, "silent", SILENT, away_in_silence, waits=True),
        Fault(asked, "silent after the head", HANG, away_in_silence, waits=True),
        Fault(asked, "page", PAGE, page),
        Fault(asked, "page that does not end", {**PAGE, **HANG}, page),
        Fault(asked, "elsewhere", ELSEWHERE, elsewhere),
        Fault(asked, "500", http(500, "knowledge_retrieve_failed"), Fails("knowledge_retrieve_failed", ("no more",))),
        Fault(asked, "error with 200", _ERROR_BODY, Fails("invalid_response", ("Dify API's reply",))),
        Fault(asked, "2 MiB line", {"results": [passage]}, cut),
        Fault(asked, "long line", {"usage": {"x": "x" * (17 << 20)}}, Fails("invalid_response", ("is larger than",))),
        Fault(asked, "429", http(429, html="slow down"), Observes(SEARCH_AWAY, logged="slow down")),
        Fault(asked, "quota", http(429, "knowledge_rate_limited"), Observes(SEARCH_AWAY, logged="no more")),
    ]


def _echoes(asked: Asked, page: Fails | Observes, in_body: Fails | Observes, *credentials: str) -> list[Fault]:
    """The service shows what it was sent: as a page, and in its own form of an error."""
    sent = [INNER_KEY, DAEMON_KEY_VALUE, *credentials]
    text = f"GET / HTTP/1.1\r\nX-Inner-Api-Key: {sent[0]}\r\nX-Api-Key: {sent[1]}\r\n\r\n{json.dumps(sent)}"
    own = {"error": {"message": text}} if asked.path in _STREAMED else http(400, "echoed", text)
    return [
        Fault(asked, "echo", http(500, html=f"<pre>{escape(text)}</pre>"), page),
        Fault(asked, "echo of its own", own, in_body),
    ]


_STREAMED: Final = (MODEL_PATH, DAEMON_MODEL_PATH, PLUGIN_TOOL_PATH)
_MASKED: Final = "X-Inner-Api-Key: ***\r\nX-Api-Key: ***"
_MASKED_PAGE: Final = f"<pre>GET / HTTP/1.1\r\n{_MASKED}"
_SEARCH_ECHOES: Final = (
    Fails("DifyKnowledgeBaseClientError", (_MASKED_PAGE,), setting=INNER_URL),
    Fails("echoed", (_MASKED,), named_by_dify=True),
)

ECHOES: Final = [
    *_echoes(
        GATEWAY_MODEL,
        Fails("upstream_http_error", (_MASKED_PAGE,), setting=INNER_URL),
        Fails("InvokeError", (_MASKED,), named_by_dify=True),
    ),
    *_echoes(
        DAEMON_MODEL,
        Fails("upstream_http_error", (_MASKED_PAGE,), setting=DAEMON_URL),
        Fails("InvokeError", (_MASKED,), named_by_dify=True),
        MODEL_SECRET,
    ),
    *_echoes(
        PLUGIN_TOOL,
        Observes(f"{_BAD_TOOL}{_MASKED_PAGE}", logged=_MASKED.replace("\r\n", r"\r\n"), setting=DAEMON_URL),
        Observes(f"{_BAD_TOOL}GET / HTTP/1.1\r\n{_MASKED}"),
        TOOL_SECRET,
    ),
    *_echoes(
        CORE_TOOL,
        Observes(TOOL_AWAY, logged=_MASKED.replace("\r\n", r"\r\n"), setting=INNER_URL),
        Observes(_MASKED, logged=_MASKED.replace("\r\n", r"\r\n")),
    ),
    *_echoes(SEARCH, *_SEARCH_ECHOES),
    *_echoes(FIRST_SEARCH, *_SEARCH_ECHOES),
]

FAULTS: Final = [
    *ECHOES,
    *_of_a_model(GATEWAY_MODEL, "the Dify API", INNER_URL),
    Fault(GATEWAY_MODEL, "quota", http(429, "agent_llm_quota_exceeded"), Fails("InvokeRateLimitError", ("no more",))),
    *_of_a_model(DAEMON_MODEL, "the plugin daemon", DAEMON_URL),
    Fault(
        DAEMON_MODEL,
        "quota",
        http(429, "QuotaExceededError"),
        Fails("QuotaExceededError", ("no more",), named_by_dify=True),
    ),
    *_PLUGIN_TOOL,
    *_CORE_TOOL,
    *_of_a_search(SEARCH),
    *_of_a_search(FIRST_SEARCH),
]

_REFUSED: Final = ("upstream_connect_failed", ("no connection to",))
_NO_TOOL_DAEMON: Final = Fails("plugin_daemon_unreachable", ("no connection to the plugin daemon",), setting=DAEMON_URL)
_NOT_ASKED: Final = "no connection to the Dify API"

REFUSED: Final = [
    Fault(GATEWAY_MODEL, "refused", {}, Fails(*_REFUSED, setting=INNER_URL)),
    Fault(DAEMON_MODEL, "refused", {}, Fails(*_REFUSED, setting=DAEMON_URL)),
    Fault(PLUGIN_TOOL, "refused", {}, _NO_TOOL_DAEMON),
    Fault(CORE_TOOL, "refused", {}, Observes(TOOL_AWAY, logged=_NOT_ASKED, setting=INNER_URL)),
    Fault(SEARCH, "refused", {}, Observes(SEARCH_AWAY, logged=_NOT_ASKED, setting=INNER_URL)),
    Fault(FIRST_SEARCH, "refused", {}, Observes(SEARCH_AWAY, logged=_NOT_ASKED, setting=INNER_URL)),
]

_NOT_FOUND: Final = Fails("not_found", ("check DIFY_AGENT_INNER_API_KEY",), setting=INNER_KEY_OR_URL)

WRONG_KEYS: Final = [
    Fault(
        GATEWAY_MODEL,
        "wrong key",
        {},
        Fails(
            "upstream_http_error",
            (
                "status_code: 404",
                "(check DIFY_AGENT_INNER_API_KEY and DIFY_AGENT_INNER_API_URL, the root without /inner/api)",
            ),
            setting=INNER_KEY_OR_URL,
        ),
    ),
    Fault(
        DAEMON_MODEL,
        "wrong key",
        {},
        Fails("PluginDaemonUnauthorizedError", ("wrong X-Api-Key", f"(check {DAEMON_KEY})"), setting=DAEMON_KEY),
    ),
    Fault(
        PLUGIN_TOOL,
        "wrong key",
        {},
        Observes("Please check your tool provider credentials", logged=_NOT_RUN, setting=DAEMON_KEY),
    ),
    Fault(CORE_TOOL, "wrong key", {}, Observes(_BAD_TOOL, logged="not_found", setting=INNER_KEY_OR_URL)),
    Fault(SEARCH, "wrong key", {}, _NOT_FOUND),
    Fault(FIRST_SEARCH, "wrong key", {}, _NOT_FOUND),
]

_POOL: Final = "DIFY_AGENT_OUTBOUND_HTTP_MAX_CONNECTIONS, DIFY_AGENT_OUTBOUND_HTTP_POOL_TIMEOUT"
_NO_CONNECTION: Final = Fails("outbound_pool_exhausted", tuple(_POOL.split(", ")), setting=_POOL)

NO_CONNECTION_FREE: Final = [
    Fault(GATEWAY_MODEL, "no connection free", {}, _NO_CONNECTION),
    Fault(PLUGIN_TOOL, "no connection free", {}, _NO_CONNECTION),
    Fault(CORE_TOOL, "no connection free", {}, Observes(TOOL_AWAY, logged=_POOL, setting=_POOL)),
    Fault(SEARCH, "no connection free", {}, Observes(SEARCH_AWAY, logged=_POOL, setting=_POOL)),
    Fault(FIRST_SEARCH, "no connection free", {}, Observes(SEARCH_AWAY, logged=_POOL, setting=_POOL)),
]
