"""Dense feed-forward blocks in the pattern that the CPU plugin computes as one node.

With AMX, in bfloat16, the plugin replaces gate, up, activation and down by one node, `LLMMLP`; with
8-bit weights that saves a third of a step.  It does so if the input has rank 3, the activation is a
Swish of one input or a Gelu, nothing is added in between, and a weight is a constant, a constant
widened to float32, or int8 times one float32 scale per output.  The sizes are multiples of 32, of
int8 of 64 (the plugin crashes with others).  Int8 needs inputs quantised by rows.  With eight
threads or more it fuses query, key and value as well, if nothing else reads their input.

The node packs weights that it reads as float16.  Of other types the plugin keeps a converted copy,
as large as the packed weights; so they are converted to float16 here, in memory that is released
once they are packed.  Knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Constant, Parameter

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.openvino.nodes import Node, swish, widened
from mindspore_serving.llm.runtimes.pages import in_pages

Halves = npt.NDArray[np.float16]

FUSED = "LLMMLP"


@dataclass(frozen=True, slots=True)
class FusedBlock:
    """Weight constants of a block's three products."""

    constants: tuple[Node, ...]

    @property
    def is_int8(self) -> bool:
        return any(each.get_element_type() == ov.Type.i8 for each in self.constants)


def fusible_blocks(model: ov.Model) -> list[FusedBlock]:
    """Return the blocks of `model` that the plugin can fuse."""
    blocks = (block_of(node) for node in model.get_ordered_ops())
    return [block for block in blocks if block is not None]


@cache
def plugin_fuses_mlp() -> bool:
    """Return whether the plugin fuses blocks on this processor, by compiling a small one."""
    x = Parameter(ov.Type.f32, ov.PartialShape([-1, 1, 64]))
    weights = [opset.convert(opset.constant(np.ones((64, 64), np.float16)), "f32")] * 3
    gate, up = (opset.matmul(x, weight, False, True) for weight in weights[:2])
    y = opset.matmul(opset.multiply(swish(gate), up), weights[2], False, True)
    model = ov.Model([opset.result(y)], [x], "probe")
    properties = {"INFERENCE_PRECISION_HINT": "bf16", "ENABLE_CPU_PINNING": False}
    return num_fused(ov.Core().compile_model(model, "CPU", properties)) == 1


def computes_integers_as_floats(precision: str) -> bool:
    """Return whether the plugin multiplies by integers as floats: with AMX, in bfloat16."""
    return precision == "bf16" and plugin_fuses_mlp()


def num_fused(compiled: Any) -> int:
    """Return the number of fused blocks in a compiled graph."""
    nodes = compiled.get_runtime_model().get_ops()
    return sum(node.get_rt_info()["layerType"].value == FUSED for node in nodes)


def to_f16(blocks: Sequence[FusedBlock]) -> list[Halves]:
    """Convert bfloat16 and float32 weights of `blocks` to float16.

    Returns the arrays of the new weights, which have to be kept alive.

    Raises StartError for a weight beyond the range of float16.
    """
    constants = [each for block in blocks for each in block.constants]
    wide = [each for each in constants if each.get_element_type() in (ov.Type.bf16, ov.Type.f32)]
    requests: dict[str, Any] = {}
    arrays = []
    for constant in wide:
        kind = str(constant.get_element_type())
        if kind not in requests:
            requests[kind] = _halving(constant.get_element_type())
        halves = _half(constant, requests[kind])
        replacement = Constant(ov.Tensor(halves, shared_memory=True), shared_memory=True)
        if constant.get_element_type() == ov.Type.f32:
            replacement = widened(replacement)
        for target in constant.output(0).get_target_inputs():
            target.replace_source_output(replacement.output(0))
        arrays.append(halves)
    return arrays


def block_of(down: Node) -> FusedBlock | None:
    """Return the block that ends with `down`, None if the plugin cannot fuse it."""
    product = _source(down, 0) if _is_product(down) else None
    if product is None or product.get_type_name() != "Multiply":
        return None
    activation, up = _source(product, 0), _source(product, 1)
    is_supported = activation.get_type_name() == "Gelu" or (
        activation.get_type_name() == "Swish" and len(activation.inputs()) == 1
    )
    gate = _source(activation, 0) if is_supported else None
    if gate is None or not (_is_product(gate) and _is_product(up)):
        return None
    constants = tuple(filter(None, map(_constant, (gate, up, down))))
    is_same_input = gate.input_value(0) == up.input_value(0)
    fits = len(constants) == 3 and is_same_input and all(_fits(each) for each in constants)
    return FusedBlock(constants) if fits else None


def _is_product(node: Node) -> bool:
    """Return whether `node` is a product of rank 3 with a matrix [out, in]."""
    return (
        node.get_type_name() == "MatMul"
        and len(node.get_output_partial_shape(0)) == 3
        and node.get_attributes()["transpose_b"]
        and not node.get_attributes()["transpose_a"]
    )


def _constant(product: Node) -> Node | None:
    """Return the weight of `product`, below its conversion and scale; None in another pattern."""
    node, is_scaled = _source(product, 1), False
    if node.get_type_name() == "Multiply":
        node, is_scaled = _source(node, 0), True
    if node.get_type_name() == "Convert":
        node = _source(node, 0)
    is_int8 = node.get_element_type() == ov.Type.i8
    return node if node.get_type_name() == "Constant" and is_scaled == is_int8 else None


def _source(node: Node, number: int) -> Node:
    return node.input_value(number).get_node()


def _fits(constant: Node) -> bool:
    sizes = constant.get_output_shape(0)
    multiple = 64 if constant.get_element_type() == ov.Type.i8 else 32
    return len(sizes) == 2 and not any(size % multiple for size in sizes)


def _half(constant: Node, request: Any) -> Halves:
    """Convert the matrix to float16, in memory pages of its own."""
    shape = tuple(constant.get_output_shape(0))
    halves: Halves = in_pages(shape, np.float16)
    request.set_input_tensor(constant.get_tensor_view())
    request.set_output_tensor(ov.Tensor(halves, shared_memory=True))
    request.infer()
    if not np.isfinite(halves).all():
        raise StartError(
            f"{constant.get_friendly_name()!r} has values beyond 65504, the maximum of a fused "
            "block in bfloat16; use dtype f32"
        )
    return halves


def _halving(kind: Any) -> Any:
    """Return a request that converts a matrix to float16, 100 times as fast as numpy."""
    x = Parameter(kind, ov.PartialShape([-1, -1]))
    model = ov.Model([opset.result(opset.convert(x, "f16"))], [x], "half")
    properties = {"INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
    return ov.Core().compile_model(model, "CPU", properties).create_infer_request()
