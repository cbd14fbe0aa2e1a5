"""The composition root: settings, store, supervisor and HTTP in one nursery, and the order in which they stop.

The only module that names concrete variants, and the only one that reads settings.
"""

import faulthandler
import os
import queue
import resource
import secrets
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from types import FrameType
from typing import Final, Self

import structlog
import trio

from dify_agent.actors.environment import CoalescingPolicy, RunBounds, RunEnvironment
from dify_agent.actors.prompts import has_blank_prompt
from dify_agent.actors.publisher import KEEP_SECONDS, Publisher
from dify_agent.backends.transport import OutboundHttp, OutboundOptions, open_outbound
from dify_agent.events.flusher import FlushTimer
from dify_agent.http.app import create_app
from dify_agent.http.server import Address, serve_http
from dify_agent.http.settings import HttpSettings
from dify_agent.layers.extensions import load_layer_extensions
from dify_agent.layers.registry import create_layer_providers
from dify_agent.metrics import Metrics
from dify_agent.model.provider import ModelRegistry, open_model_registry
from dify_agent.settings import ServerSettings
from dify_agent.store.advice import EVICTION, NO_EVICTION
from dify_agent.store.base import Owner, RunStore
from dify_agent.store.connections import contain
from dify_agent.store.metered import metered
from dify_agent.store.redis import RedisRunStore, open_redis_store
from dify_agent.store.urls import parse_store_url
from dify_agent.supervisor.admission import RunLimits
from dify_agent.supervisor.serve import Supervisor

_log = structlog.get_logger()

STDERR: Final = 2
FAULT_SECONDS: Final = 2.0
"""Behind the watchdog's thread: the status is 1 then, and the tasks' traceback is on stderr."""
METRICS_REFRESH_SECONDS: Final = 5.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The first of them drains, a second ends the process at once. SIGHUP comes when a terminal is closed."""
STORE_CONNECTIONS: Final = 12
"""Seven are the services', two are for what begins and ends runs (`dify_agent.store.executor.Lane`); three serve
requests, which take a round trip each."""

SPENT_GRACE_SECONDS: Final = 5.0
"""Grace of the drain that follows a given-up service: runs cannot be served well any more."""


CALL_OFF_SECONDS: Final = 1.0
"""A called-off watchdog's thread ends at once; it is waited for, so that none is left."""


class ExitStatus(IntEnum):
    """Exit statuses of the process (specification, settings)."""

    DRAINED = 0
    START_FAILED = 1
    BUDGET_SPENT = 70
    WATCHDOG = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen, whom to tell, and a way to stop besides signals, for a program with a replica inside."""

    host: str
    port: int
    """0 picks a free one."""
    on_listening: Callable[[list[Address]], None] = lambda _addresses: None
    """Called once with the bound addresses, when requests are accepted."""
    stop: trio.Event = field(default_factory=trio.Event)
    sockets: Sequence[socket.socket] | None = None
    """Bound sockets to use in place of host and port, which may be shared with other processes."""
    speaks_for_group: bool = True
    """Whether this replica says what holds for all that were started with it; one of them does."""


async def serve(settings: ServerSettings, listen: Listen) -> ExitStatus:
    """Run one replica until it is told to stop by SIGTERM, SIGINT or ``listen.stop``; returns when it has drained.

    A crash inside has the watchdog's time to clean up, as a shutdown has.

    Raises:
        ValueError: a setting is unusable. It, and these two, may come in nested groups:
        OSError: the address cannot be bound.
        StoreUnavailableError: the store does not answer, so the process cannot start.
    """
    settings.parse_shell_redact_patterns()  # judged at the start, although nothing redacts yet
    raise_descriptor_limit()
    with (
        Watchdog(settings.shutdown_limit) as watchdog,
        trio.open_signal_receiver(*STOP_SIGNALS) as signals,
        _armed_by_signals(watchdog),
    ):
        async with (
            open_redis_store(
                settings.redis_url,
                prefix=settings.redis_prefix,
                retention_seconds=settings.run_retention_seconds,
                max_length=settings.run_event_stream_max_length,
                max_connections=STORE_CONNECTIONS,
            ) as opened,
            _open_outbound(settings) as outbound,
            open_model_registry(settings.model_base_urls, http_client=outbound.models) as models,
        ):
            metrics = Metrics()
            store = metered(opened, metrics.store_operation)
            await store.ping()
            supervisor = build_supervisor(settings, store, models, metrics, outbound)
            async with trio.open_nursery() as root:
                root.start_soon(_arm_when_cancelled, watchdog)
                root.start_soon(_refresh, metrics)
                if listen.speaks_for_group:
                    root.start_soon(contain, partial(_warn_of_eviction, opened))
                await root.start(supervisor.serve)
                stop_http = trio.Event()
                async with trio.open_nursery() as front:
                    addresses = await front.start(
                        _http(settings, supervisor, store, metrics, listen=listen, stop=stop_http)
                    )
                    _log.info(
                        "listening",
                        addresses=[authority(*address) for address in addresses],
                        owner=supervisor.environment.owner.id,
                        pid=os.getpid(),
                    )
                    listen.on_listening(addresses)
                    await _until_told(signals, supervisor, listen.stop)
                    watchdog.arm()
                    root.start_soon(_second_signal, signals)
                    await _drain(settings, supervisor)
                    stop_http.set()
                await supervisor.retire()
                root.cancel_scope.cancel(reason="drained")
        _log.info("stopped")
    return ExitStatus.DRAINED if supervisor.failure is None else ExitStatus.BUDGET_SPENT


def authority(host: str, port: int) -> str:
    """Host and port as URLs have them: ``127.0.0.1:5050``, ``[::1]:5050``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _arm_when_cancelled(watchdog: "Watchdog") -> None:
    """A crash of anything in the root cancels all of it; what then ignores cancellation must not keep the process."""
    try:
        await trio.sleep_forever()
    finally:
        watchdog.arm()


async def _warn_of_eviction(store: RedisRunStore) -> None:
    """Beside the start: nothing of it waits for the answer."""
    policy = await store.eviction_policy()
    if policy is not None:
        _log.warning(EVICTION, maxmemory_policy=policy, advice=NO_EVICTION)


async def _refresh(metrics: Metrics) -> None:
    """Where several processes share their metrics, the others see of this one's gauges what was written last."""
    while metrics.shared:
        metrics.refresh()
        await trio.sleep(METRICS_REFRESH_SECONDS)


def _open_outbound(settings: ServerSettings) -> AbstractAsyncContextManager[OutboundHttp]:
    options = OutboundOptions(
        connect_timeout=settings.outbound_http_connect_timeout,
        read_timeout=settings.outbound_http_read_timeout,
        write_timeout=settings.outbound_http_write_timeout,
        pool_timeout=settings.outbound_http_pool_timeout,
        max_connections=settings.outbound_http_max_connections,
        max_keepalive_connections=settings.outbound_http_max_keepalive_connections,
        keepalive_expiry=settings.outbound_http_keepalive_expiry,
    )
    return open_outbound(
        daemon_url=settings.plugin_daemon_url,
        daemon_api_key=settings.plugin_daemon_api_key,
        dify_api_url=settings.inner_api_url,
        dify_api_key=settings.inner_api_key,
        options=options,
    )


def _http(
    settings: ServerSettings,
    supervisor: Supervisor,
    store: RunStore,
    metrics: Metrics,
    *,
    listen: Listen,
    stop: trio.Event,
) -> Callable[..., Awaitable[None]]:
    """The HTTP front as a service to start."""
    http_settings = HttpSettings(
        api_token=settings.api_token,
        max_request_body_bytes=settings.max_request_body_bytes,
        stream_stall_seconds=settings.stream_stall_seconds,
        allowed_origins=settings.allowed_origins,
    )
    app = create_app(
        service=supervisor,
        store=store,
        settings=http_settings,
        blank_prompt_check=has_blank_prompt,
        metrics=metrics,
    )
    return partial(
        serve_http,
        app,
        settings=http_settings,
        shutdown_trigger=stop.wait,
        host=listen.host,
        port=listen.port,
        sockets=listen.sockets,
    )


def build_supervisor(
    settings: ServerSettings,
    store: RunStore,
    models: ModelRegistry,
    metrics: Metrics,
    outbound: OutboundHttp | None = None,
) -> Supervisor:
    """Wire a supervisor with everything a run needs. Starts nothing. Without ``outbound`` no layer can call Dify."""
    owner = Owner(id=secrets.token_hex(8), epoch=time.time_ns() // 1_000_000)
    bounds = RunBounds(
        enter_timeout_seconds=settings.enter_timeout_seconds,
        run_timeout_seconds=settings.run_timeout_seconds,
        exit_timeout_seconds=settings.exit_timeout_seconds,
        finalize_timeout_seconds=settings.finalize_timeout_seconds,
        cancel_timeout_seconds=settings.cancel_timeout_seconds,
    )
    coalescing = CoalescingPolicy(
        enabled=settings.stream_text_delta_coalescing_enabled,
        interval_seconds=settings.stream_text_delta_flush_interval_ms / 1000,
        max_chars=settings.stream_text_delta_max_chars,
    )
    publisher = Publisher(
        store,
        queue_bytes=settings.store_queue_bytes,
        outage_seconds=settings.store_outage_seconds,
        linger_seconds=bounds.last_word_seconds,
    )

    metrics.watch("queue_bytes", "Bytes of events that wait to be written.", lambda: publisher.budget.used)
    metrics.watch("queue_events", "Events that wait to be written.", lambda: publisher.waiting_events)
    metrics.watch("queue_limit_bytes", "Bytes from which producers wait.", lambda: publisher.budget.limit)
    metrics.watch("queue_stuck_runs", "Runs whose events the store does not take now.", lambda: publisher.stuck_runs)
    own_types = create_layer_providers(
        models=models,
        scripted_layers=settings.scripted_layers,
        outbound=outbound,
        llm_transport=settings.llm_transport,
    )
    installed_types = load_layer_extensions()
    if installed_types:
        _log.info("layer types of installed packages", types=[provider.type_id for provider in installed_types])

    def environment(on_finished: Callable[[str], None]) -> RunEnvironment:
        return RunEnvironment(
            store=store,
            owner=owner,
            publisher=publisher,
            flush_timer=FlushTimer(),
            providers=(*own_types, *installed_types),
            bounds=bounds,
            coalescing=coalescing,
            tool_concurrency=settings.tool_concurrency,
            tool_threads=trio.CapacityLimiter(settings.tool_threads),
            on_finished=on_finished,
            metrics=metrics,
        )

    return Supervisor(
        environment,
        lease_seconds=settings.owner_lease_seconds,
        retention_seconds=settings.run_retention_seconds,
        # On one server a failover that loses a run's end loses what was written after it as well.
        keep_seconds=KEEP_SECONDS if parse_store_url(settings.redis_url).deployment == "cluster" else 0.0,
        limits=RunLimits(total=settings.max_active_runs, per_tenant=settings.max_active_runs_per_tenant),
    )


async def _until_told(signals: AsyncIterator[int], supervisor: Supervisor, stop: trio.Event) -> None:
    """Return at the first signal, at ``stop``, or when a service has spent its restart budget."""
    async with trio.open_nursery() as waiting:

        async def wait_for(what: Callable[[], Awaitable[object]], why: str) -> None:
            await what()
            _log.info("stopping", why=why)
            waiting.cancel_scope.cancel(reason=why)

        async def next_signal() -> None:
            await anext(signals)

        waiting.start_soon(wait_for, next_signal, "signal")
        waiting.start_soon(wait_for, stop.wait, "told by the program")
        waiting.start_soon(wait_for, supervisor.failed.wait, "a service was given up")


async def _second_signal(signals: AsyncIterator[int]) -> None:
    """The operator insists: leave at once. Owners that vanish are judged by the others."""
    number = await anext(signals)
    _log.warning("told again, leaving at once", signal=signal.Signals(number).name)
    os._exit(128 + number)


async def _drain(settings: ServerSettings, supervisor: Supervisor) -> None:
    """Readiness fails, new runs are refused, runs end or are ended, other replicas' streams end (architecture 7).

    The listener stays open meanwhile, and for at least ``DRAIN_LISTEN_SECONDS``: a proxy may still send requests here.
    So streams end only then: a reader connects again at once, and would be sent here again as long as proxies do.
    """
    began = trio.current_time()
    grace = SPENT_GRACE_SECONDS if supervisor.failure is not None else settings.shutdown_grace_seconds
    await supervisor.drain(grace)
    await trio.sleep_until(began + settings.drain_listen_seconds)
    supervisor.end_streams()
    _log.info("drained", seconds=round(trio.current_time() - began, 2))


@contextmanager
def _armed_by_signals(watchdog: "Watchdog") -> Iterator[None]:
    """Arm the watchdog where a signal arrives: an event loop that code of a run holds delivers none.

    Enter it behind the receiver of the signals.
    """

    delivering = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        watchdog.arm()
        deliver = delivering[signal.Signals(number)]
        assert callable(deliver), "a receiver is open"
        deliver(number, frame)

    for number in STOP_SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, deliver in delivering.items():
            signal.signal(number, deliver)


class Watchdog:
    """Ends the process with status 75 when its shutdown takes longer than ``seconds``.

    A thread, because what it guards against includes an event loop that does not turn any more. A context manager:
    leaving it calls the watchdog off.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True arms, False calls off. Its ``put`` may interrupt itself, which is what a signal's handler needs."""
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._orders.put(False)
        if self._armed:
            faulthandler.cancel_dump_traceback_later()
        self._thread.join(CALL_OFF_SECONDS)

    def arm(self) -> None:
        """The shutdown has begun. May be called again, and by the handler of a signal."""
        if not self._armed:
            self._armed = True
            self._orders.put(True)
            # Native code that keeps the interpreter lock stops the thread as well; this one needs no interpreter.
            faulthandler.dump_traceback_later(self._seconds + FAULT_SECONDS, exit=True, file=STDERR)

    def _watch(self) -> None:
        if self._orders.get():
            try:
                self._orders.get(timeout=self._seconds)
            except queue.Empty:
                self._bite()

    def _bite(self) -> None:
        _log.critical("shutdown took longer than DIFY_AGENT_SHUTDOWN_LIMIT_SECONDS allows, leaving")
        os._exit(ExitStatus.WATCHDOG)


def raise_descriptor_limit() -> None:
    """Use as many descriptors as the system allows this process: each open stream holds one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        _log.warning("descriptor limit not raised", soft=soft, hard=hard)  # macOS says unlimited and means less
