"""Chains: stages of a method that are methods of other servables, and follow each other.

The master makes their calls one after the other, without messages to this worker in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.ipc.messages import CallStep


@dataclass(frozen=True, slots=True)
class Chain:
    """Calls of `num_stages` stages, from that at `position` on.

    `inputs` are the slots that are sent, `returns` the numbers of the values that come back, and
    `outputs` has for each slot of the stages its index there; None if nothing uses it later.
    """

    position: int
    num_stages: int
    inputs: Sequence[int]
    steps: list[CallStep]
    returns: list[int]
    outputs: Sequence[int | None]

    def outcome(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the outputs of all stages, of which `values` came back."""
        return tuple([None if index is None else values[index] for index in self.outputs])


def chain_at(method: Method, position: int) -> Chain | None:
    """Return the chain that begins with the stage at `position`, if it begins one."""
    stages = method.stages
    if position and _is_link(stages[position - 1]):
        return None
    end = position
    while end < len(stages) and _is_link(stages[end]):
        end += 1
    if end - position < 2:
        return None
    links = stages[position:end]
    outputs = [slot for stage in links for slot in stage.outputs]
    inputs = dict.fromkeys(s for stage in links for s in stage.inputs if s < outputs[0])
    numbers = {slot: number for number, slot in enumerate([*inputs, *outputs])}
    used = {slot for stage in stages[end:] for slot in stage.inputs}
    used |= {*method.returns, *(state.next_slot for state in method.states)}
    kept = [slot for slot in outputs if slot in used]
    return Chain(
        position,
        len(links),
        list(inputs),
        [_step(stage, numbers) for stage in links],
        [numbers[slot] for slot in kept],
        [kept.index(slot) if slot in used else None for slot in outputs],
    )


def _is_link(stage: Stage) -> bool:
    return stage.kind is StageKind.SERVABLE and not stage.streams


def _step(stage: Stage, numbers: dict[int, int]) -> CallStep:
    servable, _, name = stage.target.rpartition(".")
    inputs = [numbers[slot] for slot in stage.inputs]
    return CallStep(servable, stage.version, name, inputs, len(stage.outputs))
