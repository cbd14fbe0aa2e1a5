"""``serve`` and ``dev``: settings, the store they stand on, and the exit status."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio
from pydantic import ValidationError

import dify_agent
from dify_agent.cli.logs import configure_logging
from dify_agent.cli.problems import log_failed_start, log_invalid_settings
from dify_agent.cli.reloading import ReloadedReplica, report_port
from dify_agent.cli.unknown import warn_of_unknown_settings
from dify_agent.cli.workers import Inherited, Workers
from dify_agent.concurrency.groups import first_error
from dify_agent.http.server import Address, bind
from dify_agent.main import STOP_SIGNALS, ExitStatus, Listen, serve
from dify_agent.metrics import SHARED_FOLDER, share_as
from dify_agent.settings import ServerSettings
from dify_agent.store.embedded import embedded_valkey

REDIS_URL: Final = "DIFY_AGENT_REDIS_URL"
GRACE: Final = "DIFY_AGENT_SHUTDOWN_GRACE_SECONDS"
RELOAD_GRACE_SECONDS: Final = 1.0
"""Grace of a replica that a change replaces, unless another is configured: whoever edits waits for the new one."""
INTERRUPTED: Final = 130

_log = structlog.get_logger()


def run_serve(host: str, port: int) -> int:
    """Run one replica on the configured Redis; returns the exit status."""
    configure_logging()
    warn_of_unknown_settings()
    return _guarded(_serve, host, port)


def run_workers(host: str, port: int, count: int) -> int:
    """Run ``count`` replicas on one port, each a process; returns the exit status."""
    configure_logging()
    warn_of_unknown_settings()
    return _guarded(partial(_serve_by_workers, count=count), host, port)


def run_worker(inherit: str) -> int:
    """Be one of several replicas, with what ``inherit`` names; returns the exit status."""
    inherited = Inherited.parse(inherit)
    configure_logging(worker=inherited.number)
    share_as(inherited.number)
    return _guarded(partial(_serve_as_worker, inherited=inherited), "", 0)


def run_dev(host: str, port: int, *, reload: bool, report_fd: int | None = None) -> int:
    """Run one replica for development; returns the exit status.

    Args:
        host: address to listen on.
        port: port to listen on, 0 for any.
        reload: restart at changes of the source.
        report_fd: descriptor on which a reloading parent is told the port.
    """
    configure_logging()
    if report_fd is None:  # else the parent has said it
        warn_of_unknown_settings()
    return _guarded(_dev_reloading if reload else partial(_dev, report_fd=report_fd), host, port)


async def _serve(host: str, port: int) -> int:
    return await serve(ServerSettings(), _listen(host, port))


async def _serve_by_workers(host: str, port: int, *, count: int) -> int:
    settings = ServerSettings()  # a setting that is wrong is told once, not by each worker
    sockets = bind(host, port)
    with (
        tempfile.TemporaryDirectory(prefix="dify-agent-metrics-") as metrics,
        trio.open_signal_receiver(*STOP_SIGNALS) as signals,
    ):
        workers = Workers(count, sockets, {**os.environ, SHARED_FOLDER: metrics}, stop_seconds=settings.shutdown_limit)
        return await workers.run(signals)


async def _serve_as_worker(_host: str, _port: int, *, inherited: Inherited) -> int:
    def on_listening(addresses: list[Address]) -> None:
        report_port(inherited.report, addresses[0][1])
        settle_collector()

    first = inherited.number == 1
    listen = Listen(host="", port=0, sockets=inherited.sockets(), on_listening=on_listening, speaks_for_group=first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inherited.follow_parent, listen.stop)
        status = await serve(ServerSettings(), listen)
        nursery.cancel_scope.cancel(reason="the worker has drained")
    return status


async def _dev(host: str, port: int, *, report_fd: int | None) -> int:
    async with development_settings() as settings:
        return await serve(settings, _listen(host, port, report_fd))


def _listen(host: str, port: int, report_fd: int | None = None) -> Listen:
    def on_listening(addresses: list[Address]) -> None:
        if report_fd is not None:
            report_port(report_fd, addresses[0][1])
        settle_collector()

    return Listen(host=host, port=port, on_listening=on_listening)


def settle_collector() -> None:
    """Take what was loaded so far out of the garbage collector's sight, and let it look less often.

    A full collection walked all of it: measured, 90 to 200 ms during which no stream moved, every few hundred runs.
    Only for a process that is a replica and nothing else: it concerns the whole process, for good.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@asynccontextmanager
async def development_settings() -> AsyncIterator[ServerSettings]:
    """Settings for ``dev`` and ``demo``, with an embedded Valkey unless a Redis is configured anywhere."""
    settings = ServerSettings.for_development()
    if "redis_url" in settings.model_fields_set:
        yield settings
        return
    async with embedded_valkey() as url:
        yield ServerSettings.for_development(redis_url=url)


async def _dev_reloading(host: str, port: int) -> int:
    """Keep a child replica running, restarted at each change. The embedded store stays, and with it the runs' logs."""
    try:
        from watchfiles import PythonFilter, awatch
    except ImportError:
        _log.error(
            "--reload needs the package watchfiles: "
            ".venv/bin/pip install --constraint constraints.txt --editable '.[reload]'"
        )
        return ExitStatus.START_FAILED
    source = Path(dify_agent.__file__).parent.parent
    async with development_settings() as settings, aclosing(awatch(source, watch_filter=PythonFilter())) as changes:
        replica = ReloadedReplica(partial(_child_command, host), _child_environment(settings), port)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            return await replica.run(changes, signals, stop_seconds=settings.shutdown_limit)


def _child_command(host: str, port: int, report: int) -> list[str]:
    options = ["--host", host, "--port", str(port), "--report-fd", str(report)]
    return [sys.executable, "-m", "dify_agent", "dev", *options]


def _child_environment(settings: ServerSettings) -> dict[str, str]:
    environment = {**os.environ, REDIS_URL: settings.redis_url}
    if "shutdown_grace_seconds" not in settings.model_fields_set:
        environment[GRACE] = str(RELOAD_GRACE_SECONDS)
    return environment


def _guarded(main: Callable[[str, int], Awaitable[int]], host: str, port: int) -> int:
    """Run ``main`` under Trio; a failure to start is one line per problem that says what to change, and status 1."""
    try:
        return int(trio.run(main, host, port))
    except ValidationError as invalid:
        log_invalid_settings(invalid)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as group:  # noqa: BLE001  The process boundary.
        log_failed_start(first_error(group), host, port)
    return ExitStatus.START_FAILED
