"""``dify-agent doctor``: looks for broken rules in the store, and repairs some of them (docs/doctor.md)."""

from collections.abc import Collection
from enum import IntEnum

import trio
import typer
from pydantic import ValidationError

from dify_agent.cli.logs import configure_logging
from dify_agent.cli.problems import log_failure, log_invalid_settings
from dify_agent.cli.unknown import warn_of_unknown_settings
from dify_agent.concurrency.groups import first_error
from dify_agent.doctor.checks import Bounds, Finding
from dify_agent.doctor.keyspace import ExecutorKeyspace
from dify_agent.doctor.repair import Repairs
from dify_agent.doctor.report import Examined, as_json, as_text
from dify_agent.doctor.scan import Scan, ScanResult
from dify_agent.settings import ServerSettings
from dify_agent.store.deployments import open_executor
from dify_agent.store.executor import LEAST_CONNECTIONS
from dify_agent.store.keys import Keys
from dify_agent.store.redis import RedisRunStore
from dify_agent.store.urls import parse_store_url

CONNECTIONS = LEAST_CONNECTIONS
"""The least that the store's lanes allow; the doctor uses one at a time."""
ANSWER_SECONDS = 10.0
"""For one round trip. A look at many large events takes longer than what replicas ask."""
INTERRUPTED = 130


class DoctorStatus(IntEnum):
    """Exit statuses of the command."""

    CLEAN = 0
    """Nothing found, or all of it repaired."""
    CANNOT_LOOK = 1
    FINDINGS = 3
    """2 is the command line's own."""


def run_doctor(*, repair: bool, json: bool) -> int:
    """Examine the configured store, print the report on stdout; returns the exit status."""
    configure_logging()
    warn_of_unknown_settings()
    try:
        examined, result, repaired = trio.run(_examine, ServerSettings(), repair)
    except ValidationError as invalid:
        log_invalid_settings(invalid)
        return DoctorStatus.CANNOT_LOOK
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as group:  # noqa: BLE001  The process boundary.
        log_failure("cannot examine the store", first_error(group))
        return DoctorStatus.CANNOT_LOOK
    typer.echo((as_json if json else as_text)(examined, result, repaired))
    return DoctorStatus.FINDINGS if len(repaired) < len(result.findings) else DoctorStatus.CLEAN


async def _examine(settings: ServerSettings, repair: bool) -> tuple[Examined, ScanResult, Collection[Finding]]:
    url, keys = parse_store_url(settings.redis_url), Keys(settings.redis_prefix)
    bounds = Bounds(retention=settings.run_retention_seconds, lease=settings.owner_lease_seconds)
    async with open_executor(url, limit=CONNECTIONS, timeout=ANSWER_SECONDS) as executor:
        store = RedisRunStore(
            executor, keys, retention_seconds=bounds.retention, max_length=settings.run_event_stream_max_length
        )
        examined = Examined(str(url), keys.prefix, bounds, await store.eviction_policy())
        keyspace = ExecutorKeyspace(executor)
        scan = Scan(keyspace, keys, bounds)
        result = await scan.run()
        repaired = await Repairs(keyspace, keys, scan).apply(result.findings) if repair else []
    return examined, result, repaired
