"""Whether the plugin reads the integers of a matrix again when it has packed them, and when it has.

It packs them at the first pass.  Where kernels for other numbers of rows want another order, it
packs them again; on most processors they do not, and the memory of integers and scales can be given
back: while the first pass still runs, so that there are never two copies of all.
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

from mindspore_serving.llm.checkpoint.packing import Packed
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint, to_bf16
from mindspore_serving.llm.runtimes.openvino.constants import (
    INT8_GROUP,
    TYPES,
    MatrixForm,
    give_back,
)
from mindspore_serving.llm.runtimes.openvino.fusion import is_fused_here
from mindspore_serving.llm.runtimes.openvino.options import PluginOptions
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights

Array: TypeAlias = npt.NDArray[Any]

ATTENTION = "PagedAttentionExtension"
KEYS = 3  # the input of attention that is its cache of keys
PERIOD = 0.005  # seconds from one look at the caches to the next
ROWS = (1, 2, 4, 7, 8, 16, 17, 33, 64, 65, 512)
OUTPUTS = (48, 192, 512)
GROUPS = 6  # of inputs
INPUTS = 3 * INT8_GROUP  # where they have no groups
NAMES = ("probe.1", "probe.2")
TOLERANCE = 0.05  # of the largest number: rounding of what is multiplied, not other weights


def packed_once(weights: OpenVINOWeights, properties: Mapping[str, Any]) -> dict[str, Array]:
    """Those of `constants.spent` and `constants.minimums` that the plugin does not read again.

    Small ones of the same forms are computed to see: their products have to be right for every
    number of rows when they have been overwritten after the first pass.  `properties` are the
    plugin's.
    """
    given, constants = tuple(sorted(properties.items())), weights.constants
    precision = weights.precision
    found: dict[str, Array] = {}
    if all(_is_packed_once(form, precision, given) for form in constants.forms):
        found |= constants.spent
    int4 = MatrixForm("int4", 32)
    if constants.minimums and _is_packed_once(int4, precision, given, has_minimums=True):
        found |= constants.minimums
    return found


def joins(options: PluginOptions, form: MatrixForm) -> bool:
    """Whether matrices of `form` that have the same input may be one matrix.

    It is a copy, so only where that can be given back; and where the plugin does not join them
    itself (`fusion`).
    """
    if form.group:
        return True
    if options.precision == "bf16" and is_fused_here():
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
    is_float, random = form.kind in TYPES, np.random.default_rng(0)
    for outputs in OUTPUTS:
        if is_float:
            stored = _floats(form.kind, random.normal(0, 1, (outputs, INPUTS)))
        else:
            stored = _integers(form, outputs, random, has_minimums=has_minimums)
        if not _is_kept(stored, precision, dict(properties)):
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


def _is_kept(
    stored: StoredTensor | QuantizedTensor, precision: str, properties: dict[str, Any]
) -> bool:
    """Two such matrices, which are joined, are right when what they were made of is gone."""
    checkpoint = Checkpoint(Path(), {}, dict.fromkeys(NAMES, stored))
    weights = OpenVINOWeights(checkpoint, precision, joins=lambda _: True, least_with_minimums=0)
    x = Parameter(ov.Type.f32, ov.PartialShape([-1, stored.shape[1]]))
    product = opset.concat(weights.products(x, NAMES), -1)
    model = ov.Model([opset.result(product)], [x], "probe")
    compiled = ov.Core().compile_model(model, "CPU", properties)
    request, matrix = compiled.create_infer_request(), np.tile(checkpoint.f32(NAMES[0]), (2, 1))
    constants, random = weights.constants, np.random.default_rng(1)
    for count in ROWS:
        rows = random.normal(0, 1, (count, stored.shape[1])).astype(np.float32)
        expected = rows @ matrix.T
        found = request.infer([rows])[0]
        if np.abs(found - expected).max() > TOLERANCE * np.abs(expected).max():
            return False
        give_back((constants.minimums or constants.spent).values())
    return True


def order_of_packing(model: ov.Model, arrays: Mapping[str, Array]) -> list[tuple[str, list[Array]]]:
    """(the name of a cache of keys, those of `arrays` that are packed when it is written), in the
    order of computing.  `arrays` are those of constants, by the names of their nodes; what no
    attention depends on is left out.
    """
    seen: set[tuple[str, str]] = set()
    found = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == ATTENTION:
            before = [arrays[name] for name in _sources(node, seen) if name in arrays]
            found.append((node.input_value(KEYS).get_any_name(), before))
    return found


def _sources(node: Any, seen: set[tuple[str, str]]) -> Iterator[str]:
    """The names of what `node` is computed of, but for what was `seen` before.  Nodes of one name
    and type count as one: what is missed by that is found behind a later cache, which is safe.
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
def giving_back(groups: Sequence[tuple[Array, list[Array]]]) -> Iterator[None]:
    """While the block computes the first pass, give back arrays as soon as it has packed them.

    `groups` are caches of keys, zeros as yet, and the arrays that are packed when one is written.
    """
    over = Event()
    watcher = Thread(target=_give_back_early, args=(deque(groups), over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _give_back_early(groups: deque[tuple[Array, list[Array]]], over: Event) -> None:
    while groups and not over.wait(PERIOD):
        while groups and groups[0][0].any():
            give_back(groups.popleft()[1])
