"""Which machine a worker runs on.  Only the decision; no I/O.

Workers of a servable are spread: each goes where the fewest of them run, and among those machines
where the fewest workers run at all.  The master's machine comes first, then the nodes as they
joined.  Where a worker of it has failed soon after its start, another is started only if there is
no other place: the servable, or a library, may be missing there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mindspore_serving.cluster.base import Needs


@dataclass(slots=True, eq=False)
class Machine:
    """What one machine offers, and what runs there."""

    name: str  # "" is the master's own
    slots: int | None = None  # that its workers may take; None for any number
    device_type: str = "none"  # "none": the workers find out
    device_ids: tuple[int, ...] = ()  # none: a worker may have any
    labels: Mapping[str, str] = field(default_factory=dict)
    is_leaving: bool = False
    workers: dict[object, Needs] = field(default_factory=dict)  # with the devices they have here
    avoided: dict[str, float] = field(default_factory=dict)  # servable -> until when, in seconds

    def free_device(self, needs: Needs) -> int | None:
        """The device for a worker that needs one: that of `needs`, if it is free."""
        if needs.device_id is None or not self.device_ids:
            return needs.device_id
        taken = {one.device_id for one in self.workers.values()}
        free = [one for one in self.device_ids if one not in taken]
        return needs.device_id if needs.device_id in free else next(iter(free), None)

    def problem(self, needs: Needs) -> str:
        """Why it cannot run such a worker now; "" if it can."""
        if needs.is_here and self.name:
            return "it is not the master's machine"
        if self.is_leaving:
            return "it is leaving"
        if problem := self._shortage(needs):
            return problem
        if needs.device_type != "none" and self.device_type not in ("none", needs.device_type):
            return f"it offers {self.device_type}, not {needs.device_type}"
        if any(self.labels.get(name) != value for name, value in needs.labels.items()):
            return "it has other labels"
        if needs.device_id is not None and self.free_device(needs) is None:
            return "its devices are taken"
        return ""

    def _shortage(self, needs: Needs) -> str:
        """Why the slots are too few; "" if there are enough."""
        if self.slots is None:
            return ""
        free = self.slots - sum(one.slots for one in self.workers.values())
        if needs.slots <= free:
            return ""
        if not self.slots:
            return "it has no slots"
        if needs.slots == 1:
            return f"its {self.slots} slots are taken"
        return f"{free} of its {self.slots} slots are free, and {needs.slots} ranks need one each"

    def count(self, servable: str) -> int:
        return sum(one.servable == servable for one in self.workers.values())


def choose(needs: Needs, machines: Iterable[Machine], now: float) -> Machine | None:
    """The machine for a worker; None if there is no place at `now` (seconds)."""

    def cost(machine: Machine) -> tuple[bool, int, int]:
        is_avoided = machine.avoided.get(needs.servable, now) > now
        return is_avoided, machine.count(needs.servable), len(machine.workers)

    return min((one for one in machines if not one.problem(needs)), key=cost, default=None)


def is_too_large(needs: Needs, machines: Iterable[Machine]) -> bool:
    """Whether such a worker takes more slots than any of the machines has that offer some."""
    most = [one.slots for one in machines if one.slots != 0]
    return bool(most) and all(slots is not None and slots < needs.slots for slots in most)


def why_none(needs: Needs, machines: Iterable[Machine]) -> str:
    """What to say when there is no place."""
    problems = [f"{one.name or 'this machine'}: {one.problem(needs)}" for one in machines]
    return f"no machine has a place for it ({'; '.join(problems)})"
