"""An upper bound of what checking a value against a JSON Schema costs, known before the check.

The validator cannot be interrupted and holds the interpreter lock, so a check that would take long must not begin.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from dify_agent.protocol.extent import Extent
from dify_agent.protocol.json_values import MAX_VALUE_DEPTH
from dify_agent.protocol.schema_size import TOO_LARGE, count_values
from dify_agent.protocol.schema_walk import DATA_KEYWORDS, References, Schema, resource_of, schemas_in

COST_LIMIT: Final = 2_500_000
"""Of one check. The unit is 125 ns, which no single comparison was measured to exceed: 0.3 s."""
STEP_LIMIT: Final = 200_000
"""Of working out a schema's costs: a fifth of a second."""

_IN_PLACE: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
)
"""Keywords whose schemas see the same value; of all others with schemas they see what is in it."""
_IDLE: Final = frozenset(
    {"$defs", "definitions", "title", "description", "default", "example", "examples", "$comment", "$schema", "$id"}
)
"""Keywords that check nothing."""
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_UNEVALUATED_FACTOR: Final = 3
"""Such a keyword checks what stands beside it again; one inside another multiplies (measured: 2.6)."""
_WEIGHTS: Final = {"multipleOf": 20, "contentMediaType": 10, "contentEncoding": 10}
"""In units, where it is not one for each JSON value of the keyword."""
_CHOICES: Final = frozenset({"anyOf", "oneOf"})

UNEVALUATED_CYCLE: Final = "'unevaluatedProperties' and 'unevaluatedItems' are not supported in a schema with a cycle"


class Weight(NamedTuple):
    """What a schema costs by what it looks at."""

    values: int = 0
    """For each value."""
    trees: int = 0
    """For each value and each one within."""
    text: int = 0
    """For each character of a string."""
    names: int = 0
    """For each character of a key."""


_NOTHING: Final = Weight()
Profile = list[Weight]
"""Weights by how far within the value the values are that they apply to."""


@dataclass(slots=True)
class SchemaCost:
    """The costs of one schema, for any value."""

    patterns: Mapping[str, int]
    """Cost of each pattern per character."""
    profile: Profile = field(default_factory=list)
    everywhere: Weight = _NOTHING
    """Set instead of the profile if the schema has a cycle: then each part may apply to each value, but only once,
    because the validator keeps the answers of what references lead to."""
    choices: Profile = field(default_factory=list)
    """The costliest ``anyOf`` or ``oneOf``: all errors of its branches are listed to report one."""
    branches: int = 0
    """Of all choices."""
    cyclic: bool = False

    def of_check(self, extent: Extent) -> int:
        """The cost of one check, in units."""
        return sum(_product(weight, extent, depth) for depth, weight in self._weights(extent))

    def of_one_error(self, extent: Extent) -> int:
        """How many errors may be listed to find the first, beside the cost of a check."""
        if self.cyclic:
            growth = self.branches**extent.depth if self.branches else 1
            return growth * extent.values
        widest = max(level.values for level in extent.levels)
        inner = sum(weight.values for weight in self.choices[1 : extent.depth])
        return (self.choices[0].values if self.choices else 0) + widest * inner

    def _weights(self, extent: Extent) -> Iterable[tuple[int, Weight]]:
        if self.cyclic:
            return [(depth, self.everywhere) for depth in range(extent.depth)]
        return enumerate(self.profile[: extent.depth])


def schema_cost(document: Schema, patterns: Mapping[str, int]) -> SchemaCost:
    """Work out the costs of a schema whose size has been checked. Does not recurse.

    Raises:
        ValueError: they would take too long to work out, or have no bound.
    """
    working = _Working(References(document), SchemaCost(patterns))
    pending = [working.profile(document, document)]
    answer: Profile | None = None
    while pending:
        try:
            inner = next(pending[-1]) if answer is None else pending[-1].send(answer)
        except StopIteration as done:
            pending.pop()
            answer = done.value
        else:
            pending.append(working.profile(*inner))
            answer = None
    assert answer is not None
    return working.finished(answer)


def _product(weight: Weight, extent: Extent, depth: int) -> int:
    level = extent.levels[depth]
    within = sum(inner.values for inner in extent.levels[depth:]) if weight.trees else 0
    return weight.values * level.weight + weight.trees * within + weight.text * level.text + weight.names * level.names


class _Working:
    def __init__(self, references: References, cost: SchemaCost) -> None:
        self._references = references
        self._cost = cost
        self._profiles: dict[tuple[int, int], Profile | None] = {}
        """None while it is worked out."""
        self._steps = 0
        self._unevaluated = False

    def finished(self, profile: Profile) -> SchemaCost:
        if self._cost.cyclic and self._unevaluated:
            raise ValueError(UNEVALUATED_CYCLE)
        self._cost.profile = profile
        return self._cost

    def profile(self, schema: Schema, resource: Schema) -> Generator[tuple[Schema, Schema], Profile, Profile]:
        """Yields each schema whose profile it needs, with its resource; returns its own."""
        resource = resource_of(schema, resource)
        key = (id(schema), id(resource))
        if key in self._profiles:
            return self._known(key)
        self._profiles[key] = None
        own = self._own_weight(schema)
        self._cost.everywhere = _sum(self._cost.everywhere, own)
        same: Profile = []
        for target in self._references.targets(schema, resource):
            same = self._added(same, (yield target))
        inner: Profile = []
        for keyword, value in schema.items():
            children = list(_children(keyword, value))
            profiles: list[Profile] = []
            for child in children:
                profiles.append((yield child, resource))
            if keyword in _IN_PLACE:
                same = self._joined(keyword, same, profiles)
            elif keyword == "propertyNames":
                own, inner = self._of_names(own, inner, profiles)
            elif keyword not in _IDLE:
                inner = self._added(inner, self._within(keyword, profiles))
        if not _UNEVALUATED.isdisjoint(schema):
            self._unevaluated = True
            same = [Weight(*(part * _UNEVALUATED_FACTOR for part in weight)) for weight in same]
            inner = self._added(inner, same[:1])
        result = self._added(self._added([own], same), [Weight(), *inner])[:MAX_VALUE_DEPTH]
        self._profiles[key] = result
        return result

    def _known(self, key: tuple[int, int]) -> Profile:
        known = self._profiles[key]
        if known is None:
            self._cost.cyclic = True
            return []
        return known

    def _own_weight(self, schema: Schema) -> Weight:
        values = 1
        for keyword, value in schema.items():
            if keyword not in _IDLE:
                values += _WEIGHTS.get(keyword, 0) + _own_values(keyword, value)
        pattern = schema.get("pattern")
        named = schema.get("patternProperties")
        costs = self._cost.patterns
        return Weight(
            values,
            trees=int(schema.get("uniqueItems") is True),
            text=costs.get(pattern, 0) if isinstance(pattern, str) else 0,
            names=sum(costs.get(name, 0) for name in named) if isinstance(named, Mapping) else 0,
        )

    def _joined(self, keyword: str, same: Profile, profiles: list[Profile]) -> Profile:
        total: Profile = []
        for profile in profiles:
            total = self._added(total, profile)
        if keyword in _CHOICES:
            self._cost.choices = _merged(self._cost.choices, total)
            self._cost.branches += len(profiles)
        return self._added(same, total)

    def _of_names(self, own: Weight, inner: Profile, profiles: list[Profile]) -> tuple[Weight, Profile]:
        for profile in profiles:
            names = profile[0] if profile else _NOTHING
            own = own._replace(names=own.names + names.text)
            inner = self._added(inner, [Weight(names.values)])
        return own, inner

    def _within(self, keyword: str, profiles: list[Profile]) -> Profile:
        result: Profile = []
        for profile in profiles:
            if keyword in ("properties", "prefixItems"):  # each value within is seen by one of them
                self._count(profile)
                result = _merged(result, profile)
            else:
                result = self._added(result, profile)
        return result

    def _added(self, left: Profile, right: Profile) -> Profile:
        self._count(right)
        if not left or not right:
            return left or right
        return [_sum(one, other) for one, other in zip_longest(left, right, fillvalue=_NOTHING)]

    def _count(self, profile: Profile) -> None:
        self._steps += len(profile)
        if self._steps > STEP_LIMIT:
            raise ValueError(TOO_LARGE)


def _sum(one: Weight, other: Weight) -> Weight:
    return Weight(one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])


def _merged(left: Profile, right: Profile) -> Profile:
    """At each depth the larger weights."""
    return [Weight(*map(max, one, other)) for one, other in zip_longest(left, right, fillvalue=_NOTHING)]


def _children(keyword: str, value: Any) -> Iterator[Schema]:
    if keyword in DATA_KEYWORDS:
        return
    if keyword in ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"):
        if isinstance(value, Mapping):
            for named in value.values():
                yield from schemas_in(named)
    else:
        yield from schemas_in(value)


def _own_values(keyword: str, value: Any) -> int:
    if keyword in DATA_KEYWORDS:
        return count_values(value)
    if isinstance(value, list):
        return sum(not isinstance(item, Mapping) for item in value)
    if keyword in ("properties", "patternProperties", "dependentRequired", "dependentSchemas", "dependencies"):
        named = value.values() if isinstance(value, Mapping) else ()
        return sum(1 + (len(item) if isinstance(item, list) else 0) for item in named)
    return 1
