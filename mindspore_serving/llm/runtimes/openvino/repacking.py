"""Whether the plugin reads the integers of a matrix again when it has packed them.

It packs them at the first pass.  Where kernels for other numbers of rows want another order, it
packs them again; on most processors they do not, and the integers' memory can be given back.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.llm.checkpoint.packing import Packed, unpack
from mindspore_serving.llm.checkpoint.quantized.parts import QuantizedTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.runtimes.openvino.pages import give_back
from mindspore_serving.llm.runtimes.openvino.weights import Weights

ROWS = (1, 2, 4, 7, 8, 16, 17, 33, 64, 65, 512)
OUTPUTS = (48, 192, 512)
GROUPS = 6  # of inputs
NAME = "probe.weight"
TOLERANCE = 0.05  # of the largest number: rounding of what is multiplied, not other weights


def is_packed_once(
    bits: int, group: int, precision: str, properties: Mapping[str, Any], *, has_zeros: bool
) -> bool:
    """Whether products by integers of `bits`, a scale for each `group`, are right for every number
    of rows when the integers have been overwritten after the first pass: small ones are computed
    to see.  `properties` are the plugin's."""
    return _is_packed_once(bits, group, precision, tuple(sorted(properties.items())), has_zeros)


@cache
def _is_packed_once(
    bits: int, group: int, precision: str, properties: tuple[tuple[str, Any], ...], has_zeros: bool
) -> bool:
    forms = (_form(bits, group, outputs, has_zeros=has_zeros) for outputs in OUTPUTS)
    return all(_is_kept(form, precision, dict(properties)) for form in forms)


def _form(bits: int, group: int, outputs: int, *, has_zeros: bool) -> Packed:
    random, inputs = np.random.default_rng(0), GROUPS * group
    values = random.integers(0, 256, (outputs, inputs * bits // 8), np.uint8)
    scales = random.uniform(0.5, 1, (outputs, GROUPS)).astype(np.float16)
    zeros = random.integers(0, 2**bits, (outputs, GROUPS), np.uint8) if has_zeros else None
    if bits == 8 and not has_zeros:
        values = values.view(np.int8)
    return Packed(values, scales, bits, (outputs, inputs), group, zeros=zeros)


def _is_kept(form: Packed, precision: str, properties: dict[str, Any]) -> bool:
    stored = QuantizedTensor("probe", form.shape, form.values, lambda: form)
    weights = Weights(Checkpoint(Path(), {}, {NAME: stored}), precision)
    x = Parameter(ov.Type.f32, ov.PartialShape([-1, form.shape[1]]))
    model = ov.Model([opset.result(weights.product(x, NAME))], [x], "probe")
    compiled = ov.Core().compile_model(model, "CPU", properties)
    request, matrix = compiled.create_infer_request(), unpack(form)
    random = np.random.default_rng(1)
    for count in ROWS:
        rows = random.normal(0, 1, (count, form.shape[1])).astype(np.float32)
        expected = rows @ matrix.T
        found = request.infer([rows])[0]
        if np.abs(found - expected).max() > TOLERANCE * np.abs(expected).max():
            return False
        give_back(weights.integers)
    return True
