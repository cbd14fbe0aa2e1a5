"""The work of a run, from ``run_started`` to the last layer's exit. A child task of the run's actor.

Scopes, outer to inner: *stop* (the actor cancels it while layers are entered), *life* (opened before any layer, so
before any nursery a layer may own), *body* (the actor cancels it while the layers are active), *deadline* (the agent
loop only). When exit begins, *life* gets its shield and its deadline: from then on the stop scope outside no longer
reaches the layers' clean-up. Shielding a scope that was opened after a layer's own nursery would corrupt Trio's scope
stack; this order cannot. The body has a scope of its own because a cancellation from outside the layers would also
end the tasks in their nurseries, and with them the exit hooks that still need them.
"""

from collections.abc import Callable
from datetime import UTC, datetime

import structlog
import trio

from dify_agent.actors.agent_events import AgentEvents
from dify_agent.actors.composition import RunPlan, plan_run, withheld_types
from dify_agent.actors.conversation import Run, converse
from dify_agent.actors.environment import RunEnvironment
from dify_agent.actors.failures import describe_failure, phase_timeout
from dify_agent.actors.lifecycle import Phase
from dify_agent.actors.messages import Ending, Interrupted, Reached, RunMessage, Succeeded, WorkDone
from dify_agent.actors.run_log import RunLog
from dify_agent.concurrency.groups import must_leave
from dify_agent.events import envelope
from dify_agent.loop.port import Capture
from dify_agent.protocol.schemas import AgentRunUsage, CreateRunRequest
from dify_agent.protocol.usage import bounded_tokens

_log = structlog.get_logger()


class RunWork:
    """One run's layers and agent loop."""

    def __init__(
        self,
        run_id: str,
        request: CreateRunRequest,
        env: RunEnvironment,
        log: RunLog,
        report: Callable[[RunMessage], None],
    ) -> None:
        self._stop = trio.CancelScope()
        self._body = trio.CancelScope()
        self.events = AgentEvents(run_id, log, env.flush_timer, env.coalescing, env.metrics)
        self._run_id = run_id
        self._request = request
        self._env = env
        self._log = log
        self._report = report
        self._capture = Capture()
        self._run: Run | None = None
        self._stopped = False
        self._asked = False

    def interrupt(self, reason: str) -> None:
        """Stop the work. What the loop has buffered is dropped: a stopped run publishes no more."""
        self._stopped = True
        self.events.discard()
        scope = self._stop if self._run is None else self._body
        scope.cancel(reason=reason)

    async def run(self) -> None:
        """Do the work and report `WorkDone` at every ending; only a cancellation from outside the run leaves."""
        ending: Ending
        try:
            ending = await self._work()
        except BaseException as error:  # noqa: ASYNC103  The actor boundary: the one place that makes a failure an event.
            if must_leave(error):
                self._report(self._done(Interrupted()))
                raise
            ending = Interrupted() if self._stopped else describe_failure(error)
        self._report(self._done(ending))

    async def _work(self) -> Ending:
        self._log.offer(envelope.run_started(self._run_id, datetime.now(UTC)))
        # For the operator; the caller is told as of any type that does not exist.
        if withheld := withheld_types(self._request, self._env.providers):
            types, settings = list(withheld), ", ".join(dict.fromkeys(withheld.values()))
            _log.info("run names layer types that a setting withholds", types=types, setting=settings)
        plan = plan_run(self._request, self._env.providers)
        bounds = self._env.bounds
        ending: Ending = Interrupted()
        with self._stop:
            with trio.CancelScope() as life:
                self._stop.deadline = trio.current_time() + bounds.enter_timeout_seconds
                ending = await self._in_layers(plan, life)
        if life.cancelled_caught:
            raise phase_timeout("exit", "EXIT_TIMEOUT_SECONDS", bounds.exit_timeout_seconds)
        if self._stop.cancelled_caught and not self._stopped:
            raise phase_timeout("entry", "ENTER_TIMEOUT_SECONDS", bounds.enter_timeout_seconds)
        return ending

    async def _in_layers(self, plan: RunPlan, life: trio.CancelScope) -> Ending:
        def begin_exit() -> None:
            life.shield = True
            life.deadline = trio.current_time() + self._env.bounds.exit_timeout_seconds
            self._report(Reached(Phase.EXITING))

        entering = plan.compositor.enter(configs=plan.configs, session_snapshot=plan.snapshot, on_unwind=begin_exit)
        async with entering as run:
            self._stop.deadline = float("inf")
            self._run = run
            self._report(Reached(Phase.RUNNING))
            for name, intent in plan.intents.items():
                run.slots[name].exit_intent = intent
            ending: Ending = Interrupted()
            with self._body:
                ending = await self._in_body(plan, run)
        return ending

    async def _in_body(self, plan: RunPlan, run: Run) -> Ending:
        if plan.lifecycle_only:
            return Succeeded(output=None)
        ending = await converse(
            run, self._request, self._env, run_id=self._run_id, events=self.events, capture=self._capture
        )
        self._asked = ending.deferred is not None  # noted now: the layers' exit may replace this ending by its own
        return ending

    def _done(self, ending: Ending) -> WorkDone:
        snapshot = None if self._run is None else self._run.session_snapshot
        return WorkDone(ending, snapshot, self._usage(), self._asked)

    def _usage(self) -> AgentRunUsage | None:
        report = self._capture.report
        if report is not None:
            return report.total_usage()
        usage = self._capture.usage
        if not usage.requests:
            return None
        # Of whatever a provider's SDK takes for numbers; the run's ending must be one that can be stored.
        given, taken = bounded_tokens(usage.input_tokens), bounded_tokens(usage.output_tokens)
        return AgentRunUsage(prompt_tokens=given, completion_tokens=taken, total_tokens=bounded_tokens(given + taken))
