"""Several processes: on one prefix each serves every run, on two prefixes neither knows the other's."""

from collections.abc import Iterator

import pytest
import trio
from tests.server.bodies import HANG, STREAM_THEN_HANG, run_of, text_run, tool_run
from tests.server.clients import Api, open_api, open_stream, stream_of
from tests.server.harness import Server, StoreServer, serving

SILENT = run_of(HANG)
STREAMING = run_of(STREAM_THEN_HANG)


@pytest.fixture(scope="module")
def other(store: StoreServer, server: Server) -> Iterator[Server]:
    """A second replica on the prefix of the first. It admits no scripted layers: each decides what it runs itself."""
    with serving(store.url, prefix=server.prefix, scripted_layers=0) as started:
        yield started


async def test_every_replica_shows_every_run(server, other, api: Api):
    run_id = await api.create(tool_run(result=1))
    events = await api.finished(run_id)
    async with open_api(other) as remote:
        assert await remote.finished(run_id) == events
        assert await remote.status(run_id) == await api.status(run_id)
    assert await stream_of(other, run_id) == await stream_of(server, run_id)


@pytest.mark.slow
async def test_a_remote_run_is_followed_live(server, other, api: Api):
    run_id = await api.create(run_of({"chunks": 10, "delay_ms": 40}))
    async with open_stream(other, run_id) as stream:
        first = await stream.frame()
        assert first is not None
        assert (await api.status(run_id))["status"] == "running"
        frames = [first, *await stream.rest()]
    assert frames == await stream_of(server, run_id)
    assert frames[-1].event == "run_succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("body", [SILENT, STREAMING, tool_run(hang=True)])
async def test_a_cancel_at_another_replica_stops_the_run_within_a_second(server, other, api: Api, body):
    """C6; several times, because the sweep of every two seconds could pass for a bell now and then."""
    async with open_api(other) as remote:
        for _ in range(3):
            run_id = await api.create(body)
            seen = "run_started" if body is SILENT else "part_delta" if body is STREAMING else "function_tool_call"
            await api.events_until(run_id, seen)
            async with open_stream(server, run_id) as local, open_stream(other, run_id) as tail:
                with trio.fail_after(1):
                    await remote.cancel(run_id, reason="workflow_aborted", message="from next door")
                    frames = await local.rest()
                assert await tail.rest() == frames
            data = frames[-1].json["data"]
            assert frames[-1].event == "run_cancelled"
            assert (data["reason"], data["message"]) == ("workflow_aborted", "from next door")
            assert [each["name"] for each in data["session_snapshot"]["layers"]][-1] == "llm"
            # A model that said nothing has told no usage either.
            assert data.get("usage", {}).get("prompt_tokens") == (None if body is SILENT else 10)
            assert (await remote.status(run_id))["status"] == "cancelled"


async def test_the_first_of_two_cancels_counts_whoever_took_it(other, api: Api):
    """C2."""
    async with open_api(other) as remote:
        run_id = await api.create(run_of(HANG))
        await remote.cancel(run_id, reason="first", message="m1")
        await api.cancel(run_id, reason="second", message="m2")
        data = (await remote.finished(run_id))[-1]["data"]
    assert (data["reason"], data["message"]) == ("first", "m1")


async def test_concurrent_cancels_agree_on_one_reason(other, api: Api):
    async with open_api(other) as remote:
        run_id = await api.create(run_of(HANG))
        async with trio.open_nursery() as nursery:
            for number in range(10):
                for client in (api, remote):
                    nursery.start_soon(lambda client=client, n=number: client.cancel(run_id, reason=f"r{n}"))
        events = await api.finished(run_id)
    assert [event["type"] for event in events].count("run_cancelled") == 1
    assert events[-1]["data"]["reason"].startswith("r")


async def test_a_finished_run_cannot_be_cancelled_next_door(other, api: Api):
    run_id = await api.create(text_run())
    await api.finished(run_id)
    async with open_api(other) as remote:
        assert (await remote.try_cancel(run_id)).status_code == 409


async def test_scripted_layers_are_not_admitted_by_default(other):
    async with open_api(other) as remote:
        data = (await remote.run(text_run()))[-1]["data"]
    assert data["error"] == "\"Layer type id 'scripted.model' is not registered.\""


@pytest.mark.slow
async def test_two_prefixes_on_one_store_do_not_see_each_other(store: StoreServer, server, api: Api):
    with serving(store.url) as stranger:
        async with open_api(stranger) as abroad:
            run_id = await api.create(run_of(HANG))
            foreign = await abroad.create(text_run())
            for path in ("", "/events", "/events/sse"):
                response = await abroad.client.get(f"/runs/{run_id}{path}")
                assert (response.status_code, response.json()) == (404, {"detail": "run not found"})
            assert (await abroad.try_cancel(run_id)).status_code == 404
            assert (await abroad.finished(foreign))[-1]["type"] == "run_succeeded"
            assert (await api.client.get(f"/runs/{foreign}")).status_code == 404
            assert (await api.status(run_id))["status"] == "running"
            await api.cancel(run_id)
            await api.finished(run_id)
        owned = [key.decode() for key in store.witness.scan_iter(match=f"{server.prefix}:*", count=1000)]
        strange = [key.decode() for key in store.witness.scan_iter(match=f"{stranger.prefix}:*", count=1000)]
    assert any(run_id in key for key in owned)
    assert not any(foreign in key for key in owned)
    assert any(foreign in key for key in strange)
    assert not any(run_id in key for key in strange)
