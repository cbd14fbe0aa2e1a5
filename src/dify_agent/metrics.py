"""Every metric of a replica, in one place, and the text that ``/metrics`` answers with.

A registry of its own, handed in like every other collaborator: two supervisors in one process do not share counters.
Several worker processes do share, through files in `SHARED_FOLDER`: whichever is asked answers for all of them. The
files bear a worker's number, not its process's: a worker that replaces a dead one goes on counting where that one
stopped, and there are never more files than workers have metrics.
Durations are in seconds, sizes in bytes. Nothing here carries a run id, a tenant or a text: labels are few and fixed.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, values
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.values import MultiProcessValue

SHARED_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Variable that prometheus_client reads when it is imported: the folder of the files that the workers share."""
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_GAUGE_MODE: Final = "livesum"
"""The sum over the workers that live."""

CancelLeg = Literal["accepted", "observed", "cleaned"]
"""A cancel's way: request to durable intent; intent to the run's actor; actor to terminal event."""
Transport = Literal["sse", "websocket"]
Refusal = Literal["process_limit", "tenant_limit", "draining", "store_unavailable", "idempotency_conflict"]
"""Why no run was created for a request that was well-formed and allowed."""

_CANCEL_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_STORE_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


def share_as(worker: int) -> None:
    """Be the process of this worker, the only one. Call it before the first `Metrics`."""
    values.ValueClass = MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]


def forget_gauges(folder: str, worker: int) -> None:
    """The worker's process is dead: nothing runs there and nothing is open. What it has counted stays."""
    Path(folder, f"gauge_{_GAUGE_MODE}_{worker}.db").unlink(missing_ok=True)


class Metrics:
    """The metrics of one replica. Methods take some microseconds; none belongs on the path of a single text delta."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.shared = SHARED_FOLDER in os.environ
        """Whether these are the metrics of several processes together."""
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []
        if not self.shared:
            ProcessCollector(registry=self.registry)
        self._active = self._gauge("runs_active", "Runs that are not finished, by phase.", "phase")
        self._ended = self._counter("runs_ended", "Runs that this replica has ended, by status.", "status")
        self._refused = self._counter(
            "creates_refused", "Requests for new runs that were refused, by reason.", "reason"
        )
        self._cancel = self._histogram("cancel_seconds", "Legs of a cancel.", _CANCEL_BUCKETS, "leg")
        self._verdicts = self._counter("verdicts", "Verdicts on runs of lost owners, by outcome.", "outcome")
        self._store = self._histogram(
            "store_operation_seconds",
            "Time of the run store's operations; blocking reads are left out.",
            _STORE_BUCKETS,
            "operation",
            "outcome",
        )
        self._streams = self._gauge("streams_open", "Open event streams.", "transport")
        self._deltas = self._counter("text_deltas", "Text deltas that models sent.")
        self._merged = self._counter("text_events", "Text events they became; the quotient is the coalescing ratio.")
        _begin(self._cancel, get_args(CancelLeg))
        _begin(self._streams, get_args(Transport))
        _begin(self._refused, get_args(Refusal))

    def announce(self, *, phases: Iterable[str], statuses: Iterable[str], outcomes: Iterable[str]) -> None:
        """Show the series of these phases, statuses of ended runs, and outcomes of verdicts before anything happens.

        A series that begins with its first event hides that event from ``increase()``. The names are those of the
        caller, which knows them; this module knows nobody.
        """
        _begin(self._active, phases)
        _begin(self._ended, statuses)
        _begin(self._verdicts, outcomes)

    def run_moved(self, old: str | None, new: str | None) -> None:
        """A run's phase has changed; None stands for before the first and behind the last."""
        if old is not None:
            self._active.labels(old).dec()
        if new is not None:
            self._active.labels(new).inc()

    def run_ended(self, status: str) -> None:
        """This replica has written the terminal event of one of its runs."""
        self._ended.labels(status).inc()

    def cancel_leg(self, leg: CancelLeg, seconds: float) -> None:
        """One leg of a cancel took so long. Clocks of replicas differ: less than nothing counts as nothing."""
        self._cancel.labels(leg).observe(max(0.0, seconds))

    def create_refused(self, reason: Refusal) -> None:
        """No run was created for a request."""
        self._refused.labels(reason).inc()

    def verdict(self, outcome: str) -> None:
        """A run of a lost owner was judged."""
        self._verdicts.labels(outcome).inc()

    def store_operation(self, operation: str, outcome: str, seconds: float) -> None:
        """An operation of the store has ended: ``ok``, ``unavailable``, ``refused`` or ``cancelled``."""
        self._store.labels(operation, outcome).observe(seconds)

    def stream_opened(self, transport: Transport) -> None:
        """A reader has come."""
        self._streams.labels(transport).inc()

    def stream_closed(self, transport: Transport) -> None:
        """A reader has gone."""
        self._streams.labels(transport).dec()

    def text(self, *, deltas: int, events: int) -> None:
        """So many deltas have become so many events."""
        self._deltas.inc(deltas)
        self._merged.inc(events)

    def watch(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """A gauge that is read when somebody asks."""
        gauge = self._gauge(name, documentation)
        if self.shared:
            self._watched.append((gauge, read))  # the others cannot read here; they see what was set
        else:
            gauge.set_function(read)

    def refresh(self) -> None:
        """Set the watched gauges, for the processes that share them."""
        for gauge, read in self._watched:
            gauge.set(read())

    def render(self) -> bytes:
        """All metrics in Prometheus's text format, of all processes that share them."""
        if not self.shared:
            return generate_latest(self.registry)
        self.refresh()
        everyone = CollectorRegistry()
        MultiProcessCollector(everyone)  # type: ignore[no-untyped-call]
        return generate_latest(everyone)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"dify_agent_{name}", documentation, labels, registry=self.registry, multiprocess_mode=_GAUGE_MODE)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"dify_agent_{name}", documentation, labels, registry=self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"dify_agent_{name}", documentation, labels, buckets=buckets, registry=self.registry)


def _begin(metric: Counter | Gauge | Histogram, values: Iterable[str]) -> None:
    for value in values:
        metric.labels(value)
