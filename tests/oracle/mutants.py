"""Naive forms of the loop and of its layers, as patches of their source: each is a mistake that was nearly made once.

A mutant that no hand-written scenario notices shows a hole in the scenarios. One whose text is not found any more has
to be written anew for the loop's new source.
"""

from tests.oracle.mutants_sessions import SESSIONS
from tests.oracle.patches import Patch, apply_patches
from tests.oracle.patches import one as _one


def apply(name: str) -> None:
    """Load the modules that mutant ``name`` changes, changed. Call before anything imports them.

    Raises:
        LookupError: the text to replace is not there exactly once.
    """
    apply_patches(MUTANTS[name])


_SELF_MADE_EVENT = """        self._finish(index, outcome)
        if isinstance(outcome, Answered):
            await self._run.emit(FunctionToolResultEvent(outcome.part, content=outcome.extra))

    def _finish"""
_REPORTED = """                if isinstance(outcome, Answered):
                    await self._run.emit(FunctionToolResultEvent(outcome.part, content=outcome.extra))
"""
_CHECK_LIMIT = "    run.limits.check_before_request(run.capture.usage)\n"

_STARTED_AT_ONCE = "                nursery.start_soon(self._call, index)\n"
_WAIT_FOR_SLOT = "                await self._slots.acquire()\n"
_STARTED_IN_ORDER = f"{_WAIT_FOR_SLOT}{_STARTED_AT_ONCE}                await trio.lowlevel.checkpoint()\n"

CONCURRENCY: dict[str, tuple[Patch, ...]] = {
    "tool_raises_inside_the_nursery": (
        Patch("batch", "raise first_error(group) from None", "raise"),
        Patch("batch", "                    failure = error\n", "                    raise\n"),
    ),
    "all_tools_started_at_once": _one("batch", _STARTED_IN_ORDER, _STARTED_AT_ONCE),
    "tool_tasks_emit": (
        Patch("batch", "        self._finish(index, outcome)\n\n    def _finish", _SELF_MADE_EVENT),
        Patch("batch", _REPORTED, ""),
    ),
    "results_of_cancelled_siblings_forgotten": _one(
        "batch",
        "    finally:\n        _store(outcomes, parts)\n",
        "    finally:\n        pass\n    _store(outcomes, parts)\n",
    ),
    "sequential_ignored": _one("batch", "ready.entry.definition.sequential", "False"),
    "results_in_completion_order": _one("batch", "for index in sorted(outcomes):", "for index in outcomes:"),
    "ready_results_in_completion_order": _one(
        "batch",
        "sorted(self._unreported)",
        "sorted(self._unreported, reverse=True)",
    ),
    "user_content_after_each_result": _one(
        "batch", "extras.append(UserPromptPart(outcome.extra))", "parts.append(UserPromptPart(outcome.extra))"
    ),
}

CAPTURE: dict[str, tuple[Patch, ...]] = {
    "no_interrupted_request": _one("run", "        run.append_results(parts, interrupted=True)\n", ""),
    "no_empty_interrupted_request": _one(
        "run",
        "        run.append_results(parts, interrupted=True)\n",
        "        if parts:\n            run.append_results(parts, interrupted=True)\n",
    ),
    "interrupted_request_only_for_errors": _one("run", "    except BaseException:\n", "    except Exception:\n"),
    "interrupted_response_only_for_errors": _one("turn", "    except BaseException:\n", "    except Exception:\n"),
    "no_response_when_nothing_arrived": _one(
        "turn",
        "        run.append_response(_interrupted(stream))\n",
        "        if stream and stream.get().parts:\n            run.append_response(_interrupted(stream))\n",
    ),
    "cut_response_stays_incomplete": _one("turn", 'replace(stream.get(), state="interrupted")', "stream.get()"),
    "usage_of_cut_responses_dropped": _one(
        "state",
        "        add_usage(usage, response.usage)\n",
        "        response.state == 'complete' and add_usage(usage, response.usage)\n",
    ),
    "failed_open_counted": _one("state", 'if response.state == "complete" or response.parts:', "if True:"),
    "limit_checked_before_the_request_is_stored": (
        Patch("turn", _CHECK_LIMIT, ""),
        Patch("turn", "    request.timestamp = now()\n", f"{_CHECK_LIMIT}    request.timestamp = now()\n"),
    ),
}

HISTORY: dict[str, tuple[Patch, ...]] = {
    "interrupted_tail_not_repaired": _one(
        "history", "    if _ends_interrupted(messages, with_prompt=request.prompt is not None):\n", "    if False:\n"
    ),
    "complete_tail_repaired": _one(
        "history",
        "    if _ends_interrupted(messages, with_prompt=request.prompt is not None):\n",
        "    if messages and request.prompt is not None:\n",
    ),
    "given_history_not_cleaned": _one(
        "history",
        "messages[:] = await repaired(request.history, repair_last_response=False)",
        "messages[:] = request.history",
    ),
    "outgoing_not_repaired": _one("turn", "    outgoing = repair_messages(messages)\n", "    outgoing = messages\n"),
    "outgoing_not_prepared": _one("turn", "model.prepare_messages(outgoing, parameters)", "outgoing"),
    "resumed_calls_said_to_be_valid": _one(
        "calls",
        "Ready(call, None, Answered(*returned(call, result)))",
        "Ready(call, True, Answered(*returned(call, result)))",
    ),
    "instructions_only_once": _one(
        "turn",
        "    request.instructions = run.instructions\n",
        "    request.instructions = run.instructions if run.step == 1 else None\n",
    ),
}

RETRIES: dict[str, tuple[Patch, ...]] = {
    "retries_counted_per_call": _one(
        "retries", "        self._failed.add(name)\n", "        self.counts[name] = used + 1\n"
    ),
    "retries_never_reset": _one("retries", " if name not in self._succeeded}", "}"),
    "retries_reset_although_also_failed": _one(
        "retries",
        "for name in self._failed})\n",
        "for name in self._failed if name not in self._succeeded})\n",
    ),
    "one_counter_for_output": _one(
        "round",
        "self.run.tool_retries.charge(call.tool_name, OUTPUT_RETRIES, error)",
        "self.run.output_retries.charge_text()",
    ),
    "text_budget_ignores_invalid_outputs": _one(
        "round", "        self.run.output_retries.used += self._invalid_outputs\n", ""
    ),
    "retry_beside_an_output_ignored": _one("round", "        self._revoke()\n", ""),
    "unknown_tool_revokes_the_output": _one("round", 'self.toolbox.kind(ready.call.tool_name) == "function"', "True"),
    "tool_failure_costs_a_retry": _one(
        "calls",
        "    except ToolFailed as error:\n        return Answered(failed(call, error))\n",
        "    except ToolFailed as error:\n        return _asked_again(run, ready, ModelRetry(error.message))\n",
    ),
    "attempts_of_one_name_shared_by_all": _one(
        "retries", "used = self.counts.get(name, 0)", "used = max(self.counts.values(), default=0)"
    ),
}

_OUTPUT_IN_ORDER = """                await self._functions(functions, results)
                functions = []
                await self._output(call)
"""
_LAST_BATCH = """                functions.append(call)
        await self._functions(functions, results)
"""
_OUTPUTS_LAST = """        for call in outputs:
            await self._output(call)
"""
_SKIP_EXTERNAL = """        for call in outside:
            if self.final is not None:
"""
_SECOND_OUTPUT = """        if self.final is not None:
            await self._answer_output"""
_DOUBLE_CALLS = "if doubles := _doubles(call.tool_call_id for call in calls):"
_DOUBLE_DEFERRED = "if doubles := _doubles(call.tool_call_id for call in (*self._approvals, *self._external)):"

ROUNDS: dict[str, tuple[Patch, ...]] = {
    "functions_gathered_before_outputs": (
        Patch("round", "        functions: list[ToolCallPart] = []\n", "        functions, outputs = [], []\n"),
        Patch("round", _OUTPUT_IN_ORDER, "                outputs.append(call)\n"),
        Patch("round", _LAST_BATCH, _LAST_BATCH + _OUTPUTS_LAST),
    ),
    "functions_skipped_after_an_output": _one(
        "round", "        if not calls:\n", "        if not calls or self.final is not None:\n"
    ),
    "externals_executed_in_place": _one(
        "round", 'elif results is not None or kind in ("function", "unknown"):', "else:"
    ),
    "external_kept_beside_an_output": _one(
        "round", _SKIP_EXTERNAL, _SKIP_EXTERNAL.replace("self.final is not None", "False")
    ),
    "duplicate_function_ids_accepted": _one("round", _DOUBLE_CALLS, "if doubles := []:"),
    "duplicate_external_ids_accepted": _one("round", _DOUBLE_DEFERRED, "if doubles := []:"),
    "result_ids_not_compared": _one(
        "round", "if not set(eligible) <= self.answers.results.keys() <= every:", "if False:"
    ),
    "second_output_wins": _one("round", _SECOND_OUTPUT, _SECOND_OUTPUT.replace("self.final is not None", "False")),
    "deferral_always_allowed": _one("round", "if not self.run.request.allow_deferred:", "if False:"),
}

ANSWERS: dict[str, tuple[Patch, ...]] = {
    "last_text_part_only": _one(
        "run",
        '"".join(part.content for part in response.parts if isinstance(part, TextPart))',
        '([""] + [part.content for part in response.parts if isinstance(part, TextPart)])[-1]',
    ),
    "blank_text_accepted": _one(
        "run",
        "    if text and run.request.output is None:\n",
        "    if run.request.output is None and any(isinstance(part, TextPart) for part in response.parts):\n",
    ),
    "text_accepted_beside_an_output_tool": _one(
        "run", "    if text and run.request.output is None:\n", "    if text:\n"
    ),
    "empty_text_given_to_the_validator": _one("toolbox", 'validate_json(args or "{}")', "validate_json(args)"),
    "null_given_to_the_validator": _one("toolbox", "validate_python(args or {})", "validate_python(args)"),
    "length_ignored": _one("run", 'if response.finish_reason == "length":', "if False:"),
    "content_filter_ignored": _one("run", 'if response.finish_reason == "content_filter":', "if False:"),
    "cut_calls_blamed_on_the_model": _one("state", 'last.finish_reason != "length"', "True"),
    "names_not_sorted": _one("texts", "map(repr, sorted(available))", "map(repr, available)"),
    "settings_of_the_model_ignored": _one(
        "state",
        "merge_model_settings(request.model.settings, request.model_settings) or None",
        "request.model_settings",
    ),
}

MUTANTS: dict[str, tuple[Patch, ...]] = {
    **CONCURRENCY,
    **CAPTURE,
    **HISTORY,
    **RETRIES,
    **ROUNDS,
    **ANSWERS,
    **SESSIONS,
}
