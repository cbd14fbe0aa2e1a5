import pytest
import trio
from coredis import exceptions as coredis_errors

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.faults import translate


@pytest.mark.parametrize(
    "error",
    [
        coredis_errors.ConnectionError("lost"),
        coredis_errors.BusyLoadingError("Redis is loading the dataset in memory"),
        coredis_errors.ReadOnlyError("You can't write against a read only replica."),
        coredis_errors.ClusterDownError("The cluster is down"),
        coredis_errors.AuthenticationFailureError("invalid username-password pair or user is disabled."),
        coredis_errors.ResponseError(
            "OOM command not allowed when used memory > 'maxmemory'. script: on @user_script:1."
        ),
        coredis_errors.ResponseError("BUSY Redis is busy running a script."),
        coredis_errors.ResponseError("MISCONF Errors writing to disk"),
        coredis_errors.ResponseError("MASTERDOWN Link with MASTER is down"),
        coredis_errors.ResponseError("NOREPLICAS Not enough good replicas to write."),
        OSError(111, "Connection refused"),
        TimeoutError("timed out"),
        trio.TooSlowError(),
        ExceptionGroup("two addresses", [OSError("a"), ExceptionGroup("", [ConnectionRefusedError("b")])]),
    ],
)
def test_what_may_pass_is_unavailable(error):
    translated = translate(error)
    assert isinstance(translated, StoreUnavailableError)
    assert 0 < len(translated.cause) <= 200


@pytest.mark.parametrize(
    "error",
    [
        coredis_errors.ResponseError("ERR wrong number of arguments for 'xadd' command"),
        coredis_errors.WrongTypeError("Operation against a key holding the wrong kind of value"),
        coredis_errors.ResponseError("OOMPH is no code"),
        TypeError("a mistake"),
        ExceptionGroup("mixed", [OSError("a"), TypeError("b")]),
        StoreUnavailableError("already"),
    ],
)
def test_everything_else_stays_what_it_is(error):
    assert translate(error) is error
