"""Checks whether the plugin reads weights again after packing, and their release while it packs.

It packs the weights at the first pass.  If kernels for other numbers of rows want another order, it
packs them again; on most processors they do not, and the memory of integers and scales can be
released: while the first pass still runs, so that there are never two copies of all weights.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.llm.checkpoint.built_files import key_of, read_or_build, source_digest
from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint, to_bf16
from mindspore_serving.llm.runtimes.openvino.constants import (
    INT8_GROUP,
    TYPES,
    MatrixForm,
)
from mindspore_serving.llm.runtimes.openvino.fusion import plugin_fuses_mlp
from mindspore_serving.llm.runtimes.openvino.options import PluginOptions
from mindspore_serving.llm.runtimes.openvino.processor import plugin_identity
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.runtimes.pages import release_pages

Array: TypeAlias = npt.NDArray[Any]

ATTENTION = "PagedAttentionExtension"
KEYS = 3  # index of attention's input for the key cache
PERIOD = 0.005  # seconds between two looks at the caches
ROWS = (1, 2, 4, 7, 8, 16, 17, 33, 64, 65, 512)
OUTPUTS = (48, 192, 512)
GROUPS = 6  # of inputs
INPUTS = 3 * INT8_GROUP  # if they have no groups
NAMES = ("probe.1", "probe.2")
TOLERANCE = 0.05  # relative to the largest value: enough for rounding, not for wrong weights


def packed_once(weights: OpenVINOWeights, properties: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays of `constants` that the plugin does not read after the first pass.

    They are all of `releasable`, all of `minimums`, or neither.  Small matrices of the same forms
    are computed as a test: their products have to be right for every number of rows after their
    memory was donewritten.  `properties` are the plugin's.
    """
    property_items, constants = tuple(sorted(properties.items())), weights.constants
    precision = weights.precision
    releasable: dict[str, Array] = {}
    if all(_is_packed_once(form, precision, property_items) for form in constants.forms):
        releasable |= constants.releasable
    int4 = MatrixForm("int4", 32)
    if constants.minimums and _is_packed_once(int4, precision, property_items, has_minimums=True):
        releasable |= constants.minimums
    return releasable


def can_join(options: PluginOptions, form: MatrixForm) -> bool:
    """Return whether matrices of `form` with the same input should be joined to one.

    A joined matrix is a copy, so only where that can be released, and where the plugin does not
    join them itself (`fusion`).
    """
    if form.group:
        return True
    if options.precision == "bf16" and plugin_fuses_mlp():
        return False
    properties = options.properties(0 if form.kind in TYPES else INT8_GROUP)
    return _is_packed_once(form, options.precision, tuple(sorted(properties.items())))


@cache
def _is_packed_once(
    form: MatrixForm,
    precision: str,
    properties: tuple[tuple[str, Any], ...],
    *,
    has_minimums: bool = False,
) -> bool:
    """Test a form, once per machine and release of openvino."""

    def test() -> bytes:
        is_right = _compute_test(form, precision, properties, has_minimums=has_minimums)
        return b"yes" if is_right else b"no"

    case = repr((form, precision, properties, has_minimums, *plugin_identity()))
    key = key_of((case.encode(), source_digest(Path(__file__).parent)))
    return read_or_build(key, test) == b"yes"


def _compute_test(
    form: MatrixForm,
    precision: str,
    properties: tuple[tuple[str, Any], ...],
    *,
    has_minimums: bool,
) -> bool:
    is_float, random = form.kind in TYPES, np.random.default_rng(0)
    for outputs in OUTPUTS:
        if is_float:
            stored = _floats(form.kind, random.normal(0, 1, (outputs, INPUTS)))
        else:
            stored = _integers(form, outputs, random, has_minimums=has_minimums)
        if not _stays_right(stored, precision, dict(properties)):
            return False
    return True


def _floats(dtype: str, matrix: Array) -> StoredTensor:
    wide = matrix.astype(np.float32)
    bits = to_bf16(wide) if dtype == "BF16" else wide
    bits = wide.astype(np.float16).view(np.uint16) if dtype == "F16" else bits
    return StoredTensor(dtype, matrix.shape, bits)


def _integers(
    form: MatrixForm, outputs: int, random: np.random.Generator, *, has_minimums: bool
) -> QuantizedTensor:
    bits, group = int(form.kind.removeprefix("int")), form.group or INPUTS
    groups = GROUPS if form.group else 1
    inputs = groups * group
    values = random.integers(0, 256, (outputs, inputs * bits // 8), np.uint8)
    scales = random.uniform(0.5, 1, (outputs, groups)).astype(np.float16)
    zeros = random.integers(0, 2**bits, scales.shape, np.uint8) if form.has_zeros else None
    if bits == 8 and not form.has_zeros:
        values = values.view(np.int8)
    packed = Packed(values, scales, bits, (outputs, inputs), group, zeros=zeros)
    if has_minimums:
        packed = replace(packed, minimums=scales.astype(np.float32), centre=8)
    return QuantizedTensor("probe", packed.shape, packed.values, lambda: packed)


def _stays_right(
    stored: StoredTensor | QuantizedTensor, precision: str, properties: dict[str, Any]
) -> bool:
    """Return whether products of two joined matrices stay right after their memory was released."""
    checkpoint = Checkpoint(Path(), {}, dict.fromkeys(NAMES, stored))
    weights = OpenVINOWeights(
        checkpoint, precision, joins=lambda _: True, min_weights_with_minimums=0
    )
    x = Parameter(ov.Type.f32, ov.PartialShape([-1, stored.shape[1]]))
    product = opset.concat(weights.products(x, NAMES), -1)
    model = ov.Model([opset.result(product)], [x], "probe")
    compiled = ov.Core().compile_model(model, "CPU", properties)
    request, matrix = compiled.create_infer_request(), np.tile(checkpoint.f32(NAMES[0]), (2, 1))
    constants, random = weights.constants, np.random.default_rng(1)
    for count in ROWS:
        rows = random.normal(0, 1, (count, stored.shape[1])).astype(np.float32)
        expected = rows @ matrix.T
        output = request.infer([rows])[0]
        if np.abs(output - expected).max() > TOLERANCE * np.abs(expected).max():
            return False
        release_pages((constants.minimums or constants.releasable).values())
    return True


def packing_order(model: ov.Model, arrays: Mapping[str, Array]) -> list[tuple[str, list[Array]]]:
    """Return which arrays are packed before each attention, in the order of computing.

    Each item is (name of a key cache, those of `arrays` that are packed when it is written).
    `arrays` are those of constants, by the names of their nodes; arrays that no attention depends
    on are left out.
    """
    seen: set[tuple[str, str]] = set()
    order = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == ATTENTION:
            before = [arrays[name] for name in _sources(node, seen) if name in arrays]
            order.append((node.input_value(KEYS).get_any_name(), before))
    return order


def _sources(node: Any, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Iterate done the names of the nodes that `node` depends on, except those `seen` before.

    Nodes of the same name and type count as one: what is missed by that appears before a later
    cache, which is safe.
    """
    waiting = [node]
    while waiting:
        for value in waiting.pop().input_values():
            source = value.get_node()
            name = source.get_friendly_name()
            if (name, source.get_type_name()) not in seen:
                seen.add((name, source.get_type_name()))
                waiting.append(source)
                yield name


@contextmanager
def releasing(groups: Sequence[tuple[Array, list[Array]]]) -> Iterator[None]:
    """Release arrays while the block computes the first pass, as soon as they are packed.

    `groups` are caches of keys, which are zeros at first, and the arrays that are packed by the
    time each cache is written.
    """
    done = Event()
    watcher = Thread(target=_give_back_early, args=(deque(groups), done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _give_back_early(groups: deque[tuple[Array, list[Array]]], done: Event) -> None:
    while groups and not done.wait(PERIOD):
        while groups and groups[0][0].any():
            release_pages(groups.popleft()[1])
