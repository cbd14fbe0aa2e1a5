"""``dify-agent fakes``: a scriptable Dify API and plugin daemon, for tests and load tests (docs/fakes.md)."""

import signal
from enum import IntEnum
from pathlib import Path

import structlog
import trio
from pydantic import ValidationError

from dify_agent.cli.logs import configure_logging
from dify_agent.concurrency.groups import first_error
from dify_agent.testing.script import Script
from dify_agent.testing.server import open_fakes

_log = structlog.get_logger()


class FakesStatus(IntEnum):
    """Exit statuses of the command."""

    STOPPED = 0
    START_FAILED = 1
    INTERRUPTED = 130


def run_fakes(host: str, port: int, *, script: Path | None, key: str, state_bytes: int) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit status.

    Args:
        host: address to listen on.
        port: port to listen on, 0 for any.
        script: file with a script as JSON; None answers with what an empty script says.
        key: what callers have to send to both services.
        state_bytes: bound of uploaded files and agent configs together.
    """
    configure_logging()
    try:
        played = Script() if script is None else Script.model_validate_json(script.read_bytes())
        trio.run(_serve, host, port, played, key, state_bytes)
    except ValidationError as invalid:
        for item in invalid.errors(include_url=False, include_input=False):
            place = ".".join(map(str, item["loc"])) or None
            _log.error("invalid script", file=str(script), member=place, problem=item["msg"])
    except KeyboardInterrupt:
        return FakesStatus.INTERRUPTED
    except Exception as group:  # noqa: BLE001  The process boundary.
        from dify_agent.cli.problems import log_failed_start  # it loads the run server, which the fakes do without

        log_failed_start(first_error(group), host, port)
    else:
        return FakesStatus.STOPPED
    return FakesStatus.START_FAILED


async def _serve(host: str, port: int, script: Script, key: str, state_bytes: int) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_fakes(script, host, port, inner_key=key, daemon_key=key, state_bytes=state_bytes) as fakes:
            variables = {name: value for name, value in fakes.environment.items() if not name.endswith("_KEY")}
            _log.info("listening", addresses=[fakes.authority], **variables)
            await anext(signals)
            _log.info("stopping", requests=fakes.requests.total)
