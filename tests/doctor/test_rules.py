"""Each rule, broken by hand on a real server: found as exactly that, and repaired or left exactly as it is."""

import pytest
from tests.doctor.broken import BROKEN, Break
from tests.doctor.world import DEAD, World

from dify_agent.doctor.rules import RULES

each = pytest.mark.parametrize(("rule", "breaking", "repaired"), BROKEN.values(), ids=BROKEN)


def test_every_rule_is_broken_somewhere() -> None:
    assert {rule for rule, _, _ in BROKEN.values()} == set(RULES)
    assert {rule for rule, _, repaired in BROKEN.values() if repaired} == {
        rule.id for rule in RULES.values() if rule.repair is not None
    }


async def test_a_healthy_store_has_no_findings(world: World) -> None:
    result = await world.look()
    assert result.findings == []
    assert result.counts.suspicions == 0
    assert (result.counts.runs, result.counts.owners, result.counts.claims) == (len(world.healthy), 1, 1)


async def test_an_empty_store_has_no_findings(world: World) -> None:
    for key in world.all_keys():
        world.witness.delete(key)
    assert (await world.look()).findings == []


@each
async def test_a_broken_rule_is_found_as_exactly_that(world: World, rule: str, breaking: Break, repaired: bool) -> None:
    subject = await breaking(world)
    before = world.values()
    found = (await world.look()).findings
    assert {(item.rule.id, item.subject) for item in found} == {(rule, subject)}
    assert any(item.repairable for item in found) == repaired
    assert world.values() == before


@each
async def test_a_repair_leaves_the_rest_as_it_is(world: World, rule: str, breaking: Break, repaired: bool) -> None:
    subject = await breaking(world)
    # The owner's keys too, unless the repair is in them.
    touched = (subject, f"{{{DEAD.id}}}", "{doctor}", f"{world.prefix}:owners") if repaired else ()
    before = world.values(*touched)
    found, mended = await world.repair()
    assert world.values(*touched) == before
    if repaired:
        assert mended == found
        assert (await world.look()).findings == []
    else:
        assert mended == []
        assert {item.place for item in (await world.look()).findings} == {item.place for item in found}


async def test_many_faults_at_once(world: World) -> None:
    """Findings do not hide each other; left out are the ways that share owner keys with another way."""
    sharing = {
        "no owner for long",
        "an owner nobody knows, without its set",
        "an inbox of another type",
        "a lease without TTL",
        "a list that lives too long",
        "a replica that keeps runs for shorter",
    }
    broken = [(rule, breaking) for name, (rule, breaking, _) in BROKEN.items() if name not in sharing]
    subjects = {(rule, await breaking(world)) for rule, breaking in broken}
    assert {(item.rule.id, item.subject) for item in (await world.look()).findings} == subjects
