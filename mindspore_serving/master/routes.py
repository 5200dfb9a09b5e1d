"""Routes of requests without a version: the traffic rule of each servable, and its counts.

It decides by the registry's versions, and sends nothing.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from mindspore_serving.core import traffic
from mindspore_serving.core.traffic import TrafficRule


@dataclass(slots=True)
class ShadowCounts:
    """Counts of the copies that a version got, by the result of the comparison."""

    equal: int = 0
    different: int = 0
    failed: int = 0
    skipped: int = 0  # also those whose first answer was an error, or whose client has left


@dataclass(slots=True, eq=False)
class TrafficRoute:
    """Traffic of a servable, by its current rule."""

    name: str
    rule: TrafficRule
    shadow_counts: dict[int, ShadowCounts] = field(default_factory=dict)
    num_shadows: dict[int, int] = field(default_factory=dict)  # copies in flight, by version
    _turns: Iterator[int] = field(default_factory=count)
    _shadow_turns: Iterator[int] = field(default_factory=count)

    def choose(self, key: str, ready: Collection[int], loaded: Collection[int]) -> int:
        """Return the version of a request that sticks by `key`, "" for none; 0 for the newest.

        Versions that are not `ready` have no part, unless none is; likewise if none is `loaded`.
        """
        weights = traffic.available(self.rule.weights, ready, loaded)
        if not weights:
            return 0
        if key:
            return traffic.choose_by_key(weights, self.name, key)
        return traffic.choose_by_turn(weights, next(self._turns))

    def choose_shadows(self, version: int) -> list[int]:
        """Return the versions that get a copy of a request to `version`."""
        point = traffic.spread(next(self._shadow_turns)) * 100
        shares = self.rule.shadows.items()
        return [shadow for shadow, percent in shares if point < percent and shadow != version]

    def counts_of(self, version: int) -> ShadowCounts:
        """Return the counts of the copies that `version` gets."""
        return self.shadow_counts.setdefault(version, ShadowCounts())

    def describe(self, version: int) -> dict[str, Any]:
        """Return the part of `version` in the traffic, for its status; empty if it has none."""
        rule = self.rule
        row: dict[str, Any] = {}
        if version in rule.weights:
            row["weight"] = rule.weights[version]
        if rule.sticky:
            row["sticky"] = rule.sticky
        if version in rule.shadows or version in self.shadow_counts:
            counts = asdict(self.counts_of(version))
            row["shadow"] = {"percent": rule.shadows.get(version, 0), **counts}
        return {"traffic": row} if row else {}
