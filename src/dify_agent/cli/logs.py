"""What a replica says on stderr: one line per event, for people on a terminal, as JSON elsewhere."""

import logging
import sys
from functools import partial
from typing import Any

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict


def configure_logging(level: int = logging.INFO, *, worker: int | None = None) -> None:
    """Send structlog's and the standard library's records to stderr in one form, with the worker's number if it has
    one."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if worker is not None:
        shared.append(partial(_add_worker, worker))
    renderer: list[structlog.typing.Processor]
    if sys.stderr.isatty():
        renderer = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        # Without the frames' locals: they hold request headers, and with them tokens.
        tracebacks = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
        renderer = [tracebacks, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("dify_agent").setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_logger,
        cache_logger_on_first_use=True,
    )


def _add_worker(worker: int, _logger: Any, _method: str, event: EventDict) -> EventDict:
    event["worker"] = worker
    return event


def _logger(*_names: object) -> logging.Logger:
    return logging.getLogger("dify_agent")
