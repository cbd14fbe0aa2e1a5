"""Bounds, normal forms and rules across settings."""

import base64
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from dify_agent.settings import ServerSettings

PREFIX = "DIFY_AGENT_"
KEY = base64.urlsafe_b64encode(bytes(range(32))).rstrip(b"=").decode()
SECRET = "do-not-show-me"

POSITIVE_SECONDS = [
    "RUN_TIMEOUT_SECONDS", "BINDING_FILE_DOWNLOAD_COMMAND_TIMEOUT_SECONDS", "ENTERPRISE_SANDBOX_GATEWAY_TIMEOUT",
    "ENTERPRISE_SANDBOX_PROXY_TIMEOUT", "ENTER_TIMEOUT_SECONDS", "EXIT_TIMEOUT_SECONDS", "FINALIZE_TIMEOUT_SECONDS",
    "CANCEL_TIMEOUT_SECONDS", "STORE_OUTAGE_SECONDS", "OWNER_LEASE_SECONDS", "STREAM_STALL_SECONDS",
    "SHUTDOWN_LIMIT_SECONDS",
]  # fmt: skip
SECONDS_OR_ZERO = [
    "OUTBOUND_HTTP_CONNECT_TIMEOUT", "OUTBOUND_HTTP_READ_TIMEOUT", "OUTBOUND_HTTP_WRITE_TIMEOUT",
    "OUTBOUND_HTTP_POOL_TIMEOUT", "OUTBOUND_HTTP_KEEPALIVE_EXPIRY", "DRAIN_LISTEN_SECONDS",
]  # fmt: skip
COUNTS_FROM_ONE = [
    "RUN_RETENTION_SECONDS", "RUN_EVENT_STREAM_MAX_LENGTH", "STREAM_TEXT_DELTA_FLUSH_INTERVAL_MS",
    "STREAM_TEXT_DELTA_MAX_CHARS", "OUTBOUND_HTTP_MAX_CONNECTIONS", "STORE_QUEUE_BYTES", "MAX_REQUEST_BODY_BYTES",
    "TOOL_CONCURRENCY", "TOOL_THREADS", "E2B_ACTIVE_TIMEOUT_SECONDS", "E2B_SHELLCTL_PORT",
]  # fmt: skip
COUNTS_FROM_ZERO = [
    "STUB_UPLOAD_FILE_SIZE_LIMIT", "OUTBOUND_HTTP_MAX_KEEPALIVE_CONNECTIONS", "MAX_ACTIVE_RUNS",
    "MAX_ACTIVE_RUNS_PER_TENANT",
]  # fmt: skip

BOUNDS = [
    *((name, "0.001", ("0", "-1", "nan", "inf", "x", " ")) for name in POSITIVE_SECONDS),
    *((name, "0", ("-0.001", "nan", "inf", "x", " ")) for name in SECONDS_OR_ZERO),
    *((name, "1", ("0", "-1", "1.5", "x", " ")) for name in COUNTS_FROM_ONE),
    *((name, "0", ("-1", "0.5", "x", " ")) for name in COUNTS_FROM_ZERO),
    ("E2B_ACTIVE_TIMEOUT_SECONDS", "3600", ("3601",)),
    ("E2B_SHELLCTL_PORT", "65535", ("65536",)),
    ("SHUTDOWN_GRACE_SECONDS", "0", ("nan", "inf", "x", " ")),
]


def read(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> object:
    monkeypatch.setenv(PREFIX + variable, text)
    by_variable = {name: field for field, name in ServerSettings.variables().items()}
    return getattr(ServerSettings(), by_variable[PREFIX + variable])


@pytest.mark.parametrize(("variable", "edge", "bad"), BOUNDS)
def test_bound(monkeypatch: pytest.MonkeyPatch, variable: str, edge: str, bad: tuple[str, ...]) -> None:
    assert read(monkeypatch, variable, edge) == float(edge)
    for text in bad:
        with pytest.raises(ValidationError):
            read(monkeypatch, variable, text)


def test_negative_grace_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, "SHUTDOWN_GRACE_SECONDS", "-3") == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("1", True),
        ("YES", True),
        ("on", True),
        ("false", False),
        ("0", False),
        ("no", False),
        ("off", False),
    ],
)
def test_boolean_words(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    assert read(monkeypatch, "STREAM_TEXT_DELTA_COALESCING_ENABLED", text) is value
    assert read(monkeypatch, "SCRIPTED_LAYERS", text) is value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SCRIPTED_LAYERS", "perhaps"),
        ("RUNTIME_BACKEND", "openshell"),
        ("RUNTIME_BACKEND", " "),
        ("LLM_TRANSPORT", "direct"),
    ],
)
def test_other_words_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    with pytest.raises(ValidationError):
        read(monkeypatch, variable, text)


@pytest.mark.parametrize("field", ServerSettings.model_fields)
def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str) -> None:
    default = getattr(ServerSettings(), field)
    variable = ServerSettings.variables()[field]
    monkeypatch.setenv(variable, "")
    (tmp_path / ".env").write_text(f"{variable}=\n")
    settings = ServerSettings()
    assert getattr(settings, field) == default
    assert field not in settings.model_fields_set


TRIMMED = ["API_TOKEN", "INNER_API_KEY"]
BLANK_IS_UNSET = [
    *TRIMMED, "LOCAL_SANDBOX_ENDPOINT", "LOCAL_SANDBOX_AUTH_TOKEN", "ENTERPRISE_SANDBOX_GATEWAY_ENDPOINT",
    "ENTERPRISE_SANDBOX_GATEWAY_AUTH_TOKEN", "E2B_API_KEY", "STUB_API_BASE_URL", "SANDBOX_FILES_BASE_URL",
    "SERVER_SECRET_KEY",
]  # fmt: skip


@pytest.mark.parametrize("variable", TRIMMED)
def test_trimmed(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    assert read(monkeypatch, variable, "  value\t") == "value"


@pytest.mark.parametrize("variable", BLANK_IS_UNSET)
@pytest.mark.parametrize("text", ["", "  \t"])
def test_blank_is_unset(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    assert read(monkeypatch, variable, text) is None


@pytest.mark.parametrize("prefix", ["a{b", "a}b", "{x}"])
def test_prefix_with_braces_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError, match=r"DIFY_AGENT_REDIS_PREFIX must not contain '\{' or '\}'"):
        ServerSettings(redis_prefix=prefix)


URLS = [
    ("INNER_API_URL", "http://api:5001/", "http://api:5001"),
    ("INNER_API_URL", "https://dify.example.com/base//", "https://dify.example.com/base"),
    ("INNER_API_URL", "http://inner/api", "http://inner/api"),
    ("INNER_API_URL", "http://api/not-inner/api", "http://api/not-inner/api"),
    ("SANDBOX_FILES_BASE_URL", " https://dify.example.com/files-in/ ", "https://dify.example.com/files-in"),
    ("MODEL_BASE_URLS", "http://a/v1/, https://b ,", ("http://a/v1", "https://b")),
    ("MODEL_BASE_URLS", ' ["http://a/v1/", " https://b"]', ("http://a/v1", "https://b")),
    ("MODEL_BASE_URLS", "", ()),
    ("ALLOWED_ORIGINS", "[]", ()),
    ("ALLOWED_ORIGINS", "https://A.example/, http://a:8080,http://[::1]:80,app-extension://abc",
     ("https://A.example", "http://a:8080", "http://[::1]:80", "app-extension://abc")),
]  # fmt: skip


@pytest.mark.parametrize(("variable", "text", "value"), URLS)
def test_normal_form(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, value: object) -> None:
    assert read(monkeypatch, variable, text) == value


BAD_URLS = [
    ("INNER_API_URL", " ", "must be an http:// or https:// URL"),
    ("INNER_API_URL", "ftp://api", "must be an http:// or https:// URL"),
    ("INNER_API_URL", "http://", "must be an http:// or https:// URL"),
    ("INNER_API_URL", "http://h:99999", "must be an http:// or https:// URL"),
    ("INNER_API_URL", "http://[::1", "must be an http:// or https:// URL"),
    ("INNER_API_URL", "http://a b", "must be an http:// or https:// URL"),
    ("INNER_API_URL", "http://api?x=1", "DIFY_AGENT_INNER_API_URL must not include a query string or fragment"),
    ("INNER_API_URL", "http://api#f", "DIFY_AGENT_INNER_API_URL must not include a query string or fragment"),
    ("INNER_API_URL", "http://api?", "DIFY_AGENT_INNER_API_URL must not include a query string or fragment"),
    *(
        ("INNER_API_URL", f"{root}{path}", f"must be the root of the Dify API, without /inner/api: {root}")
        for root in ("http://api:5001", "https://dify.example.com/base", "http://[::1]:5001")
        for path in ("/inner/api", "/inner/api/", "//inner/api//")
    ),
    ("SANDBOX_FILES_BASE_URL", "https://x/y?z", "must not include a query string or fragment"),
    ("SANDBOX_FILES_BASE_URL", "/files", "must be an http:// or https:// URL"),
    ("LOCAL_SANDBOX_ENDPOINT", "sandbox:5004", "DIFY_AGENT_LOCAL_SANDBOX_ENDPOINT must be an http"),
    ("LOCAL_SANDBOX_WORKSPACE_ROOT", "work", "must be an absolute POSIX path"),
    ("LOCAL_SANDBOX_MATERIALIZED_HOME_ROOT", " ", "must be an absolute POSIX path"),
    ("LOCAL_SANDBOX_HOME_SNAPSHOT_ROOT", "./x", "must be an absolute POSIX path"),
    ("MODEL_BASE_URLS", "[1]", "must be a JSON array of strings or a comma-separated list"),
    ("ALLOWED_ORIGINS", '["http://a"', "must be a JSON array of strings or a comma-separated list"),
    *(
        ("MODEL_BASE_URLS", f"http://good/v1,{bad}", "each of DIFY_AGENT_MODEL_BASE_URLS must")
        for bad in ("localhost:11434/v1", "ftp://a", "http://", "http://a b", "http://a?x=1", "http://a#f", "*")
    ),
    *(
        ("ALLOWED_ORIGINS", f"http://good,{bad}", "each of DIFY_AGENT_ALLOWED_ORIGINS must be scheme://host[:port]")
        for bad in ("a.example", "*", "https://*.example", "http://", "http://a/b", "http://a?x", "http://a#f",
                    "http://u@a", "http://a:x", "http://a:99999", "http://a b", "null", "//a")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("variable", "text", "message"), BAD_URLS)
def test_bad_form(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str) -> None:
    with pytest.raises(ValidationError) as failure:
        read(monkeypatch, variable, text)
    assert message in str(failure.value)


@pytest.mark.parametrize(
    "url",
    ["http://stub", "http://stub/", "http://stub/agent-stub", "http://stub/agent-stub/", " http://stub/agent-stub "],
)
def test_stub_url_is_normalised(url: str) -> None:
    settings = ServerSettings(agent_stub_api_base_url=url, server_secret_key=KEY)
    assert settings.agent_stub_api_base_url == "http://stub/agent-stub"


@pytest.mark.parametrize(
    "url",
    ["grpc://stub:1", "stub", "http:///agent-stub", "http://u:p@stub", "http://stub?x", "http://stub#x", "http://stub/api",
     "http://stub/api/agent-stub", "http://stub/agent-stub2"],
)  # fmt: skip
def test_stub_url_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="DIFY_AGENT_STUB_API_BASE_URL must"):
        ServerSettings(agent_stub_api_base_url=url, server_secret_key=KEY)


@pytest.mark.parametrize(
    "key",
    [KEY + "=", KEY[:-1], KEY + "A", KEY[:-1] + chr(ord(KEY[-1]) + 1), "+" + KEY[1:], "é" + KEY[1:], "short",
     KEY[:20] + "\n" + KEY[21:]],
)  # fmt: skip
def test_secret_key_is_strict(key: str) -> None:
    with pytest.raises(ValidationError, match="must be unpadded base64url of exactly 32 bytes") as failure:
        ServerSettings(server_secret_key=key)
    assert key not in str(failure.value)


def test_secret_key_is_trimmed() -> None:
    assert ServerSettings(server_secret_key=f" {KEY}\n").server_secret_key == KEY


STUB = {"agent_stub_api_base_url": "http://stub"}
CROSS_RULES = [
    (STUB, "DIFY_AGENT_SERVER_SECRET_KEY is required when DIFY_AGENT_STUB_API_BASE_URL is set."),
    (
        {**STUB, "server_secret_key": KEY, "inner_api_key": "k"},
        "DIFY_AGENT_SANDBOX_FILES_BASE_URL is required for Agent Stub file transfers and Config downloads.",
    ),
    ({"runtime_backend": "enterprise"}, "DIFY_AGENT_ENTERPRISE_SANDBOX_GATEWAY_ENDPOINT is required"),
    (
        {"runtime_backend": "enterprise", "enterprise_sandbox_gateway_endpoint": "gateway"},
        "DIFY_AGENT_ENTERPRISE_SANDBOX_GATEWAY_ENDPOINT must be an http",
    ),
    ({"runtime_backend": "e2b"}, "DIFY_AGENT_E2B_API_KEY is required"),
    ({"runtime_backend": "e2b", "e2b_api_key": "k", "e2b_template": " "}, "DIFY_AGENT_E2B_TEMPLATE is required"),
]


@pytest.mark.parametrize(("given", "message"), CROSS_RULES)
def test_rule_across_settings(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError) as failure:
        ServerSettings(**given)
    assert message in str(failure.value)


@pytest.mark.parametrize(
    "given",
    [
        {**STUB, "server_secret_key": KEY},
        {**STUB, "server_secret_key": KEY, "inner_api_key": "k", "sandbox_files_base_url": "http://files"},
        {"runtime_backend": "enterprise", "enterprise_sandbox_gateway_endpoint": "https://gw"},
        {"runtime_backend": "e2b", "e2b_api_key": "k"},
        {"runtime_backend": "e2b", "e2b_api_key": "k", "local_sandbox_endpoint": "not used, not judged"},
        {"server_secret_key": KEY},
    ],
)
def test_rules_across_settings_hold(given: dict[str, str]) -> None:
    settings = ServerSettings(**given)
    assert all(getattr(settings, name) is not None for name in given)


@pytest.mark.parametrize(("text", "patterns"), [("", ()), ("  ", ()), ("[]", ()), (r'["a\\d+", "b"]', (r"a\d+", "b"))])
def test_redact_patterns(text: str, patterns: tuple[str, ...]) -> None:
    assert ServerSettings(shell_redact_patterns=text).parse_shell_redact_patterns() == patterns


@pytest.mark.parametrize("text", ["x", "{}", "[1]", '"a"', "[", "null"])
def test_redact_patterns_are_judged_when_parsed(text: str) -> None:
    settings = ServerSettings(shell_redact_patterns=text)
    with pytest.raises(ValueError, match=r"^DIFY_AGENT_SHELL_REDACT_PATTERNS must be a JSON array of strings$"):
        settings.parse_shell_redact_patterns()


@pytest.mark.parametrize("pattern", ["(", "a**", "[", "x{99999999999999999999}", "(?P<s3cret"])
def test_redact_patterns_are_regular_expressions(pattern: str) -> None:
    settings = ServerSettings(shell_redact_patterns=json.dumps(["fine", pattern]))
    message = r"^pattern 2 of DIFY_AGENT_SHELL_REDACT_PATTERNS is not a regular expression$"
    with pytest.raises(ValueError, match=message):
        settings.parse_shell_redact_patterns()


SECRETS = [
    "redis_url", "api_token", "plugin_daemon_api_key", "inner_api_key", "local_sandbox_auth_token",
    "enterprise_sandbox_gateway_auth_token", "e2b_api_key",
]  # fmt: skip


def test_secrets_stay_out_of_repr() -> None:
    settings = ServerSettings(**{name: f"{SECRET}-{name}" for name in SECRETS}, server_secret_key=KEY)
    shown = repr(settings) + str(settings)
    assert SECRET not in shown
    assert KEY not in shown
    assert settings.api_token == f"{SECRET}-api_token"


@pytest.mark.parametrize("name", [*SECRETS, "server_secret_key"])
def test_secrets_stay_out_of_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ServerSettings.variables()[name], SECRET)
    monkeypatch.setenv("DIFY_AGENT_RUN_TIMEOUT_SECONDS", SECRET)
    monkeypatch.setenv("DIFY_AGENT_MODEL_BASE_URLS", f"[{SECRET}")
    with pytest.raises(ValidationError) as failure:
        ServerSettings()
    assert SECRET not in str(failure.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ServerSettings().redis_prefix = "other"


def test_shutdown_limit() -> None:
    assert ServerSettings().shutdown_limit == 65
    assert ServerSettings(drain_listen_seconds=0, shutdown_grace_seconds=2).shutdown_limit == 32
    assert ServerSettings(shutdown_limit_seconds=9).shutdown_limit == 9


class TestSources:
    def test_precedence(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / ".env").write_text("DIFY_AGENT_REDIS_PREFIX=weakest\n")
        assert ServerSettings().redis_prefix == "weakest"
        (tmp_path / "dify-agent").mkdir()
        (tmp_path / "dify-agent" / ".env").write_text("DIFY_AGENT_REDIS_PREFIX=stronger\n")
        assert ServerSettings().redis_prefix == "stronger"
        monkeypatch.setenv("dify_agent_Redis_Prefix", "environment")
        assert ServerSettings().redis_prefix == "environment"
        assert ServerSettings(redis_prefix="argument").redis_prefix == "argument"

    def test_an_empty_variable_leaves_it_to_the_next_source(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / ".env").write_text("DIFY_AGENT_API_TOKEN=t\n")
        monkeypatch.setenv("DIFY_AGENT_API_TOKEN", "")
        assert ServerSettings().api_token == "t"
        monkeypatch.setenv("DIFY_AGENT_API_TOKEN", " ")
        assert ServerSettings().api_token is None, "a blank one is a value, and means none"

    def test_files_are_merged(self, tmp_path: Path) -> None:
        (tmp_path / ".env").write_text("DIFY_AGENT_REDIS_PREFIX=a\nDIFY_AGENT_API_TOKEN=t\n")
        (tmp_path / "dify-agent").mkdir()
        (tmp_path / "dify-agent" / ".env").write_text("dify_agent_redis_prefix=b\n")
        settings = ServerSettings()
        assert (settings.redis_prefix, settings.api_token) == ("b", "t")

    @pytest.mark.parametrize(
        ("field", "primary", "legacy"),
        [
            ("local_sandbox_endpoint", "LOCAL_SANDBOX_ENDPOINT", "SHELLCTL_ENTRYPOINT"),
            ("local_sandbox_auth_token", "LOCAL_SANDBOX_AUTH_TOKEN", "SHELLCTL_AUTH_TOKEN"),
        ],
    )
    def test_alias(self, monkeypatch: pytest.MonkeyPatch, field: str, primary: str, legacy: str) -> None:
        monkeypatch.setenv(PREFIX + legacy, "http://legacy")
        assert getattr(ServerSettings(), field) == "http://legacy"
        monkeypatch.setenv(PREFIX + primary, "http://primary")
        assert getattr(ServerSettings(), field) == "http://primary"
        assert getattr(ServerSettings(**{field: "http://argument"}), field) == "http://argument"

    @pytest.mark.parametrize(
        "name",
        ["STUB_GRPC_BIND_ADDRESS", "SHELL_PROVIDER", "SHELL_BACK_PROXY_PUBLIC_URL", "BACK_PROXY_URL",
         "E2B_SHELLCTL_AUTH_TOKEN", "NEVER_HEARD_OF"],
    )  # fmt: skip
    def test_removed_and_unknown_names_have_no_effect(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
    ) -> None:
        before = ServerSettings()
        monkeypatch.setenv(PREFIX + name, "grpc://x")
        (tmp_path / ".env").write_text(f"{PREFIX}{name}=1\nOTHER=2\n")
        assert ServerSettings() == before

    def test_development_has_other_defaults_that_give_way(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        settings = ServerSettings.for_development()
        assert isinstance(settings, ServerSettings)
        assert (settings.drain_listen_seconds, settings.scripted_layers) == (0, True)
        assert ServerSettings.for_development(scripted_layers=False, redis_prefix="x").redis_prefix == "x"
        assert ServerSettings.for_development(scripted_layers=False).scripted_layers is False
        (tmp_path / ".env").write_text("DIFY_AGENT_SCRIPTED_LAYERS=0\n")
        monkeypatch.setenv("DIFY_AGENT_DRAIN_LISTEN_SECONDS", "2")
        settings = ServerSettings.for_development()
        assert (settings.drain_listen_seconds, settings.scripted_layers) == (2, False)
