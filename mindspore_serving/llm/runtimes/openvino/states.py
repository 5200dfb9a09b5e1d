"""Recurrent-state operations of OpenVINO's CPU plugin.

A causal convolution, the gated delta rule and the selective scan of Mamba-2.  They are private to
OpenVINO and may change between releases, so they are described in this file only, and
`states_check` compares small cases with numpy.  They read a sequence's state from the first of its
slots, and write it to the next slot after every `interval` tokens, counted from `past`, and after
the last token.  They do not check bounds; `feed` does.
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
ONCE = 1 << 30  # an interval so long that a step ends at most one


def convolution(x: Node, table: Node, weights: tuple[Node, Node], step: Mapping[str, Node]) -> Node:
    """Convolve `x` causally; return [T, H].

    `table`, [slots, H, width], has the last inputs; `weights` are [H, 1, width], and the bias [H]
    or [0].
    """
    return _created("PagedCausalConv1D", [x, table, *weights, *_step_inputs(step)], {})


def delta_rule(
    parts: tuple[Node, ...], table: Node, heads: Heads, step: Mapping[str, Node]
) -> Node:
    """Run the gated delta rule; return [T, value_heads * value_dim].

    `parts` are q, k, v, decay and beta, [T, features] each.
    """
    q, k, v, decay, beta = parts
    q, k = (reshaped(x, -1, heads.key_heads, heads.key_dim) for x in (q, k))
    v = reshaped(v, -1, heads.value_heads, heads.value_dim)
    options = {"use_qk_l2norm": True, "q_l2_norm_eps": LENGTH_EPS, "k_l2_norm_eps": LENGTH_EPS}
    inputs = [q, k, v, table, decay, beta, *_step_inputs(step)]
    return reshaped(_created("PagedGatedDeltaNet", inputs, options), -1, heads.values)


def selective_scan(
    parts: tuple[Node, ...], vectors: tuple[Node, Node], table: Node, heads: Heads,
    *, step: Mapping[str, Node],
) -> Node:  # fmt: skip
    """Run the selective scan; return [T, value_heads * value_dim].

    `parts` are x, B, C and time steps, [T, features] each; `vectors` are the logarithms of decays
    and the factors of the skip connection, [1, value_heads].
    """
    x, b, c, steps = parts
    log_rate, skip = vectors
    rate = reshaped(opset.multiply(opset.exp(log_rate), f32(-1)), -1)
    x = reshaped(x, -1, heads.value_heads, heads.value_dim)
    b, c = (reshaped(part, -1, heads.key_heads, heads.key_dim) for part in (b, c))
    y = _created("PagedSelectiveSSM", [rate, steps, b, x, c, table, *_step_inputs(step)], {})
    skipped = opset.multiply(x, reshaped(skip, 1, -1, 1))
    return reshaped(opset.add(y, skipped), -1, heads.values)


def time_steps(step: Node, bias: Node, limits: tuple[float, float]) -> Node:
    """Compute the time steps of the scan within `limits`."""
    smallest, largest = limits
    steps = opset.softplus(opset.add(step, bias))
    steps = opset.maximum(steps, f32(smallest)) if smallest > 0 else steps
    return opset.minimum(steps, f32(largest)) if largest < inf else steps


def decay(alpha: Node, log_rate: Node, dt_bias: Node) -> Node:
    """Compute -exp(log_rate) softplus(alpha + dt_bias), the logarithm of the decay."""
    rate = opset.softplus(opset.add(alpha, dt_bias))
    return opset.multiply(opset.multiply(opset.exp(log_rate), f32(-1)), rate)


def fill(arrays: Mapping[str, Ints], rows: Sequence[Row], num_slots: int) -> None:
    """Fill the inputs `STATE_INPUTS` for `rows`.

    After the runner's slots, the table has one slot of zeros, and one for states that are not kept.
    Rows that write to the latter have interval 0: the scan refuses two rows that write the same
    slot, and then writes none.
    """
    no_state = StateSlots(num_slots, num_slots + 1)
    slots: list[int] = []
    states = [row.state or no_state for row in rows]
    for state in states:
        read = num_slots if state.read < 0 else state.read
        snapshot = state.write if state.snapshot < 0 else state.snapshot
        slots += (read, snapshot, state.write)
    arrays["state_slots"][:] = slots
    arrays["state_past"][:] = [ONCE - state.kept if state.kept else 0 for state in states]
    arrays["state_intervals"][:] = [0 if state is no_state else ONCE for state in states]


def _step_inputs(step: Mapping[str, Node]) -> list[Node]:
    return [step["subsequence_begins"], *(step[name] for name in STATE_INPUTS)]


@cache
def _factory() -> NodeFactory:
    """Return a factory of the plugin's private operations, which no opset has."""
    factory = NodeFactory()
    libraries = Path(ov.__file__).parent / "libs"
    factory.add_extension(str(libraries / "libopenvino_intel_cpu_plugin.so"))
    return factory


def _created(name: str, inputs: Sequence[Node], options: Mapping[str, Any]) -> Node:
    return _factory().create(name, [x.output(0) for x in inputs], dict(options))
