import pytest

from dify_agent.errors import StoreUnavailableError
from dify_agent.store.redis import open_redis_store
from dify_agent.store.urls import StoreUrl, parse_store_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://localhost", StoreUrl("redis", (("localhost", 6379),))),
        ("redis://localhost:6379/0", StoreUrl("redis", (("localhost", 6379),))),
        ("redis://h:1/3", StoreUrl("redis", (("h", 1),), db=3)),
        ("redis://h/?db=4", StoreUrl("redis", (("h", 6379),), db=4)),
        ("redis://:p%40ss@h", StoreUrl("redis", (("h", 6379),), password="p@ss")),
        ("redis://u:p@[::1]:7000/1", StoreUrl("redis", (("::1", 7000),), db=1, username="u", password="p")),
        ("redis://u:a@b@h", StoreUrl("redis", (("h", 6379),), username="u", password="a@b")),
        (
            "rediss://h?ssl_cert_reqs=none&ssl_ca_certs=/ca",
            StoreUrl("rediss", (("h", 6379),), tls=(("ssl_ca_certs", "/ca"), ("ssl_cert_reqs", "none"))),
        ),
        ("unix:///run/r.sock", StoreUrl("unix", path="/run/r.sock")),
        ("unix://u:p@/run/a%20b?db=2", StoreUrl("unix", path="/run/a b", db=2, username="u", password="p")),
        ("redis+cluster://a:1,b", StoreUrl("redis+cluster", (("a", 1), ("b", 6379)))),
        (
            "redis+cluster://u:p@a,[::1]:2/",
            StoreUrl("redis+cluster", (("a", 6379), ("::1", 2)), username="u", password="p"),
        ),
        ("redis+sentinel://a,b:2/main/5", StoreUrl("redis+sentinel", (("a", 26379), ("b", 2)), db=5, master="main")),
        ("redis+sentinel://a/main", StoreUrl("redis+sentinel", (("a", 26379),), master="main")),
        (
            "rediss+cluster://a:1,b?ssl_ca_certs=/ca",
            StoreUrl("rediss+cluster", (("a", 1), ("b", 6379)), tls=(("ssl_ca_certs", "/ca"),)),
        ),
        (
            "rediss+sentinel://a,b:2/main/5?ssl_cert_reqs=none",
            StoreUrl(
                "rediss+sentinel",
                (("a", 26379), ("b", 2)),
                db=5,
                master="main",
                tls=(("ssl_cert_reqs", "none"),),
            ),
        ),
    ],
)
def test_every_form_is_parsed(text, expected):
    assert parse_store_url(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "scheme"),
        ("http://u:secret@h", "scheme"),
        ("localhost:6379", "scheme"),
        ("redis://:secret@", "host"),
        ("redis://u:secret@h:port", "port"),
        ("redis://u:secret@h:0", "port"),
        ("redis://u:secret@h:70000", "port"),
        ("redis://u:secret@h/x", "database"),
        ("redis://u:secret@h/-1", "database"),
        ("redis://u:secret@h/²", "database"),
        ("redis://u:secret@h/0/1", "too many"),
        ("redis://u:secret@a,b", "one host"),
        ("redis://u:secret@h?secret=1&ssl_ca_certs=x", "unknown option"),
        ("rediss://u:secret@h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("unix://u:secret@host/path", "unix:///"),
        ("unix:relative", "unix:///"),
        ("redis+cluster://u:secret@a,", "host"),
        ("redis+cluster://u:secret@a/1", "database 0"),
        ("redis+sentinel://u:secret@a", "master"),
        ("redis+sentinel://u:secret@a/main/0/1", "too many"),
        ("rediss+cluster://u:secret@a/1", "database 0"),
        ("rediss+sentinel://u:secret@a", "rediss+sentinel://host:port/<master>"),
        ("rediss+cluster://u:secret@a?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("redis+cluster://u:secret@a?ssl_ca_certs=x", "unknown option"),
        ("redis://u:secret@[h", ""),
    ],
)
def test_a_bad_url_is_refused_without_repeating_it(text, complaint):
    with pytest.raises(ValueError, match="DIFY_AGENT_REDIS_URL") as caught:
        parse_store_url(text)
    assert complaint in str(caught.value)
    assert "u:secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_url_is_shown_without_its_password():
    url = parse_store_url("redis+sentinel://user:secret@a,[::1]:2/main/5")
    assert str(url) == "redis+sentinel://a:26379,[::1]:2/main/5"
    assert "secret" not in repr(url)


@pytest.mark.parametrize(
    "url", ["redis+cluster://u:secret@127.0.0.1:1,127.0.0.1:2", "redis+sentinel://u:secret@127.0.0.1:1/main"]
)
async def test_where_nobody_answers_the_error_names_the_setting_and_not_the_password(url):
    async with open_redis_store(url, command_timeout=1) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.ping()
    assert "DIFY_AGENT_REDIS_URL" in caught.value.cause
    assert "127.0.0.1:1" in caught.value.cause
    assert "secret" not in f"{caught.value} {caught.value.cause}"
    assert not caught.value.sent


@pytest.mark.parametrize("options", [{"retention_seconds": 0}, {"max_length": 0}, {"prefix": "a{b}"}])
async def test_unusable_numbers_and_prefixes_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        async with open_redis_store("redis://localhost", **options):
            pass
