"""The operations of OpenVINO's CPU plugin that have a state beside keys and values: a causal
convolution, the gated delta rule and the selective scan of Mamba-2.

They are private to OpenVINO and may change between releases, so they are described in this file
only, and `states_check` compares small cases with plain arithmetic.  They read a sequence's
state from the first of its slots, and write it to the next one behind every `interval` tokens,
counted from `past`, and behind the last token.  They do not check bounds; `feed` does.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.utils.node_factory import NodeFactory

from mindspore_serving.llm.models.state_rules import LENGTH_EPS, Heads
from mindspore_serving.llm.runtimes.openvino.nodes import Node, f32, reshaped
from mindspore_serving.llm.step import Row, StateSlots

Ints: TypeAlias = npt.NDArray[np.int32]

STATE_INPUTS = ("state_slots", "state_begins", "state_past", "state_intervals")
SLOTS_PER_ROW = 3
ONCE = 1 << 30  # an interval of which a step reaches one end at most


def convolution(x: Node, table: Node, weights: tuple[Node, Node], step: Mapping[str, Node]) -> Node:
    """[T, H]; `table` [slots, H, width] has the last inputs; `weights` are [H, 1, width], and the
    bias [H] or [0].
    """
    return _created("PagedCausalConv1D", [x, table, *weights, *_places(step)], {})


def delta_rule(
    parts: tuple[Node, ...], table: Node, heads: Heads, step: Mapping[str, Node]
) -> Node:
    """[T, value_heads * value_dim] of q, k, v, decay and beta, [T, features] each."""
    q, k, v, decay, beta = parts
    q, k = (reshaped(x, -1, heads.key_heads, heads.key_dim) for x in (q, k))
    v = reshaped(v, -1, heads.value_heads, heads.value_dim)
    options = {"use_qk_l2norm": True, "q_l2_norm_eps": LENGTH_EPS, "k_l2_norm_eps": LENGTH_EPS}
    inputs = [q, k, v, table, decay, beta, *_places(step)]
    return reshaped(_created("PagedGatedDeltaNet", inputs, options), -1, heads.values)


def selective_scan(
    parts: tuple[Node, ...], vectors: tuple[Node, Node], table: Node, heads: Heads,
    *, step: Mapping[str, Node],
) -> Node:  # fmt: skip
    """[T, value_heads * value_dim] of x, B, C and time steps, [T, features] each; `vectors` are the
    logarithms of decays and what x is multiplied by beside the state, [1, value_heads].
    """
    x, b, c, steps = parts
    log_rate, skip = vectors
    rate = reshaped(opset.multiply(opset.exp(log_rate), f32(-1)), -1)
    x = reshaped(x, -1, heads.value_heads, heads.value_dim)
    b, c = (reshaped(part, -1, heads.key_heads, heads.key_dim) for part in (b, c))
    y = _created("PagedSelectiveSSM", [rate, steps, b, x, c, table, *_places(step)], {})
    beside = opset.multiply(x, reshaped(skip, 1, -1, 1))
    return reshaped(opset.add(y, beside), -1, heads.values)


def time_steps(given: Node, bias: Node, limits: tuple[float, float]) -> Node:
    least, most = limits
    steps = opset.softplus(opset.add(given, bias))
    steps = opset.maximum(steps, f32(least)) if least > 0 else steps
    return opset.minimum(steps, f32(most)) if most < inf else steps


def decay(alpha: Node, log_rate: Node, dt_bias: Node) -> Node:
    """-exp(log_rate) softplus(alpha + dt_bias)"""
    grown = opset.softplus(opset.add(alpha, dt_bias))
    return opset.multiply(opset.multiply(opset.exp(log_rate), f32(-1)), grown)


def fill(arrays: Mapping[str, Ints], rows: Sequence[Row], num_slots: int) -> None:
    """The inputs `STATE_INPUTS` for `rows`.  Behind the runner's slots the table has one of zeros,
    and one for states that nobody wants, which have no interval: the scan refuses two rows that
    write the same slot, and then writes none.
    """
    nothing = StateSlots(num_slots, num_slots + 1)
    slots: list[int] = []
    states = [row.state or nothing for row in rows]
    for state in states:
        read = num_slots if state.read < 0 else state.read
        second = state.write if state.snapshot < 0 else state.snapshot
        slots += (read, second, state.write)
    arrays["state_slots"][:] = slots
    arrays["state_past"][:] = [ONCE - state.kept if state.kept else 0 for state in states]
    arrays["state_intervals"][:] = [0 if state is nothing else ONCE for state in states]


def _places(step: Mapping[str, Node]) -> list[Node]:
    return [step["subsequence_begins"], *(step[name] for name in STATE_INPUTS)]


@cache
def _factory() -> NodeFactory:
    """Of the plugin's own operations, which no opset has."""
    factory = NodeFactory()
    libraries = Path(ov.__file__).parent / "libs"
    factory.add_extension(str(libraries / "libopenvino_intel_cpu_plugin.so"))
    return factory


def _created(name: str, inputs: Sequence[Node], options: Mapping[str, Any]) -> Node:
    return _factory().create(name, [x.output(0) for x in inputs], dict(options))
