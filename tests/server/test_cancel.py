"""A cancellation stops the work where it is, and an acknowledged one is how the run ends."""

from collections.abc import Iterator

import pytest
import trio
from tests.server.bodies import HANG, STREAM_THEN_HANG, calling, run_of, text_run, tool_run, upstream_model
from tests.server.clients import TERMINALS, Api, stream_of
from tests.server.harness import Server, StoreServer, serving
from tests.server.upstream import SILENT, STREAMING, Endpoint, endpoint


@pytest.fixture(scope="module")
def provider() -> Iterator[Endpoint]:
    with endpoint() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(store: StoreServer, provider: Endpoint) -> Iterator[Server]:
    with serving(store.url, model_base_urls=provider.base_url, env={"OPENAI_API_KEY": "none"}) as started:
        yield started


async def assert_cancelled(server: Server, api: Api, run_id: str) -> dict:
    """Both transports tell the same cancelled run; its terminal event's data."""
    frames = await stream_of(server, run_id)
    events = await api.finished(run_id)
    assert [frame.json for frame in frames] == events
    assert [event["type"] for event in events if event["type"] in TERMINALS] == ["run_cancelled"]
    record = await api.status(run_id)
    data = events[-1]["data"]
    assert record["status"] == "cancelled"
    assert record["error"] == (data["message"] or data["reason"])
    assert record["error_type"] is None
    return dict(data)


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (run_of(HANG), "run_started"),
        (run_of(STREAM_THEN_HANG), "part_delta"),
        (run_of({"chunks": 100_000, "delay_ms": 1}), "part_delta"),
        (tool_run(hang=True), "function_tool_call"),
        (
            run_of(
                {"tool_calls": [{"name": "quick"}, {"name": "stuck"}]},
                tools=({"name": "quick"}, {"name": "stuck", "hang": True}),
            ),
            "function_tool_result",
        ),
    ],
    ids=["silent-model", "streaming-model", "busy-model", "tool", "second-tool"],
)
async def test_cancel_stops_the_work(server, api: Api, body, seen):
    run_id = await api.create(body)
    await api.events_until(run_id, seen)
    with trio.fail_after(5):
        await api.cancel(run_id, reason="workflow_aborted", message="Outer workflow stopped")
        data = await assert_cancelled(server, api, run_id)
    assert (data["reason"], data["message"]) == ("workflow_aborted", "Outer workflow stopped")
    states = {layer["name"]: layer["lifecycle_state"] for layer in data["session_snapshot"]["layers"]}
    assert set(states.values()) == {"suspended"}


@pytest.mark.parametrize(("how", "seen"), [(SILENT, "run_started"), (STREAMING, "part_delta")])
async def test_the_provider_sees_the_connection_drop(server, api: Api, provider: Endpoint, how, seen):
    async with provider.answering(how) as upstream:
        run_id = await api.create(run_of(model=upstream_model(provider.base_url)))
        with trio.fail_after(20):
            await upstream.asked.wait()
        await api.events_until(run_id, seen)
        assert not upstream.dropped.is_set()
        with trio.fail_after(5):
            await api.cancel(run_id, message="no more")
            await upstream.dropped.wait()
        data = await assert_cancelled(server, api, run_id)
        assert (data["reason"], data["message"]) == (None, "no more")
        assert len(upstream.requests) == 1


async def test_a_provider_that_answers_ends_as_success(api: Api, provider: Endpoint):
    """The fake speaks the protocol: without this the tests above could pass on any failure."""
    async with provider.answering("Hello from upstream.") as upstream:
        events = await api.run(run_of(model=upstream_model(provider.base_url), prompt="Ping?"))
    assert events[-1]["data"]["output"] == "Hello from upstream."
    assert upstream.requests[0]["messages"] == [{"role": "user", "content": "Ping?"}]


async def test_a_base_url_that_the_operator_does_not_list_is_not_called(api: Api):
    events = await api.run(run_of(model=upstream_model("http://127.0.0.1:9/v1")))
    assert [event["type"] for event in events] == ["run_started", "run_failed"]
    assert "DIFY_AGENT_MODEL_BASE_URLS" in events[-1]["data"]["error"]


@pytest.mark.slow
@pytest.mark.parametrize("delay_ms", [0, 1, 5, 20])
@pytest.mark.parametrize("work_ms", [0, 5, 20])
async def test_an_acknowledged_cancel_never_ends_as_success(api: Api, delay_ms, work_ms):
    """The run ends at about the time of the cancel; whichever is accepted first is how it ends."""
    outcomes = []
    limit = trio.CapacityLimiter(8)

    async def once() -> None:
        async with limit:
            run_id = await api.create(run_of({"text": "done", "delay_ms": work_ms}))
            await trio.sleep(delay_ms / 1000)  # the subject of the test, not a synchronisation
            response = await api.try_cancel(run_id)
            events = await api.finished(run_id)
        terminal = "run_cancelled" if response.status_code == 200 else "run_succeeded"
        outcomes.append((response.status_code, events[-1]["type"]))
        assert response.status_code in (200, 409)
        assert [event["type"] for event in events if event["type"] in TERMINALS] == [terminal]
        assert (await api.status(run_id))["status"] == terminal.removeprefix("run_")

    async with trio.open_nursery() as nursery:
        for _ in range(25):
            nursery.start_soon(once)
    if work_ms >= 20 and delay_ms == 0:
        assert (200, "run_cancelled") in outcomes


async def test_repeating_a_cancel_changes_nothing(server, api: Api):
    """C2 and protocol 1.5: the first reason stays, before and after the run has ended."""
    run_id = await api.create(run_of(HANG))
    await api.cancel(run_id, reason="first")
    await api.cancel(run_id, reason="second", message="other")
    data = await assert_cancelled(server, api, run_id)
    assert (data["reason"], data["message"]) == ("first", None)
    before = await api.finished(run_id)
    await api.cancel(run_id, reason="third")
    assert await api.finished(run_id) == before


@pytest.mark.parametrize(
    ("body", "status"), [(text_run(), "succeeded"), (run_of({"error": "no"}), "failed")], ids=["succeeded", "failed"]
)
async def test_cancelling_a_finished_run_is_refused(api: Api, body, status):
    run_id = await api.create(body)
    before = await api.finished(run_id)
    response = await api.try_cancel(run_id, reason="late")
    assert response.status_code == 409
    assert response.json() == {"detail": f"run already finished with status '{status}'"}
    assert await api.finished(run_id) == before
    assert (await api.status(run_id))["status"] == status


async def test_cancel_needs_a_run_and_a_body(api: Api):
    response = await api.try_cancel("00000000-0000-4000-8000-000000000000")
    assert (response.status_code, response.json()) == (404, {"detail": "run not found"})
    run_id = await api.create(run_of(HANG))
    for content in (b"", b"null", b'{"reason": 1}', b'{"why": "x"}'):
        response = await api.client.post(
            f"/runs/{run_id}/cancel", content=content, headers={"content-type": "application/json"}
        )
        assert response.status_code == 422, content
    assert (await api.status(run_id))["status"] == "running"
    await api.cancel(run_id)
    assert (await api.finished(run_id))[-1]["data"]["message"] is None


async def test_nothing_is_published_after_the_cancellation_took_effect(api: Api):
    """A tool that was stopped leaves no result behind, and the history of the snapshot resumes with a new prompt."""
    first = run_of(calling("stuck"), tools=({"name": "stuck", "hang": True},), prompt="First question.")
    run_id = await api.create(first)
    await api.events_until(run_id, "function_tool_call")
    await api.cancel(run_id)
    events = await api.finished(run_id)
    assert "function_tool_result" not in [event["data"].get("event_kind") for event in events]

    second = run_of({"text": "Back again."}, tools=({"name": "stuck", "hang": True},), prompt="Second question.")
    resumed = await api.run({**second, "session_snapshot": events[-1]["data"]["session_snapshot"]})
    assert resumed[-1]["type"] == "run_succeeded", resumed[-1]
    prompts = user_prompts(resumed[-1])
    assert prompts == ["First question.", "Second question."]


async def test_text_that_was_cut_off_is_in_the_snapshot_that_a_cancel_leaves(api: Api):
    run_id = await api.create(run_of(STREAM_THEN_HANG, prompt="First question."))
    await api.events_until(run_id, "part_delta")
    await api.cancel(run_id)
    snapshot = (await api.finished(run_id))[-1]["data"]["session_snapshot"]
    messages = next(layer for layer in snapshot["layers"] if layer["name"] == "history")["runtime_state"]["messages"]
    assert [message["kind"] for message in messages] == ["request", "response"]
    assert messages[1]["state"] == "interrupted"
    assert messages[1]["parts"][0]["content"] == "half half half "

    resumed = await api.run({**run_of({"text": "ok"}, prompt="Second question."), "session_snapshot": snapshot})
    assert resumed[-1]["type"] == "run_succeeded", resumed[-1]
    assert user_prompts(resumed[-1]) == ["First question.", "Second question."]


def user_prompts(terminal: dict) -> list[str]:
    """The user prompts in the history of a terminal event's snapshot."""
    layers = {layer["name"]: layer for layer in terminal["data"]["session_snapshot"]["layers"]}
    messages = layers["history"]["runtime_state"]["messages"]
    parts = [part for message in messages for part in message["parts"]]
    return [part["content"] for part in parts if part["part_kind"] == "user-prompt"]
