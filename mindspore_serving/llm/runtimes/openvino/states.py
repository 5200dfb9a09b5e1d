"""The operations of OpenVINO's CPU plugin that have a state in place of keys and values: a causal
convolution and the gated delta rule.

They are private to OpenVINO and may change between releases, so they are described in this file
only, and small cases are compared with plain arithmetic once per process.  They read a sequence's
state from the first of its slots, and write it to the next one behind every `interval` tokens,
counted from `past`, and behind the last token.  They do not check bounds; `feed` does.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter
from openvino.utils.node_factory import NodeFactory

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import LENGTH_EPS, DeltaRule
from mindspore_serving.llm.runtimes.openvino.nodes import Node, f32, reshaped
from mindspore_serving.llm.step import Row, StateSlots

Ints: TypeAlias = npt.NDArray[np.int32]

STATE_INPUTS = ("state_slots", "state_begins", "state_past", "state_intervals")
SLOTS_PER_ROW = 3
ONCE = 1 << 30  # an interval of which a step reaches one end at most
TOLERANCE = {"f32": 1e-5, "bf16": 3e-2}


def convolution(x: Node, table: Node, weights: tuple[Node, Node], step: Mapping[str, Node]) -> Node:
    """[T, H]; `table` [slots, H, width] has the last inputs; `weights` are [H, 1, width], and the
    bias [H] or [0]."""
    return _created("PagedCausalConv1D", [x, table, *weights, *_places(step)], {})


def delta_rule(
    parts: tuple[Node, ...], table: Node, rule: DeltaRule, step: Mapping[str, Node]
) -> Node:
    """[T, value_heads * value_dim] of q, k, v, decay and beta, [T, features] each."""
    q, k, v, decay, beta = parts
    q, k = (reshaped(x, -1, rule.key_heads, rule.key_dim) for x in (q, k))
    v = reshaped(v, -1, rule.value_heads, rule.value_dim)
    options = {"use_qk_l2norm": True, "q_l2_norm_eps": LENGTH_EPS, "k_l2_norm_eps": LENGTH_EPS}
    inputs = [q, k, v, table, decay, beta, *_places(step)]
    return reshaped(
        _created("PagedGatedDeltaNet", inputs, options), -1, rule.value_heads * rule.value_dim
    )


def decay(alpha: Node, log_rate: Node, dt_bias: Node) -> Node:
    """-exp(log_rate) softplus(alpha + dt_bias)"""
    grown = opset.softplus(opset.add(alpha, dt_bias))
    return opset.multiply(opset.multiply(opset.exp(log_rate), f32(-1)), grown)


def fill(arrays: Mapping[str, Ints], rows: Sequence[Row], num_slots: int) -> None:
    """The inputs `STATE_INPUTS` for `rows`.  Behind the runner's slots the table has one of zeros,
    and one for states that nobody wants."""
    nothing = StateSlots(num_slots, num_slots + 1)
    slots: list[int] = []
    states = [row.state or nothing for row in rows]
    for state in states:
        read = num_slots if state.read < 0 else state.read
        second = state.write if state.snapshot < 0 else state.snapshot
        slots += (read, second, state.write)
    arrays["state_slots"][:] = slots
    arrays["state_past"][:] = [ONCE - state.kept if state.kept else 0 for state in states]
    arrays["state_intervals"][:] = [ONCE if state.kept else 0 for state in states]


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


RULE = DeltaRule(key_heads=2, value_heads=4, key_dim=16, value_dim=8, a_log="", dt_bias="")
WIDTH = 3  # of the convolution
ROWS = (  # of one sequence: a piece with a state kept amid it, and one after it
    Row([0] * 5, 0, (), 0, state=StateSlots(-1, 0, 1, 3)),
    Row([0] * 2, 5, (), 0, state=StateSlots(0, 0)),
    Row([0] * 2, 3, (), 0, state=StateSlots(1, 2)),  # the last two of the first again
)
NUM_SLOTS = 3


@cache
def check_states(precision: str) -> None:
    """Raises StartError naming the version if an operation is missing or computes otherwise, in a
    model that computes in `precision`."""
    try:
        error = _largest_error(precision)
    except Exception as cause:  # the library's errors have no type of their own
        raise StartError(_message(f"are refused: {str(cause).splitlines()[0]}")) from cause
    if not error < TOLERANCE[precision]:
        raise StartError(_message(f"are off by {error:.1e}"))


def _message(what: str) -> str:
    return (
        f"openvino {ov.__version__}: its operations with a state, which are private and change "
        f"between releases, {what}; install openvino 2026.4, or take the torch runtime"
    )


def _largest_error(precision: str) -> float:
    random = np.random.default_rng(0)
    widths = (RULE.key_heads * RULE.key_dim,) * 2 + (RULE.value_heads * RULE.value_dim,)
    q, k, v = (random.standard_normal((7, width), np.float32) for width in widths)
    falls, beta = (
        -random.random((7, RULE.value_heads), np.float32),
        random.random((7, 4), np.float32),
    )
    kernel = random.standard_normal((v.shape[1], 1, WIDTH), np.float32)
    inputs = {"q": q, "k": k, "v": v, "decay": falls, "beta": beta}
    compiled = _compiled(inputs, kernel, precision)
    request, tables = compiled.create_infer_request(), []
    for name in ("conv", "delta"):  # the plugin chooses their type
        port = compiled.input(name)
        shape = [NUM_SLOTS + 2, *(size.get_length() for size in list(port.partial_shape)[1:])]
        tables.append(np.zeros(shape, f"u{port.element_type.size}"))
        request.set_tensor(name, ov.Tensor(tables[-1], ov.Shape(shape), port.element_type))
    wanted = (_convolved(v, kernel), _ruled(*inputs.values()))
    errors = []
    for row in ROWS:
        new = slice(row.start, row.start + len(row.tokens))
        for name, array in {**_step(row), **{n: x[new] for n, x in inputs.items()}}.items():
            request.set_tensor(name, ov.Tensor(np.ascontiguousarray(array)))
        request.infer()
        for index, whole in enumerate(wanted[: len(compiled.outputs)]):
            found = request.get_output_tensor(index).data
            errors.append(float(np.abs(found - whole[new]).max() / np.abs(whole).max()))
    return max(errors)


def _step(row: Row) -> dict[str, Ints]:
    shapes = {"state_slots": SLOTS_PER_ROW, "state_past": 1, "state_intervals": 1}
    arrays = {name: np.zeros(size, np.int32) for name, size in shapes.items()}
    fill(arrays, [row], NUM_SLOTS)
    arrays["state_begins"] = np.array([0, SLOTS_PER_ROW], np.int32)
    arrays["subsequence_begins"] = np.array([0, len(row.tokens)], np.int32)
    return arrays


def _compiled(inputs: Mapping[str, npt.NDArray[np.float32]], kernel: Any, precision: str) -> Any:
    nodes: dict[str, Node] = {}

    def parameter(name: str, kind: Any, *shape: int) -> Node:
        node = nodes[name] = Parameter(kind, ov.PartialShape(list(shape)))
        node.output(0).get_tensor().set_names({name})
        return node

    parts = tuple(parameter(name, ov.Type.f32, -1, x.shape[1]) for name, x in inputs.items())
    step = {x: parameter(x, ov.Type.i32, -1) for x in ("subsequence_begins", *STATE_INPUTS)}
    tables = (
        parameter("conv", ov.Type.f32, -1, kernel.shape[0], WIDTH),
        parameter("delta", ov.Type.f32, -1, RULE.value_heads, RULE.value_dim, RULE.key_dim),
    )
    none = opset.constant(np.zeros(0, np.float32))
    results = [convolution(parts[2], tables[0], (opset.constant(kernel), none), step)]
    if precision == "f32":  # in which alone the rule is computed: see `options.with_matrices`
        results.append(delta_rule(parts, tables[1], RULE, step))
    model = ov.Model([opset.result(x) for x in results], list(nodes.values()), "states")
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})


def _convolved(x: Any, kernel: Any) -> Any:
    past = np.concatenate([np.zeros((WIDTH - 1, x.shape[1]), np.float32), x])
    return sum(past[i : i + len(x)] * kernel[:, 0, i] for i in range(WIDTH))


def _ruled(q: Any, k: Any, v: Any, falls: Any, beta: Any) -> Any:
    """By the definition, token by token."""
    each = RULE.value_heads // RULE.key_heads
    heads = [x.reshape(len(x), RULE.key_heads, -1).repeat(each, 1) for x in (q, k)]
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + LENGTH_EPS) for x in heads)
    v = v.reshape(len(v), RULE.value_heads, -1)
    state = np.zeros((RULE.value_heads, RULE.key_dim, RULE.value_dim))
    found = []
    for t in range(len(v)):
        state = state * np.exp(falls[t])[:, None, None]
        missing = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + np.einsum("hk,hv->hkv", k[t], missing)
        found.append(np.einsum("hkv,hk->hv", state, q[t]) * RULE.key_dim**-0.5)
    return np.stack(found).reshape(len(v), -1)
