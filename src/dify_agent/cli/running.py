"""``serve`` and ``dev``: settings, the store they stand on, and the exit status."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog
import trio
from pydantic import ValidationError

import dify_agent
from dify_agent.cli.logs import configure_logging
from dify_agent.concurrency.groups import first_error
from dify_agent.errors import DifyAgentError, StoreUnavailableError
from dify_agent.main import ExitStatus, Listen, serve
from dify_agent.settings import ServerSettings
from dify_agent.store.embedded import embedded_valkey

REDIS_URL: Final = "DIFY_AGENT_REDIS_URL"
INTERRUPTED: Final = 130

_log = structlog.get_logger()


def run_serve(host: str, port: int) -> int:
    """Run one replica on the configured Redis; returns the exit status."""
    configure_logging()
    return _guarded(_serve, host, port)


def run_dev(host: str, port: int, *, reload: bool) -> int:
    """Run one replica for development; returns the exit status."""
    configure_logging()
    return _guarded(_dev_reloading if reload else _dev, host, port)


async def _serve(host: str, port: int) -> int:
    return await serve(ServerSettings(), _listen(host, port))


async def _dev(host: str, port: int) -> int:
    async with development_settings() as settings:
        return await serve(settings, _listen(host, port))


def _listen(host: str, port: int) -> Listen:
    return Listen(host=host, port=port, on_listening=lambda _addresses: settle_collector())


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
        _log.error("--reload needs the package watchfiles: pip install 'dify-agent-trio[reload]'")
        return ExitStatus.START_FAILED
    source = Path(dify_agent.__file__).parent.parent
    async with development_settings() as settings:
        environment = {**os.environ, REDIS_URL: settings.redis_url}
        command = [sys.executable, "-m", "dify_agent.cli", "dev", "--host", host, "--port", str(port)]
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                child = await _start(nursery, command, environment)

                async def stop_at_signal() -> None:
                    await anext(aiter(signals))
                    nursery.cancel_scope.cancel(reason="told to stop")

                nursery.start_soon(stop_at_signal)
                try:
                    async for _changes in awatch(source, watch_filter=PythonFilter()):
                        _log.info("source changed, restarting")
                        await _stop(child)
                        child = await _start(nursery, command, environment)
                finally:
                    with trio.move_on_after(settings.shutdown_limit, shield=True):
                        await _stop(child)
    return ExitStatus.DRAINED


async def _start(nursery: trio.Nursery, command: list[str], environment: dict[str, str]) -> trio.Process:
    process: trio.Process = await nursery.start(_child, command, environment)
    return process


async def _child(
    command: list[str], environment: dict[str, str], *, task_status: trio.TaskStatus[trio.Process]
) -> None:
    # In a session of its own: Ctrl-C is for this process, which tells the child once. Twice would mean: at once.
    process = await trio.lowlevel.open_process(
        command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    task_status.started(process)
    await process.wait()


async def _stop(process: trio.Process) -> None:
    if process.poll() is None:
        process.terminate()
    await process.wait()


def _guarded(main: Callable[[str, int], Awaitable[int]], host: str, port: int) -> int:
    """Run ``main`` under Trio; a failure to start is one line that says what to change, and status 1."""
    try:
        return int(trio.run(main, host, port))
    except ValidationError as invalid:
        for item in invalid.errors(include_url=False, include_input=False):
            _log.error("invalid setting", setting=".".join(map(str, item["loc"])), problem=item["msg"])
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as group:  # noqa: BLE001  The process boundary.
        error = first_error(group)
        expected = isinstance(error, OSError | ValueError | DifyAgentError)
        problem = str(error) or type(error).__name__
        setting = REDIS_URL if isinstance(error, StoreUnavailableError) else None
        cause = getattr(error, "cause", None)
        _log.error("cannot serve", problem=problem, cause=cause, setting=setting, exc_info=not expected)
    return ExitStatus.START_FAILED
