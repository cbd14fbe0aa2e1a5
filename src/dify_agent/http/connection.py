"""One request or WebSocket between hypercorn and the app: quart-trio's connections with the fixes this server needs.

Why not the original (``quart_trio.asgi``, measured with quart-trio 0.12 and hypercorn 0.18): the last message of a
body makes hypercorn deliver ``http.disconnect``, on which the original cancels the request's nursery, and with it
hypercorn's own steps that end the response. Idle connections then never time out, and each of them makes a shutdown
wait the whole grace. Here a disconnect after the last message cancels nothing.
"""

import re
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, WebsocketScope
from quart.utils import encode_headers
from quart.wrappers import Request, Websocket
from quart.wrappers.response import DataBody, Response
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection

if TYPE_CHECKING:
    from dify_agent.http.app import RunApp

_ORIGIN: Final = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


class HttpConnection(TrioASGIHTTPConnection):
    """Runs the app's handler and sends its response; owns the nursery of the request.

    A client that leaves cancels that nursery: the handler and the body. Neither owns a run.
    """

    def __init__(self, app: "RunApp", scope: HTTPScope) -> None:
        scope["path"] = _without_origin(scope["path"])
        super().__init__(app, scope)
        self._run_app = app
        self._finished = False

    async def handle_messages(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable
    ) -> None:
        """Feed the request's body until the client is gone; cancel the request if it had not been answered in full."""
        await super(TrioASGIHTTPConnection, self).handle_messages(request, receive)
        if not self._finished:
            nursery.cancel_scope.cancel(reason="the client has gone")

    async def handle_request(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        """Run the handler and send what it answers. Time limits are those of the socket (``http.transport``)."""
        response = await self.app.handle_request(request)
        await self._send_response(send, response)
        nursery.cancel_scope.cancel(reason="the response is complete")

    async def _send_response(self, send: ASGISendCallable, response: Any) -> None:
        headers = encode_headers(response.headers)
        if self._run_app.draining:
            headers = [header for header in headers if header[0] != b"connection"]
            headers.append((b"connection", b"close"))
        await _send(send, type="http.response.start", status=response.status_code, headers=headers)
        body = cast(Response, response).response
        if isinstance(body, DataBody):
            last = body.data
        else:
            last = b""
            async with body as chunks:
                async for chunk in chunks:
                    await _send(send, type="http.response.body", body=chunk, more_body=True)
        self._finished = True
        await _send(send, type="http.response.body", body=last, more_body=False)


class WebSocketConnection(TrioASGIWebsocketConnection):
    """Runs the app's WebSocket handler; owns the nursery in which it and the reader of its messages live.

    A client that leaves cancels that nursery. Nothing is queued for the handler: a client that sends faster than it is
    answered is read no further.
    """

    def __init__(self, app: "RunApp", scope: WebsocketScope) -> None:
        scope["path"] = _without_origin(scope["path"])
        super().__init__(app, scope)
        self.send_channel, self.receive_channel = trio.open_memory_channel[bytes | str](0)

    async def handle_messages(  # type: ignore[override]
        self, nursery: trio.Nursery, receive: ASGIReceiveCallable
    ) -> None:
        """Hand text messages to the handler until the client is gone."""
        while (event := cast(Any, await receive()))["type"] != "websocket.disconnect":
            if event["type"] == "websocket.receive":
                await self.send_channel.send(event["text"])
        nursery.cancel_scope.cancel(reason="the client has gone")

    async def handle_websocket(  # type: ignore[override]
        self, nursery: trio.Nursery, websocket: Websocket, send: ASGISendCallable
    ) -> None:
        """Run the handler. What it answers instead of accepting becomes the answer to the handshake."""
        response: Any = await self.app.handle_websocket(websocket)
        if response is not None and not self._accepted:
            headers = [*encode_headers(response.headers), (b"connection", b"close")]
            await _send(send, type="websocket.http.response.start", status=response.status_code, headers=headers)
            body = cast(Response, response).response
            data = body.data if isinstance(body, DataBody) else b""
            await _send(send, type="websocket.http.response.body", body=data, more_body=False)
        nursery.cancel_scope.cancel(reason="the handler has ended")

    async def send_data(self, send: ASGISendCallable, data: Any) -> None:
        """Pass on a tuple of texts, which leave in one write (``http.websocket_stream``)."""
        await _send(send, type="websocket.send", texts=data)


def _without_origin(path: str) -> str:
    """The path of a request target, which may be absolute (RFC 9112, 3.2.2)."""
    return _ORIGIN.sub("", path, count=1) or "/"


async def _send(send: ASGISendCallable, **message: Any) -> None:
    await send(cast(Any, message))
