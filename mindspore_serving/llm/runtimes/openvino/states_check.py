"""Check of the recurrent-state operations: small cases, compared with numpy once per process.

The operations are private to OpenVINO: a release that gives other results is refused.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.state_rules import LENGTH_EPS, Heads
from mindspore_serving.llm.runtimes.openvino.nodes import Node
from mindspore_serving.llm.runtimes.openvino.states import (
    SLOTS_PER_ROW,
    STATE_INPUTS,
    Ints,
    convolution,
    delta_rule,
    fill,
    selective_scan,
)
from mindspore_serving.llm.step import Row, StateSlots

TOLERANCE = {"f32": 1e-5, "bf16": 3e-2}
HEADS = Heads(key_heads=2, value_heads=4, key_dim=16, value_dim=8)
LOG_RATE, SKIP = np.array([[[-1, 0, 1, 2]], [[1, 2, 3, 4]]], np.float32)  # of the scan
WIDTH = 3  # of the convolution
ROWS = (  # of one sequence: a piece with a snapshot within it, and a piece after it
    Row([0] * 5, 0, (), 0, state=StateSlots(-1, 0, 1, 3)),
    Row([0] * 2, 5, (), 0, state=StateSlots(0, 0)),
    Row([0] * 2, 3, (), 0, state=StateSlots(1, 2)),  # the last two of the first again
)
NUM_SLOTS = 3


@cache
def check_states(precision: str) -> None:
    """Check the operations in a model that computes in `precision`.

    Raises StartError naming openvino's version if an operation is missing or gives other results.
    """
    try:
        error = _largest_error(precision)
    except Exception as cause:  # the library's errors have no type of their own
        raise StartError(_message(f"are refused: {str(cause).splitlines()[0]}")) from cause
    if not error < TOLERANCE[precision]:
        raise StartError(_message(f"are off by {error:.1e}"))


def _message(what: str) -> str:
    return (
        f"openvino {ov.__version__}: its recurrent-state operations, which are private and change "
        f"between releases, {what}; install openvino 2026.4, or use the torch runtime"
    )


def _largest_error(precision: str) -> float:
    random = np.random.default_rng(0)
    widths = (HEADS.keys, HEADS.keys, HEADS.values)
    q, k, v = (random.standard_normal((7, width), np.float32) for width in widths)
    decays, beta = (
        -random.random((7, HEADS.value_heads), np.float32),
        random.random((7, 4), np.float32),
    )
    kernel = random.standard_normal((v.shape[1], 1, WIDTH), np.float32)
    inputs = {"q": q, "k": k, "v": v, "decay": decays, "beta": beta}
    compiled = _compiled(inputs, kernel, precision)
    request, tables = compiled.create_infer_request(), []
    for name in ("conv", "delta", "scan"):  # the plugin chooses their type
        port = compiled.input(name)
        shape = [NUM_SLOTS + 2, *(size.get_length() for size in list(port.partial_shape)[1:])]
        tables.append(np.zeros(shape, f"u{port.element_type.size}"))
        request.set_tensor(name, ov.Tensor(tables[-1], ov.Shape(shape), port.element_type))
    expected = (
        _reference_convolution(v, kernel),
        _reference_delta_rule(*inputs.values()),
        _reference_scan(q, k, v, beta),
    )
    errors = []
    for row in ROWS:
        new = slice(row.start, row.start + len(row.tokens))
        for name, array in {**_step(row), **{n: x[new] for n, x in inputs.items()}}.items():
            request.set_tensor(name, ov.Tensor(np.ascontiguousarray(array)))
        request.infer()
        for index, reference in enumerate(expected[: len(compiled.outputs)]):
            output = request.get_output_tensor(index).data
            errors.append(float(np.abs(output - reference[new]).max() / np.abs(reference).max()))
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
        *(
            parameter(name, ov.Type.f32, -1, HEADS.value_heads, HEADS.value_dim, HEADS.key_dim)
            for name in ("delta", "scan")
        ),
    )
    none = opset.constant(np.zeros(0, np.float32))
    results = [convolution(parts[2], tables[0], (opset.constant(kernel), none), step)]
    if precision == "f32":  # the only precision of these: see `options.with_f32_states`
        q, k, v, _, beta = parts
        vectors = (opset.constant(LOG_RATE), opset.constant(SKIP))
        results.append(delta_rule(parts, tables[1], HEADS, step))
        results.append(selective_scan((v, k, q, beta), vectors, tables[2], HEADS, step=step))
    model = ov.Model([opset.result(x) for x in results], list(nodes.values()), "states")
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})


def _reference_convolution(x: Any, kernel: Any) -> Any:
    past = np.concatenate([np.zeros((WIDTH - 1, x.shape[1]), np.float32), x])
    return sum(past[i : i + len(x)] * kernel[:, 0, i] for i in range(WIDTH))


def _reference_delta_rule(q: Any, k: Any, v: Any, decays: Any, beta: Any) -> Any:
    """Compute the delta rule by its definition."""
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + LENGTH_EPS) for x in map(_keys, (q, k)))

    def missing(state: Any, t: int) -> Any:
        return beta[t][:, None] * (_values(v)[t] - np.einsum("hkv,hk->hv", state, k[t]))

    return _recurrence(q, k, decays, missing).reshape(len(v), -1) * HEADS.key_dim**-0.5


def _reference_scan(c: Any, b: Any, x: Any, steps: Any) -> Any:
    """Compute the selective scan by its definition."""
    x, decays = _values(x), -np.exp(LOG_RATE[0]) * steps
    output = _recurrence(_keys(c), _keys(b), decays, lambda _, t: steps[t][:, None] * x[t])
    return (output + SKIP[0][:, None] * x).reshape(len(x), -1)


def _recurrence(queries: Any, keys: Any, decays: Any, update: Callable[[Any, int], Any]) -> Any:
    """Read the state for each token, [T, value_heads, value_dim].

    Before that the state has decayed, and `update` has been written.
    """
    state = np.zeros((HEADS.value_heads, HEADS.key_dim, HEADS.value_dim))
    outputs = []
    for t in range(len(queries)):
        state = state * np.exp(decays[t])[:, None, None]
        state = state + np.einsum("hk,hv->hkv", keys[t], update(state, t))
        outputs.append(np.einsum("hkv,hk->hv", state, queries[t]))
    return np.stack(outputs)


def _keys(x: Any) -> Any:
    """Repeat each key head for its value heads, [T, value_heads, key_dim]."""
    values_per_key = HEADS.value_heads // HEADS.key_heads
    return x.reshape(len(x), HEADS.key_heads, -1).repeat(values_per_key, 1)


def _values(x: Any) -> Any:
    return x.reshape(len(x), HEADS.value_heads, -1)
