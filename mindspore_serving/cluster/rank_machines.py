"""Placement of the ranks of a model on several machines.  Decisions only, no I/O.

The ranks of a stage stay on one machine; the ranks of a model of a single stage are divided.  Each
machine gets as many, as far as its slots allow.  After a loss, fewer machines will do, and fewer
stages where too few slots are left.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mindspore_serving.cluster.base import Needs
from mindspore_serving.cluster.nodes import Machine, cost_of


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Machines and their numbers of ranks, in the order of the ranks; `num_stages` in all."""

    machines: tuple[tuple[Machine, int], ...]
    num_stages: int


def choose_machines(needs: Needs, machines: Iterable[Machine], now: float) -> RankPlan | None:
    """Return the machines for the ranks of a model; None if too few are free at `now`."""
    is_divided = needs.num_stages == 1
    unit = 1 if is_divided else needs.slots // needs.num_stages
    num_units = needs.slots // unit
    num_machines = min(needs.machines, num_units)
    share = -(-num_units // num_machines)
    known = list(machines)
    rooms = {machine: _room(machine, unit, num_units, needs) for machine in known}
    free = sorted(
        (machine for machine in known if rooms[machine]),
        key=lambda machine: (rooms[machine] < share, *cost_of(machine, needs, now)),
    )
    chosen = sorted(free[:num_machines], key=known.index)  # the master's machine first
    if len(chosen) < (1 if needs.takes_fewer else num_machines):
        return None
    counts = dict.fromkeys(chosen, 0)
    for _ in range(num_units):
        growing = [machine for machine in chosen if counts[machine] < rooms[machine]]
        if not growing:
            break
        counts[min(growing, key=counts.__getitem__)] += 1
    placed = sum(counts.values())
    if placed < num_units and (is_divided or not needs.takes_fewer):
        return None
    used = tuple((machine, count * unit) for machine, count in counts.items() if count)
    return RankPlan(used, 1 if is_divided else placed)


def why_too_few(needs: Needs, machines: Iterable[Machine]) -> str:
    """Return a message that says why the ranks cannot be placed now."""
    unit = 1 if needs.num_stages == 1 else needs.slots // needs.num_stages
    problems = [
        f"{machine.name or 'this machine'}: {problem}"
        for machine in machines
        if (problem := machine.problem(replace(needs, slots=unit)))
    ]
    text = f"; not on {'; '.join(problems)}" if problems else ""
    return f"its {needs.slots} ranks need free slots on {needs.machines} machines{text}"


def _room(machine: Machine, unit: int, limit: int, needs: Needs) -> int:
    """Return how many times `unit` ranks the machine can run now, at most `limit`."""
    if machine.problem(replace(needs, slots=unit)):
        return 0
    free = machine.num_free
    return limit if free is None else min(limit, free // unit)
