"""The server's settings: environment variables ``DIFY_AGENT_*``, validated once and then frozen.

Sources, strongest first: constructor arguments by field name, the process environment, ``dify-agent/.env``, ``.env``
(both relative to the working directory). Names are case-insensitive; unknown variables are ignored (the commands warn
of those that begin with ``DIFY_AGENT_``), and an empty one counts as unset, so that the next source decides. Protocol 8
is the contract of each name; the ones the server adds are listed in the specification's decisions. Secrets are plain
strings, so that callers can pass and compare them, but neither a ``repr`` nor a validation error shows them.
"""

import json
import re
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from dify_agent.settings_checks import (
    absolute_posix_path,
    blank_to_none,
    http_base_url,
    http_base_urls,
    inner_api_root,
    origins,
    parse_list,
    secret_key,
    stub_base_url,
    trim_to_none,
)

ENV_PREFIX = "DIFY_AGENT_"
DEFAULT_RUN_RETENTION_SECONDS = 7200
"""Two hours."""
DEFAULT_RUN_EVENT_STREAM_MAX_LENGTH = 5000
DEFAULT_AGENT_RUN_TIMEOUT_SECONDS = 3600.0
SHUTDOWN_MARGIN_SECONDS = 30.0
"""What the watchdog allows beyond listening and grace."""

_MIB = 1024 * 1024

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Text = Annotated[str | None, BeforeValidator(blank_to_none)]
TrimmedText = Annotated[str | None, BeforeValidator(trim_to_none)]
TextList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(parse_list)]
BaseUrls = Annotated[TextList, AfterValidator(http_base_urls)]
Origins = Annotated[TextList, AfterValidator(origins)]

RuntimeBackend = Literal["local", "enterprise", "e2b"]
LlmTransport = Literal["gateway", "plugin_daemon"]


_SHOWN_TEXTS: Final = frozenset(
    {
        "redis_prefix",
        "local_sandbox_materialized_home_root",
        "local_sandbox_workspace_root",
        "local_sandbox_home_snapshot_root",
    }
)


def _is_plain(annotation: Any) -> bool:
    """Whether this is the type of numbers, truth values or listed words, or None beside them."""
    if get_origin(annotation) is Annotated:
        return _is_plain(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return True
    parts = get_args(annotation)
    return all(map(_is_plain, parts)) if parts else annotation in (int, float, bool, type(None))


class ServerSettings(BaseSettings):
    """Everything an operator can set. An invalid value stops the start with a validation error."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        # pydantic-settings lets the later file win.
        env_file=(".env", "dify-agent/.env"),
        env_file_encoding="utf-8",
        # Compose files pass unset variables as empty text.
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
        populate_by_name=True,
    )

    # Runs and their log
    redis_url: str = Field(
        "redis://localhost:6379/0",
        repr=False,
        description="Connection URL of the run store: redis://, rediss://, unix://, redis+cluster://host:port,... or "
        "redis+sentinel://host:port,.../<master>/<db>; the last two with rediss for TLS, too.",
    )
    redis_prefix: str = Field("dify-agent", description="Prefix of every key. Must not contain '{' or '}'.")
    shutdown_grace_seconds: float = Field(
        30.0,
        allow_inf_nan=False,
        description="Seconds that runs get to finish at shutdown before they are cancelled; below 0 counts as 0.",
    )
    run_retention_seconds: Count = Field(
        DEFAULT_RUN_RETENTION_SECONDS, description="Seconds a run's record and events are kept after their last write."
    )
    run_event_stream_max_length: Count = Field(
        DEFAULT_RUN_EVENT_STREAM_MAX_LENGTH, description="Approximate number of events kept per run."
    )
    stream_text_delta_coalescing_enabled: bool = Field(
        True, description="Merge neighbouring text deltas; false publishes each one."
    )
    stream_text_delta_flush_interval_ms: Count = Field(
        100, description="Milliseconds a merged text delta waits for more text before it is published."
    )
    stream_text_delta_max_chars: Count = Field(
        4096, description="Characters at which a merged text delta is published at once."
    )
    run_timeout_seconds: Seconds = Field(
        DEFAULT_AGENT_RUN_TIMEOUT_SECONDS,
        description="Wall-clock deadline of a run's model and tool loop, in seconds.",
    )
    binding_file_download_command_timeout_seconds: Seconds = Field(
        210.0, description="Seconds the command may take that turns a sandbox file into a Dify file."
    )

    # Access, Dify's services
    api_token: TrimmedText = Field(
        None, repr=False, description="Bearer token of the control plane. Blank: no authentication."
    )
    plugin_daemon_url: str = Field("http://localhost:5002", description="Base URL of the Dify plugin daemon.")
    plugin_daemon_api_key: str = Field("", repr=False, description="API key sent to the Dify plugin daemon.")
    inner_api_url: str = Field("http://localhost:5001", description="Root of the Dify API, without /inner/api.")
    inner_api_key: TrimmedText = Field(None, repr=False, description="API key sent to the Dify API's inner endpoints.")

    # Sandboxes
    runtime_backend: RuntimeBackend = Field("local", description="Sandbox backend: local, enterprise or e2b.")
    local_sandbox_endpoint: Text = Field(
        None,
        validation_alias=AliasChoices("DIFY_AGENT_LOCAL_SANDBOX_ENDPOINT", "DIFY_AGENT_SHELLCTL_ENTRYPOINT"),
        description="shellctl URL of the local backend. Unset: no runtime layer and no resource routes.",
    )
    local_sandbox_auth_token: Text = Field(
        None,
        repr=False,
        validation_alias=AliasChoices("DIFY_AGENT_LOCAL_SANDBOX_AUTH_TOKEN", "DIFY_AGENT_SHELLCTL_AUTH_TOKEN"),
        description="Bearer token sent to the local shellctl.",
    )
    local_sandbox_materialized_home_root: str = Field(
        "/home/dify", description="Folder of the Bindings' Homes, on the sandbox's file system."
    )
    local_sandbox_workspace_root: str = Field(
        "/workspace", description="Folder of the Workspaces, on the sandbox's file system."
    )
    local_sandbox_home_snapshot_root: str = Field(
        "/home/dify/.snapshots", description="Folder of the Home Snapshots, on the sandbox's file system."
    )
    enterprise_sandbox_gateway_endpoint: Text = Field(
        None, description="URL of the Enterprise gateway. Required for the enterprise backend."
    )
    enterprise_sandbox_gateway_auth_token: Text = Field(
        None, repr=False, description="Sent to the Enterprise gateway as X-Inner-Api-Key."
    )
    enterprise_sandbox_gateway_timeout: Seconds = Field(30.0, description="Seconds per Enterprise gateway request.")
    enterprise_sandbox_proxy_timeout: Seconds = Field(60.0, description="Seconds per proxied shellctl request.")
    e2b_api_key: Text = Field(None, repr=False, description="E2B API key. Required for the e2b backend.")
    e2b_template: str = Field(
        "difys-default-team/dify-agent-local-sandbox", description="E2B template with shellctl and the default Home."
    )
    e2b_active_timeout_seconds: int = Field(
        3600, ge=1, le=3600, description="Longest continuous active time of an E2B sandbox, in seconds."
    )
    e2b_shellctl_port: int = Field(5004, ge=1, le=65535, description="Port of shellctl inside the E2B template.")
    shell_redact_patterns: str = Field(
        "",
        description="JSON array of regular expressions that are redacted from shell output, beside the built-in ones.",
    )

    # Agent Stub
    agent_stub_api_base_url: Annotated[str | None, BeforeValidator(stub_base_url)] = Field(
        None,
        validation_alias=AliasChoices("DIFY_AGENT_STUB_API_BASE_URL"),
        description="Agent Stub URL as sandboxes reach it. Unset: no Agent Stub variables in shell jobs.",
    )
    sandbox_files_base_url: Text = Field(
        None, description="Dify API URL as sandboxes reach it, for signed /files/* transfers."
    )
    stub_upload_file_size_limit: CountOrZero = Field(50, description="Largest Agent Stub upload, in MiB.")
    server_secret_key: Annotated[str | None, BeforeValidator(secret_key)] = Field(
        None, repr=False, description="Root secret of Agent Stub tokens: 32 bytes as unpadded base64url."
    )

    # Outbound HTTP
    outbound_http_connect_timeout: SecondsOrZero = Field(10.0, description="Connect timeout in seconds.")
    outbound_http_read_timeout: SecondsOrZero = Field(600.0, description="Read timeout in seconds.")
    outbound_http_write_timeout: SecondsOrZero = Field(30.0, description="Write timeout in seconds.")
    outbound_http_pool_timeout: SecondsOrZero = Field(10.0, description="Seconds to wait for a free connection.")
    outbound_http_max_connections: Count = Field(
        100, description="Outbound connections in total, model streams included."
    )
    outbound_http_max_keepalive_connections: CountOrZero = Field(
        20, description="Idle outbound connections in total that are kept open."
    )
    outbound_http_keepalive_expiry: SecondsOrZero = Field(30.0, description="Seconds an idle connection is kept open.")

    # Bounds of waits
    enter_timeout_seconds: Seconds = Field(300.0, description="Seconds a run may take to enter its layers.")
    exit_timeout_seconds: Seconds = Field(60.0, description="Seconds a run may take to leave its layers.")
    finalize_timeout_seconds: Seconds = Field(30.0, description="Seconds a run may take to write its terminal event.")
    cancel_timeout_seconds: Seconds = Field(
        10.0, description="Seconds to wait for work that ignores its cancellation before it is abandoned."
    )
    store_outage_seconds: Seconds = Field(
        60.0, description="Seconds the store may be away before running runs fail with reason store_unavailable."
    )
    store_queue_bytes: Count = Field(
        64 * _MIB, description="Bytes of events that wait in memory for the store before runs are slowed down."
    )
    owner_lease_seconds: Seconds = Field(
        15.0, description="Seconds without a heartbeat after which a process's runs are judged lost."
    )
    drain_listen_seconds: SecondsOrZero = Field(
        5.0,
        description="Least seconds the listener stays open after SIGTERM, so load balancers see it (dev, demo: 0).",
    )
    shutdown_limit_seconds: Seconds | None = Field(
        None, description="Seconds after which the watchdog ends the process. Unset: listening + grace + 30."
    )
    stream_stall_seconds: Seconds = Field(
        30.0, description="Seconds after which a reader that takes nothing is closed."
    )

    # Admission and capacity
    max_request_body_bytes: Count = Field(64 * _MIB, description="Largest request body in bytes; more is 413.")
    max_active_runs: CountOrZero = Field(0, description="Active runs per process; more is 429. 0: no limit.")
    max_active_runs_per_tenant: CountOrZero = Field(
        0, description="Active runs per tenant and process; runs without a tenant share one count. 0: no limit."
    )
    tool_concurrency: Count = Field(16, description="Tool calls that one run executes at the same time.")
    tool_threads: Count = Field(64, description="Worker threads for synchronous tools, per process.")

    # What requests may ask for
    model_base_urls: BaseUrls = Field(
        (),
        description="Base URLs a pydantic_ai.model layer may name; they get the provider's key. "
        "A JSON array or a comma-separated list.",
    )
    allowed_origins: Origins = Field(
        (),
        description="Origins (scheme://host[:port]) that may open a WebSocket when a token is set: "
        "a JSON array or a comma-separated list.",
    )
    scripted_layers: bool = Field(False, description="Admit scripted.model and scripted.tools (dev, demo: true).")
    llm_transport: LlmTransport = Field(
        "gateway", description="How dify.plugin.llm reaches models: gateway (Dify API) or plugin_daemon."
    )

    @field_validator("redis_prefix")
    @classmethod
    def _check_redis_prefix(cls, value: str) -> str:
        if "{" in value or "}" in value:
            raise ValueError(
                "DIFY_AGENT_REDIS_PREFIX must not contain '{' or '}': the server puts the run id in braces so that all "
                "keys of a run share one cluster slot"
            )
        return value

    @field_validator("shutdown_grace_seconds")
    @classmethod
    def _floor_grace(cls, value: float) -> float:
        return max(value, 0.0)

    @field_validator("inner_api_url")
    @classmethod
    def _check_inner_api_url(cls, value: str) -> str:
        return inner_api_root(value)

    @field_validator("sandbox_files_base_url")
    @classmethod
    def _check_sandbox_files_base_url(cls, value: str | None) -> str | None:
        return None if value is None else http_base_url(value.strip(), "DIFY_AGENT_SANDBOX_FILES_BASE_URL")

    @field_validator(
        "local_sandbox_materialized_home_root", "local_sandbox_workspace_root", "local_sandbox_home_snapshot_root"
    )
    @classmethod
    def _check_root(cls, value: str) -> str:
        return absolute_posix_path(value)

    @model_validator(mode="after")
    def _check_backend(self) -> Self:
        if self.runtime_backend == "local" and self.local_sandbox_endpoint is not None:
            http_base_url(self.local_sandbox_endpoint, "DIFY_AGENT_LOCAL_SANDBOX_ENDPOINT")
        if self.runtime_backend == "enterprise":
            variable = "DIFY_AGENT_ENTERPRISE_SANDBOX_GATEWAY_ENDPOINT"
            if self.enterprise_sandbox_gateway_endpoint is None:
                raise ValueError(f"{variable} is required when DIFY_AGENT_RUNTIME_BACKEND is enterprise.")
            http_base_url(self.enterprise_sandbox_gateway_endpoint, variable)
        if self.runtime_backend == "e2b":
            for name, value in (("E2B_API_KEY", self.e2b_api_key), ("E2B_TEMPLATE", self.e2b_template)):
                if not value or not value.strip():
                    raise ValueError(f"DIFY_AGENT_{name} is required when DIFY_AGENT_RUNTIME_BACKEND is e2b.")
        return self

    @model_validator(mode="after")
    def _check_agent_stub(self) -> Self:
        if self.agent_stub_api_base_url is None:
            return self
        if self.server_secret_key is None:
            raise ValueError("DIFY_AGENT_SERVER_SECRET_KEY is required when DIFY_AGENT_STUB_API_BASE_URL is set.")
        if self.inner_api_key is not None and self.sandbox_files_base_url is None:
            raise ValueError(
                "DIFY_AGENT_SANDBOX_FILES_BASE_URL is required for Agent Stub file transfers and Config downloads."
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Constructor, environment, dotenv files; no secret files."""
        return init_settings, env_settings, dotenv_settings

    @classmethod
    def for_development(cls, **overrides: Any) -> "ServerSettings":
        """Settings of ``dev`` and ``demo``: other defaults for two fields; whatever is set anywhere still wins."""
        return _DevelopmentSettings(**overrides)

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Primary environment variable of each field, in the order of the fields."""
        named = {"agent_stub_api_base_url": "DIFY_AGENT_STUB_API_BASE_URL"}
        return {name: named.get(name, f"{ENV_PREFIX}{name.upper()}") for name in cls.model_fields}

    @classmethod
    def known_variables(cls) -> frozenset[str]:
        """Every name that sets a field, in upper case: `variables`, older names, and the prefix before a field's."""
        own = {f"{ENV_PREFIX}{name.upper()}" for name in cls.model_fields}
        aliases = (field.validation_alias for field in cls.model_fields.values())
        choices = (alias.choices for alias in aliases if isinstance(alias, AliasChoices))
        return frozenset({*own, *cls.variables().values(), *(str(name) for names in choices for name in names)})

    @classmethod
    def shown_fields(cls) -> frozenset[str]:
        """Fields whose value a message may repeat: numbers, truth values, words from a list, and some texts.

        All others may hold a secret, URLs a login.
        """
        plain = {name for name, field in cls.model_fields.items() if field.repr and _is_plain(field.annotation)}
        return frozenset(plain | _SHOWN_TEXTS)

    @property
    def shutdown_limit(self) -> float:
        """Seconds from SIGTERM until the watchdog ends the process."""
        if self.shutdown_limit_seconds is not None:
            return self.shutdown_limit_seconds
        return self.drain_listen_seconds + self.shutdown_grace_seconds + SHUTDOWN_MARGIN_SECONDS

    def parse_shell_redact_patterns(self) -> tuple[str, ...]:
        """The additional redaction patterns, as given. Judged at the start, not when settings are read (protocol 8).

        Raises:
            ValueError: the setting is neither blank nor a JSON array of strings, each a regular expression. The text
                never repeats a pattern: what it hides is a secret.
        """
        if not self.shell_redact_patterns.strip():
            return ()
        error = "DIFY_AGENT_SHELL_REDACT_PATTERNS must be a JSON array of strings"
        try:
            patterns = json.loads(self.shell_redact_patterns)
        except ValueError:
            raise ValueError(error) from None
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            raise ValueError(error)
        for number, pattern in enumerate(patterns, 1):
            try:
                re.compile(pattern)
            except (re.error, OverflowError, RecursionError):
                message = f"pattern {number} of DIFY_AGENT_SHELL_REDACT_PATTERNS is not a regular expression"
                raise ValueError(message) from None
        return tuple(patterns)


class _DevelopmentSettings(ServerSettings):
    """`ServerSettings` with the defaults of development as its weakest source."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        defaults = InitSettingsSource(settings_cls, {"drain_listen_seconds": 0.0, "scripted_layers": True})
        return init_settings, env_settings, dotenv_settings, defaults
