"""Placement of workers on machines.  Decisions only, no I/O.

Workers of a servable are spread: each goes to the machine with the fewest workers of the servable,
and among those to the one with the fewest workers overall.  Ties go to the master's machine, then
to nodes in the order in which they joined.  A machine on which a worker of the servable has failed
soon after its start is a last resort: the servable, or a library, may be missing there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mindspore_serving.cluster.base import Needs


@dataclass(slots=True, eq=False)
class Machine:
    """Resources of a machine, and the workers that run there.

    Args:
        name: "" for the master's machine.
        slots: slots for its workers; None for any number.
        device_type: "none": workers detect it.
        device_ids: empty: a worker may have any.
        workers: requirements of each worker, with the device that it got here.
        avoided: until when (seconds of the loop's clock) the machine is avoided, by servable.
    """

    name: str
    slots: int | None = None
    device_type: str = "none"
    device_ids: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    is_leaving: bool = False
    workers: dict[object, Needs] = field(default_factory=dict)
    avoided: dict[str, float] = field(default_factory=dict)

    def free_device(self, needs: Needs) -> int | None:
        """Return a device for a worker that needs one, preferably `needs.device_id`."""
        if needs.device_id is None or not self.device_ids:
            return needs.device_id
        taken = {worker.device_id for worker in self.workers.values()}
        free = [device for device in self.device_ids if device not in taken]
        return needs.device_id if needs.device_id in free else next(iter(free), None)

    def problem(self, needs: Needs) -> str:
        """Return why the machine cannot run a worker with these needs now; "" if it can."""
        if needs.is_local and self.name:
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

    @property
    def num_free(self) -> int | None:
        """Number of free slots; None for any number."""
        if self.slots is None:
            return None
        return self.slots - sum(worker.slots for worker in self.workers.values())

    def _shortage(self, needs: Needs) -> str:
        """Return which slots are missing; "" if there are enough."""
        if self.slots is None:
            return ""
        free = self.num_free or 0
        if needs.slots <= free:
            return ""
        if not self.slots:
            return "it has no slots"
        if needs.slots == 1:
            return f"its {self.slots} slots are taken"
        return f"{free} of its {self.slots} slots are free, and {needs.slots} ranks need one each"

    def count(self, servable: str) -> int:
        """Return the number of workers of a servable."""
        return sum(worker.servable == servable for worker in self.workers.values())


def choose(needs: Needs, machines: Iterable[Machine], now: float) -> Machine | None:
    """Return the machine for a worker; None if none is free at `now` (seconds)."""
    free = (machine for machine in machines if not machine.problem(needs))
    return min(free, key=lambda machine: cost_of(machine, needs, now), default=None)


def cost_of(machine: Machine, needs: Needs, now: float) -> tuple[bool, int, int]:
    """Return by what machines are compared: the lowest gets the worker."""
    is_avoided = machine.avoided.get(needs.servable, now) > now
    return is_avoided, machine.count(needs.servable), len(machine.workers)


def is_too_large(needs: Needs, machines: Iterable[Machine]) -> bool:
    """Return whether a worker needs more slots than any machine has, not counting those with 0."""
    offered = [machine.slots for machine in machines if machine.slots != 0]
    return bool(offered) and all(slots is not None and slots < needs.slots for slots in offered)


def why_none(needs: Needs, machines: Iterable[Machine]) -> str:
    """Return a message that says why no machine can run the worker now."""
    problems = [
        f"{machine.name or 'this machine'}: {machine.problem(needs)}" for machine in machines
    ]
    return f"no machine can run it now ({'; '.join(problems)})"
