"""The model's traces on a real Valkey: the scripts do what the model says they do."""

import random
import uuid

import pytest
from tests.model.beginnings import EVERYTHING, explorations
from tests.model.explore import Exploration, explore, moves
from tests.model.replay import RETENTION_SECONDS, Replay
from tests.model.state import Bounds, Label, Rules, State
from tests.model.world import FAULTS

from dify_agent.store.keys import Keys
from dify_agent.store.redis import open_redis_store

WALKS, STEPS, SEED = 60, 60, 20_261_130


@pytest.fixture
async def new_replay(store_server):
    prefix = f"t-{uuid.uuid4().hex}"
    async with open_redis_store(store_server.url, prefix=prefix, retention_seconds=RETENTION_SECONDS) as store:
        yield lambda: Replay(store, store_server.witness, Keys(prefix))
    for key in store_server.witness.scan_iter(match=f"{prefix}*", count=1000):
        store_server.witness.delete(key)


def start_of(found: Exploration, number: int) -> State:
    while (cause := found.cause[number]) is not None:
        number = cause[0]
    return found.states[number]


def shortest_traces(found: Exploration, known: set[Label]) -> list[tuple[State, list[tuple[Label, State]]]]:
    """One for each label that is not known; those that are the beginning of another are left out."""
    traces = {}
    for label, (source, after) in found.edges.items():
        if label not in known:
            steps = [*found.trace(source), (label, after)]
            traces[(start_of(found, source), *(step for step, _ in steps))] = steps
    inner = {key[:length] for key in traces for length in range(1, len(key))}
    return [(key[0], steps) for key, steps in traces.items() if key not in inner]


@pytest.mark.slow
async def test_the_shortest_way_to_every_transition_and_outcome(new_replay):
    """That there are no others, the exhaustive explorations show (`test_exploration.FULL`)."""
    played: set[Label] = set()
    for found in explorations():
        for start, steps in shortest_traces(found, played):
            await new_replay().play(start, steps)
            played |= {label for label, _ in steps}
    print(f"{len(played)} transitions and outcomes")
    assert len(played) == 169


@pytest.mark.full
async def test_random_walks(new_replay):
    chance = random.Random(SEED)
    for _ in range(WALKS):
        start = State(ghost=chance.random() < 0.3)
        await new_replay().play(start, walk(start, chance))


def walk(state: State, chance: random.Random) -> list[tuple[Label, State]]:
    """Steps that change something; faults are rarer than the rest, or most walks would be short."""
    steps = []
    for _ in range(STEPS):
        offered = [(label, after) for label, after in moves(state, Rules(), EVERYTHING) if after != state]
        if not offered:
            break
        weights = [0.2 if label.action in FAULTS or label.network != "ok" else 1 for label, _ in offered]
        label, state = chance.choices(offered, weights)[0]
        steps.append((label, state))
    return steps


async def test_a_wrong_model_is_noticed(new_replay):
    """The comparison can fail: this model's append does not look at the log's top."""
    wrong = explore(Rules(append_any_top=True), Bounds(events=1), most=2000)
    doubled = next(number for number, state in enumerate(wrong.states) if state.log == (1, 1))
    with pytest.raises(AssertionError, match="append"):
        await new_replay().play(wrong.states[0], wrong.trace(doubled))
