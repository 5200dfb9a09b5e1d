"""Workaround for operations that OpenVINO's CPU kernels compute wrongly."""

from typing import Any

import numpy as np

_SWAPPED_AXES = [0, 2, 1, 3]


def guard(model: Any) -> None:
    """Change `model`, an `openvino.Model`, so that attention with as many heads as tokens is right.

    OpenVINO 2026.4 fuses attention and the transposition after it into one kernel, and omits the
    transposition if both axes have the same known size.  With a fifth axis it is not fused.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Transpose" and _is_miscomputed(node):
            _with_fifth_axis(node)


def _is_miscomputed(node: Any) -> bool:
    order = node.input_value(1).get_node()
    if order.get_type_name() != "Constant" or order.get_data().tolist() != _SWAPPED_AXES:
        return False
    shape = node.get_input_partial_shape(0)
    return bool(shape.rank.is_static and shape[1].is_static and shape[1] == shape[2])


def _with_fifth_axis(node: Any) -> None:
    from openvino import opset16 as op

    end = op.constant(np.array([-1]))
    wide = op.unsqueeze(node.input_value(0), end)
    transposed = op.transpose(wide, op.constant(np.array([*_SWAPPED_AXES, 4])))
    flat = op.squeeze(transposed, end)
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(flat.output(0))
    before, after = (output.get_tensor() for output in (node.output(0), flat.output(0)))
    names = before.get_names()
    before.set_names(set())
    after.set_names(names)
