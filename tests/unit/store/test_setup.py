"""A server that refuses to be used, or is none: unavailable, with what to do about it, never somebody's bug."""

import ssl
from collections.abc import Awaitable, Callable

import pytest
import trio

from dify_agent.concurrency.groups import first_error
from dify_agent.errors import StoreUnavailableError
from dify_agent.store import advice
from dify_agent.store.redis import open_redis_store

HELLO = b"%3\r\n$5\r\nproto\r\n:3\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$2\r\nid\r\n:1\r\n"
WANTED_LOGIN = (
    b"-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> "
    b"<pass> option can be used to authenticate the client\r\n"
)


def speaking(*replies: bytes | None) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A server that gives these answers, one to each thing it hears; None hangs up."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            for reply in replies:
                if not await stream.receive_some(4096) or reply is None:
                    return
                await stream.send_all(reply)
            await trio.sleep_forever()

    return serve


async def failure_at(url: str, timeout: float) -> BaseException | None:
    try:
        async with open_redis_store(url, command_timeout=timeout) as store:
            await store.ping()
    except Exception as group:
        return first_error(group)
    return None


async def refusal(
    serve: Callable[[trio.SocketStream], Awaitable[None]],
    *,
    scheme: str = "redis",
    path: str = "/0",
    timeout: float = 2,
) -> StoreUnavailableError:
    """What a start meets at a server."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        error = await failure_at(f"{scheme}://me:s3cret@localhost:{port}{path}", timeout)
        nursery.cancel_scope.cancel()
    assert isinstance(error, StoreUnavailableError)
    assert str(error) == "run store is unavailable", "what callers of the API are told"
    assert not error.sent
    assert "s3cret" not in f"{error.cause} {error.advice}"
    return error


@pytest.mark.parametrize(
    ("serve", "cause", "hint"),
    [
        (speaking(WANTED_LOGIN), "HELLO must be called", advice.LOGIN),
        (speaking(b"-WRONGPASS invalid username-password pair\r\n"), "invalid username-password", advice.WRONG_LOGIN),
        (speaking(b"-ERR unknown command 'HELLO', with args\r\n"), "unknown command", "the server is too old"),
        (speaking(b"-NOPERM no permissions to run 'hello'\r\n"), "no permissions", "ACL SETUSER"),
        (speaking(b"-ERR something new\r\n"), "something new", None),
        (speaking(b"-LOADING loading the dataset\r\n"), "loading the dataset", "wait until"),
        (speaking(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "Unknown RESP data type: 'H'", advice.NO_REDIS),
        (speaking(b"\x15\x03\x03\x00\x02\r\n"), "Unknown RESP data type", advice.WANTS_TLS),
        (speaking(b"+OK\r\n"), "", None),
        (speaking(None), "Connection lost", advice.CLOSED),
        (speaking(HELLO, b"-ERR DB index is out of range\r\n"), "the database 9 does not exist there", "/0"),
        (speaking(HELLO, b"-ERR invalid DB index\r\n"), "the database 9 does not exist there", "/0"),
        (speaking(HELLO, b"-ERR SELECT is not allowed in cluster mode\r\n"), "SELECT is not allowed", "redis+cluster"),
        (speaking(HELLO, b"-NOPERM no permissions to run 'select'\r\n"), "no permissions", "ACL SETUSER"),
    ],
)  # fmt: skip
async def test_a_refused_setup(
    serve: Callable[[trio.SocketStream], Awaitable[None]], cause: str, hint: str | None
) -> None:
    error = await refusal(serve, path="/9")
    assert cause in error.cause
    assert (hint is None and error.advice is None) or (hint is not None and hint in (error.advice or ""))


async def test_tls_to_a_plain_server_never_ends() -> None:
    error = await refusal(speaking(), scheme="rediss", timeout=0.2)
    assert error.cause == "no connection within 0.2 s"
    assert error.advice == advice.NO_TLS


async def test_tls_to_a_plain_server_that_answers() -> None:
    error = await refusal(speaking(b"-ERR unknown command\r\n"), scheme="rediss")
    assert error.advice == advice.SPEAKS_NO_TLS


async def test_silence_without_tls() -> None:
    error = await refusal(speaking(), timeout=0.2)
    assert error.advice == advice.NO_SERVER


async def test_nobody_there() -> None:
    with trio.socket.socket() as closed:
        await closed.bind(("127.0.0.1", 0))
        error = await failure_at(f"redis://127.0.0.1:{closed.getsockname()[1]}/0", 2)
    assert isinstance(error, StoreUnavailableError)
    assert error.advice == advice.NO_SERVER


@pytest.mark.parametrize("scheme", ["redis+cluster", "redis+sentinel"])
async def test_the_advice_survives_where_several_are_asked(scheme: str) -> None:
    error = await refusal(
        speaking(WANTED_LOGIN), scheme=scheme, path="/main" if "sentinel" in scheme else "", timeout=2
    )
    assert error.cause.startswith("no ")
    assert error.advice == advice.LOGIN


def test_a_certificate_that_is_not_trusted_names_the_option() -> None:
    assert "ssl_ca_certs" in (advice.advice_on(ssl.SSLCertVerificationError("unable to get local issuer")) or "")
