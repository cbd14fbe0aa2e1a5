"""The story of the run lifecycle over HTTP: one workflow run with three agent runs and a cleanup run.

An agent asks a human and its run ends; a second run brings the answer and ends with its final output; another agent
runs; at the end of the workflow a cleanup run deletes the first agent's layers, and its snapshot is of no use any more.
"""

from typing import Any

import pytest
from tests.server.bodies import calling, layer
from tests.server.clients import Api

DECISION = {"type": "object", "properties": {"deploy": {"type": "boolean"}}, "required": ["deploy"]}
CONTEXT = {"tenant_id": "t1", "agent_mode": "workflow_run", "invoke_from": "service-api"}
QUESTION = {"question": "Deploy 1.2 now?", "fields": [{"type": "paragraph", "name": "note", "label": "Note"}]}
ANSWER = {"status": "submitted", "action": {"id": "submit", "label": "Submit"}, "values": {"note": "ok"}}


def agent(*turns: dict[str, Any], ask: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    layers = [
        layer("prompt", "plain.prompt", prefix="Ask before deploying.", user="Deploy 1.2"),
        layer("history", "pydantic_ai.history"),
        layer("ask_human", "dify.ask_human", **(ask or {"max_fields": 2})),
        layer("output", "dify.output", json_schema=DECISION, description="What was decided."),
        layer("execution_context", "dify.execution_context", **CONTEXT),
        layer("llm", "scripted.model", turns=list(turns)),
    ]
    return {"composition": {"layers": layers}, **members}


def without_model(body: dict[str, Any], **members: Any) -> dict[str, Any]:
    layers = [each for each in body["composition"]["layers"] if each["name"] != "llm"]
    return {"composition": {"layers": layers}, **members}


def data_of(events: list[dict[str, Any]], kind: str = "run_succeeded") -> dict[str, Any]:
    assert events[-1]["type"] == kind, events[-1]
    return dict(events[-1]["data"])


def states(data: dict[str, Any]) -> set[str]:
    return {each["lifecycle_state"] for each in data["session_snapshot"]["layers"]}


async def test_a_workflow_from_its_first_question_to_its_cleanup(api: Api) -> None:
    asking = agent(calling("ask_human", **QUESTION))
    first = data_of(await api.run(asking))
    assert "output" not in first
    call = first["deferred_tool_call"]
    assert call["tool_name"] == "ask_human"
    assert call["args"] == {
        "title": None,
        "question": "Deploy 1.2 now?",
        "markdown": None,
        "fields": [
            {
                "name": "note",
                "label": "Note",
                "required": False,
                "type": "paragraph",
                "placeholder": None,
                "default": None,
            }
        ],
        "actions": [{"id": "submit", "label": "Submit", "style": "primary"}],
        "urgency": "normal",
    }
    assert call["metadata"] == {"layer_type": "dify.ask_human", "tool_name": "ask_human", "schema_version": 1}
    assert states(first) == {"suspended"}

    answered = agent(
        calling("final_output", deploy=True),
        session_snapshot=first["session_snapshot"],
        deferred_tool_results={"calls": {call["tool_call_id"]: ANSWER}},
    )
    events = await api.run(answered)
    second = data_of(events)
    assert second["output"] == {"deploy": True}
    results = [each["data"] for each in events if each["data"].get("event_kind") == "function_tool_result"]
    assert [result["part"]["content"] for result in results] == [ANSWER]
    assert states(second) == {"suspended"}

    other = data_of(await api.run(agent(calling("final_output", deploy=False))))
    assert other["output"] == {"deploy": False}

    cleanup = without_model(asking, session_snapshot=second["session_snapshot"], on_exit={"default": "delete"})
    deleted = data_of(await api.run(cleanup))
    assert deleted["output"] is None
    assert "usage" not in deleted
    assert states(deleted) == {"closed"}

    again = data_of(await api.run({**cleanup, "session_snapshot": deleted["session_snapshot"]}), "run_failed")
    assert again["error"] == "Layer 'prompt' is closed; CLOSED snapshots cannot be entered."
    assert again["session_snapshot"] is None


async def test_a_resumed_run_may_ask_again(api: Api) -> None:
    first = data_of(await api.run(agent(calling("ask_human", question="First?"))))
    results = {"calls": {first["deferred_tool_call"]["tool_call_id"]: None}}
    second = data_of(
        await api.run(
            agent(
                calling("ask_human", question="Second?"),
                session_snapshot=first["session_snapshot"],
                deferred_tool_results=results,
            )
        )
    )
    assert second["deferred_tool_call"]["args"]["question"] == "Second?"
    assert second["deferred_tool_call"]["tool_call_id"] != first["deferred_tool_call"]["tool_call_id"]


@pytest.mark.parametrize("answer", [None, "", [], {}, 0, False, "yes", {"status": "timeout"}])
async def test_any_answer_reaches_the_model_unchanged(api: Api, answer: Any) -> None:
    first = data_of(await api.run(agent(calling("ask_human", question="Which?"))))
    call_id = first["deferred_tool_call"]["tool_call_id"]
    resumed = agent(
        calling("final_output", deploy=True),
        session_snapshot=first["session_snapshot"],
        deferred_tool_results={"calls": {call_id: answer}},
    )
    events = await api.run(resumed)
    assert data_of(events)["output"] == {"deploy": True}
    results = [each["data"]["part"] for each in events if each["data"].get("event_kind") == "function_tool_result"]
    assert [(part["tool_call_id"], part["content"]) for part in results] == [(call_id, answer)]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], "Tool call results need to be provided for all deferred tool calls."),
        (["other"], "Tool call results need to be provided for all deferred tool calls."),
        (["call_1_1", "other"], "Tool call results need to be provided for all deferred tool calls."),
    ],
)
async def test_results_must_be_for_exactly_the_pending_call(api: Api, ids: list[str], text: str) -> None:
    """And a wrong try costs nothing: the snapshot before it still resumes."""
    first = data_of(await api.run(agent(calling("ask_human", question="Which?"))))
    snapshot, call_id = first["session_snapshot"], first["deferred_tool_call"]["tool_call_id"]
    assert call_id == "call_1_1"
    done = calling("final_output", deploy=True)
    wrong = agent(done, session_snapshot=snapshot, deferred_tool_results={"calls": dict.fromkeys(ids, "yes")})
    failed = data_of(await api.run(wrong), "run_failed")
    assert failed["error"].startswith(text)
    right = agent(done, session_snapshot=snapshot, deferred_tool_results={"calls": {call_id: "yes"}})
    assert data_of(await api.run(right))["output"] == {"deploy": True}
    # The failed run's own snapshot goes on as well, with a new prompt.
    onward = agent(done, session_snapshot=failed["session_snapshot"])
    assert data_of(await api.run(onward))["output"] == {"deploy": True}


async def test_a_prompt_instead_of_the_answer_is_refused(api: Api) -> None:
    first = data_of(await api.run(agent(calling("ask_human", question="Which?"))))
    failed = data_of(await api.run(agent({"text": "x"}, session_snapshot=first["session_snapshot"])), "run_failed")
    assert failed["error"].startswith(
        "Cannot provide a new user prompt when the message history contains unprocessed tool calls."
    )


async def test_two_questions_at_once_fail_and_the_session_goes_on(api: Api) -> None:
    """R19: the pending calls of the failed run are closed as interrupted."""
    question = {"name": "ask_human", "args": {"question": "Which?"}}
    failed = data_of(await api.run(agent({"tool_calls": [question, question]})), "run_failed")
    assert failed["error"] == "ask_human supports exactly one deferred call per run in this version; got 2."
    onward = agent(calling("final_output", deploy=True), session_snapshot=failed["session_snapshot"])
    assert data_of(await api.run(onward))["output"] == {"deploy": True}


async def test_a_question_without_history_fails(api: Api) -> None:
    body = agent(calling("ask_human", question="Which?"))
    layers = [each for each in body["composition"]["layers"] if each["name"] != "history"]
    failed = data_of(await api.run({"composition": {"layers": layers}}), "run_failed")
    assert failed["error"] == (
        "ask_human deferred tool requests require a 'history' layer so the pending tool call can be resumed."
    )


async def test_a_disabled_question_tool_is_not_offered(api: Api) -> None:
    asking = calling("ask_human", question="Which?")
    events = await api.run(agent(asking, calling("final_output", deploy=True), ask={"enabled": False}))
    results = [each["data"]["part"] for each in events if each["data"].get("event_kind") == "function_tool_result"]
    assert results[0]["content"].startswith("Unknown tool name: 'ask_human'. Available tools: 'final_output'")
    assert data_of(events)["output"] == {"deploy": True}


async def test_output_that_does_not_fit_is_asked_for_once_more(api: Api) -> None:
    wrong, right = calling("final_output", deploy="maybe"), calling("final_output", deploy=True)
    events = await api.run(agent(wrong, right))
    assert data_of(events)["output"] == {"deploy": True}
    answers = [each["data"]["part"] for each in events if each["data"].get("event_kind") == "output_tool_result"]
    assert answers[0]["part_kind"] == "retry-prompt"
    assert answers[0]["content"][0]["type"] == "json_schema_validation"
    assert answers[0]["content"][0]["msg"].startswith("Output does not match JSON Schema: $.deploy: ")
    assert data_of(await api.run(agent(wrong, wrong)), "run_failed")["error"] == ("Exceeded maximum output retries (1)")


@pytest.mark.parametrize("args", ["", None, {}, '{"deploy": tr', '{"deploy": true}{"deploy": true}', "[1]", "7"])
async def test_arguments_of_any_form_end_in_an_answer(api: Api, args: Any) -> None:
    """R20: never a crash; what is no object with the right members is asked for again."""
    odd = {"tool_calls": [{"name": "final_output", "args": args}]}
    events = await api.run(agent(odd, calling("final_output", deploy=True)))
    calls = [each["data"]["args_valid"] for each in events if each["data"].get("event_kind") == "output_tool_call"]
    assert calls == [False, True]
    assert data_of(events)["output"] == {"deploy": True}
