"""Naive forms of what sessions need: questions and answers in the loop, and the layers that ask and that owe output."""

from tests.oracle.patches import Patch, one

HUMAN = "dify_agent.layers.ask_human"
OUTPUT = "dify_agent.layers.output"
PROTOCOL = "dify_agent.protocol"

_IN_ORDER = "        await self._in_order(results)\n"
_OUTSIDE = "        if self.answers is None:\n            await self._outside()\n"
_NOT_GIVEN = "            if results is not None and call.tool_call_id not in results:\n"
_REFUSE_PROMPT = "        if last.tool_calls:\n            raise UserError(texts.PROMPT_WHILE_PENDING)\n"
_TAKES_ANYTHING = "    tool.function_schema = replace("

RESUMED: dict[str, tuple[Patch, ...]] = {
    "externals_before_functions": (
        Patch("round", _IN_ORDER, _OUTSIDE + _IN_ORDER),
        Patch("round", f"        self._revoke()\n{_OUTSIDE}", "        self._revoke()\n"),
    ),
    "only_the_first_external_deferred": one("round", "for call in outside:", "for call in outside[:1]:"),
    "retried_function_stops_the_deferral": one(
        "round", "if self.final is None and (self", "if self.final is None and not self._function_retried and (self"
    ),
    "deferred_batch_not_stored": one(
        "run", "    if parts:\n", "    if parts and isinstance(final.value, str | dict):\n"
    ),
    "stored_calls_executed_again": one(
        "round",
        _NOT_GIVEN,
        _NOT_GIVEN.replace("results:", 'results and self.toolbox.kind(call.tool_name) != "function":'),
    ),
    "stored_calls_have_to_be_given_again": one(
        "history", "for call_id in _answered_ids(answered):", "for call_id in ():"
    ),
    "stored_results_overridden": one(
        "history",
        "            raise UserError(texts.result_overridden(call_id))\n",
        "            continue\n",
    ),
    "falsy_answers_dropped": one(
        "history",
        "dict(given.to_tool_call_results())",
        "{key: value for key, value in given.to_tool_call_results().items() if given.calls.get(key)}",
    ),
    "falsy_answers_replaced": one(
        "calls",
        "return Ready(call, None, Answered(*returned(call, result)))",
        'return Ready(call, None, Answered(*returned(call, getattr(result, "return_value", result) or "no answer")))',
    ),
    "foreign_results_ignored": one(
        "round",
        "if not set(eligible) <= self.answers.results.keys() <= every:",
        "if not set(eligible) <= self.answers.results.keys():",
    ),
    "missing_results_ignored": one(
        "round",
        "if not set(eligible) <= self.answers.results.keys() <= every:",
        "if not self.answers.results.keys() <= every:",
    ),
    "prompt_before_the_results": one(
        "run", "parts.append(UserPromptPart(prompt))", "parts.insert(0, UserPromptPart(prompt))"
    ),
    "prompt_given_with_results_dropped": one("run", "if answers is not None and prompt is not None:", "if False:"),
    "prompt_accepted_while_pending": one("history", _REFUSE_PROMPT, ""),
    "pending_closed_before_the_results": one(
        "history",
        "repaired(request.history, repair_last_response=False)",
        "repaired(request.history, repair_last_response=request.deferred_results is not None)",
    ),
    "answered_tail_not_looked_at": one("history", "        answered = message\n", "        pass\n"),
}

QUESTIONS: dict[str, tuple[Patch, ...]] = {
    "question_limits_not_checked": one("tool", "        args_validator=check,\n", "", HUMAN),
    "question_arguments_not_checked": one("tool", _TAKES_ANYTHING, "    replace(", HUMAN),
    "question_executed_in_the_run": one("tool", "    tool.prepare = _leave_to_the_outside\n", "", HUMAN),
    "question_not_sequential": one("tool", "        sequential=True,\n", "", HUMAN),
    "question_strict_by_default": one("tool", "    tool.strict = False\n", "", HUMAN),
    "question_violation_ends_the_run": one("tool", "raise ModelRetry(str(violation)) from violation", "raise", HUMAN),
    "question_without_a_default_action": one("policy", "args.actions or [default_action()]", "args.actions", HUMAN),
    "question_limits_in_another_order": one(
        "policy",
        "next(_violations(args, actions, config), None)",
        "[None, *_violations(args, actions, config)][-1]",
        HUMAN,
    ),
    "question_not_expanded": one(
        "layer", 'model_dump(mode="json")', 'model_dump(mode="json", exclude_unset=True)', HUMAN
    ),
    "two_questions_passed_on": one("layer", "if len(requests.calls) != 1:", "if not requests.calls:", HUMAN),
}

CONTRACTS: dict[str, tuple[Patch, ...]] = {
    "output_checked_against_the_shown_schema": one(
        "contract", "output_validator(config.json_schema, exposed)", "output_validator(exposed, exposed)", OUTPUT
    ),
    "output_not_checked": one("check", "if not valid:", "if False:", OUTPUT),
    "output_errors_in_schema_order": one(
        "check",
        "min(self._schema.errors(value), key=_position)",
        "next(iter(self._schema.errors(value)))",
        OUTPUT,
    ),
    "output_paths_compared_as_text": one(
        "check", "[(isinstance(step, str), step) for", "[(True, str(step)) for", OUTPUT
    ),
    "output_references_shown": one(
        "contract", "exposed = expose(config.json_schema)", "exposed = dict(config.json_schema)", OUTPUT
    ),
    "output_own_description_wins": one("contract", "config.description or own", "own or config.description", OUTPUT),
    "output_description_left_in_the_schema": one(
        "contract", 'exposed.pop("description", None)', 'exposed.get("description")', OUTPUT
    ),
    "output_strict_lost": one("contract", "        strict=config.strict,\n", "", OUTPUT),
    "output_messages_as_templates": one(
        "check",
        'PydanticCustomError(ERROR_TYPE, "{text}", {"text": text})',
        'PydanticCustomError(ERROR_TYPE, text, {"text": "?"})',
        OUTPUT,
    ),
    "output_not_finite_accepted": one("extent", "if self._finite and not math.isfinite(value):", "if False:", PROTOCOL),
}

SESSIONS: dict[str, tuple[Patch, ...]] = {**RESUMED, **QUESTIONS, **CONTRACTS}
