import pytest
from redis.crc import key_slot as witness

from dify_agent.store.executor import Call, Command
from dify_agent.store.keys import Keys
from dify_agent.store.lua import LOOK
from dify_agent.store.slots import SLOTS, SlotMap, key_slot


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),  # the specification's own vector
        ("foo", 12182),
        ("bar", 5061),
        ("{user1000}.following", 3443),
        ("{user1000}.followers", 3443),
        ("foo{{bar}}zap", 4015),  # the tag is "{bar"
        ("foo{bar}{zap}", 5061),
        ("", 0),
    ],
)
def test_known_slots(key, slot):
    assert key_slot(key) == slot == witness(key.encode())


@pytest.mark.parametrize("key", ["foo{}{bar}", "{", "}", "{}", "a}b{c}", "a{b", "ü{é}", "{a}{b}", "x" * 1000])
def test_an_independent_implementation_agrees(key):
    assert key_slot(key) == witness(key.encode())


@pytest.mark.parametrize("run", ["0c8f", "", "}", "{", "a}b", "}}", "{}", "a:b", "ü", "\ud800", "\x00"])
def test_the_keys_of_any_id_lie_in_one_slot(run):
    assert len({key_slot(key) for key in Keys("p").run(run)}) == 1


def test_ids_that_would_have_no_tag_keep_apart_from_real_ones():
    keys = Keys("p")
    assert len({keys.record(run) for run in ("", "}", "}}", "-x", "x", "{")}) == 6


def test_the_key_of_an_item():
    assert Command(b"GET", ("k",)).key == "k"
    assert Command(b"XREAD", ("COUNT", 1, "BLOCK", 5, "STREAMS", "k", "0-0")).key == "k"
    assert Command(b"PING").key is None
    assert Call(LOOK, ("a", "b"), ()).key == "a"


def test_a_map_is_read_and_corrected():
    answer = [
        [0, 99, [b"10.0.0.1", 7000, b"id", {}], [b"10.0.0.2", 7001, b"replica", {}]],
        [200, SLOTS - 1, [b"", 7002, b"id"]],  # does not know its own host
    ]
    slots = SlotMap.parse(answer, ("seed", 1))
    assert [slots.owner(slot) for slot in (0, 99, 100, 200, SLOTS - 1)] == [
        ("10.0.0.1", 7000),
        ("10.0.0.1", 7000),
        None,
        ("seed", 7002),
        ("seed", 7002),
    ]
    assert slots.nodes == {("10.0.0.1", 7000), ("seed", 7002)}
    slots.move(100, ("10.0.0.3", 7003))
    assert slots.owner(100) == ("10.0.0.3", 7003)
    assert ("10.0.0.3", 7003) in slots.nodes


@pytest.mark.parametrize("host", [None, b"", b"?"])
def test_a_node_without_a_host_is_where_it_was_asked(host):
    assert SlotMap.parse([[0, 1, [host, 7000, b"id"]]], ("seed", 1)).owner(0) == ("seed", 7000)


@pytest.mark.parametrize(
    "answer", [b"OK", 7, None, [[1]], [[0, 1, None]], [[0, 1, [b"\xff", 1]]], [["a", 1, [b"h", 1]]]]
)
def test_what_is_no_map_is_refused(answer):
    with pytest.raises(ValueError, match="the slots of the cluster cannot be read"):
        SlotMap.parse(answer, ("seed", 1))
