"""The fakes on a port: hypercorn's engine on Trio, by the same listener and connections as the run server."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from dify_agent.http.server import Address, serve_http
from dify_agent.http.settings import HttpSettings
from dify_agent.testing.answers import BreakableConnection
from dify_agent.testing.app import FakeApp
from dify_agent.testing.kept import STATE_BYTES
from dify_agent.testing.record import Recorder
from dify_agent.testing.script import Script

DEFAULT_KEY: Final = "fake-key"

_SETTINGS: Final = HttpSettings(
    stream_stall_seconds=600.0,  # a reader under test may pause for as long as the real services let it
    graceful_seconds=0.1,  # nobody waits for what a fake still has to say
)
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Fakes:
    """Running fakes. Made by `open_fakes`."""

    def __init__(self, app: FakeApp, address: Address, *, inner_key: str, daemon_key: str) -> None:
        self._app = app
        self.address = address
        """Host and port."""
        self.inner_key = inner_key
        self.daemon_key = daemon_key

    @property
    def url(self) -> str:
        """Where both services are. A wildcard address is named by loopback."""
        host, port = self.address
        return f"http://{_authority(_LOOPBACK.get(host, host), port)}"

    @property
    def authority(self) -> str:
        """The bound address as URLs have it."""
        return _authority(*self.address)

    @property
    def inner_api_url(self) -> str:
        """Base URL of the Dify API."""
        return self.url

    @property
    def plugin_daemon_url(self) -> str:
        """Base URL of the plugin daemon."""
        return self.url

    @property
    def environment(self) -> dict[str, str]:
        """Variables that point a run server here."""
        return {
            "DIFY_AGENT_INNER_API_URL": self.inner_api_url,
            "DIFY_AGENT_INNER_API_KEY": self.inner_key,
            "DIFY_AGENT_PLUGIN_DAEMON_URL": self.plugin_daemon_url,
            "DIFY_AGENT_PLUGIN_DAEMON_API_KEY": self.daemon_key,
        }

    @property
    def requests(self) -> Recorder:
        """What was asked so far."""
        return self._app.recorder

    @property
    def script(self) -> Script:
        """What is being played."""
        return self._app.chooser.script

    def play(self, script: Script | dict[str, Any]) -> None:
        """Answer from another script, from its beginning. Answers in progress go on as they began.

        Raises:
            ValidationError: a dictionary that is no script.
        """
        self._app.play(Script.model_validate(script))

    def reset(self) -> None:
        """Forget the requests and what callers have stored, and play the script from its beginning."""
        self._app.reset()


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


@asynccontextmanager
async def open_fakes(
    script: Script | dict[str, Any] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    inner_key: str = DEFAULT_KEY,
    daemon_key: str = DEFAULT_KEY,
    recorder: Recorder | None = None,
    state_bytes: int = STATE_BYTES,
) -> AsyncIterator[Fakes]:
    """Serve while the block runs; answers that are not finished at its end are cut.

    An exception of the block arrives as it is, not in a group.

    Args:
        script: what to answer; None streams text and lets every tool succeed.
        host: address to listen on.
        port: port to listen on, 0 for any.
        inner_key: what ``X-Inner-Api-Key`` must be.
        daemon_key: what ``X-Api-Key`` must be.
        recorder: keeps the requests; by default one with the usual bounds.
        state_bytes: bound of uploaded files and agent configs together; the oldest go first.

    Raises:
        ValidationError: a dictionary that is no script.
        OSError: the address cannot be bound.
    """
    app = FakeApp(
        Script() if script is None else Script.model_validate(script),
        inner_key=inner_key,
        daemon_key=daemon_key,
        recorder=Recorder() if recorder is None else recorder,
        state_bytes=state_bytes,
    )
    connections: set[BreakableConnection] = set()
    failure: Exception | None = None
    stop = trio.Event()
    serve = partial(
        serve_http,
        app,
        settings=_SETTINGS,
        shutdown_trigger=stop.wait,
        sockets=[_bind(host, port)],
        connection_type=partial(BreakableConnection, open_connections=connections),
    )
    async with trio.open_nursery() as nursery:
        addresses: list[Address] = await nursery.start(serve)
        try:
            yield Fakes(app, addresses[0], inner_key=inner_key, daemon_key=daemon_key)
        except Exception as error:  # noqa: BLE001  Raised again, outside of the nursery.
            failure = error
        finally:
            app.stopping = True
            stop.set()
            for connection in connections:  # a shielded write to a stalled reader would outlive a cancelled block
                connection.stop(0.0, _SETTINGS.graceful_seconds)
    if failure is not None:
        raise failure
