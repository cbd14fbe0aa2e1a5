"""The end of a response under quart-trio (style 3.2), against a server that does what hypercorn does."""

import trio
from tests.unit.http.fakes import FakeRun, FakeService, make_app


async def serve_one(app, *, leave_after=None):
    """Run one request; hypercorn says ``http.disconnect`` from within the last ``send``, then goes on."""
    gone, steps = trio.Event(), []
    messages = [{"type": "http.request", "body": b"", "more_body": False}]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/runs/R" if leave_after is None else "/runs/R/events/sse",
        "raw_path": b"",
        "query_string": b"",
        "headers": [(b"host", b"x")],
        "root_path": "",
    }

    async def receive():
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        steps.append(message["type"])
        if message.get("more_body") is False or steps[-1] == leave_after:
            gone.set()
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            steps.append("ended by the server")

    await app(scope, receive, send)
    return steps


async def test_the_disconnect_after_the_last_message_cancels_nothing():
    steps = await serve_one(make_app(FakeService(R=FakeRun())))
    assert steps == ["http.response.start", "http.response.body", "ended by the server"]


async def test_a_disconnect_before_it_cancels_the_request():
    service = FakeService(R=FakeRun())
    steps = await serve_one(make_app(service), leave_after="http.response.start")
    assert steps == ["http.response.start"]
    assert service.runs["R"].status == "running"
