"""Operators on pictures: sampling and boxes."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import (
    GRID_PADDING,
    INTERPOLATION,
    ROI_END_MODE,
)
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Int,
    Operator,
    Tensor,
    cast,
    ints_of,
    reshape,
    sizes_of,
)
from mindspore_serving.mindir.values import Value

_GRID_MODES = ("bilinear", "nearest")
_GRID_PADS = ("zeros", "border", "reflection")


def _grid_sample(
    x: Tensor,
    grid: Tensor,
    interpolation_mode: Value = 0,
    padding_mode: Value = 0,
    align_corners: Bool = False,
) -> Any:
    return op.grid_sample(
        x,
        grid,
        {
            "mode": INTERPOLATION.name("interpolation_mode", interpolation_mode, *_GRID_MODES),
            "padding_mode": GRID_PADDING.name("padding_mode", padding_mode, *_GRID_PADS),
            "align_corners": align_corners,
        },
    )


def _roi_align(
    x: Tensor,
    rois: Tensor,
    *,
    pooled_height: Int,
    pooled_width: Int,
    spatial_scale: Float,
    sample_num: Int = 2,
    roi_end_mode: Value = 1,
) -> Any:
    """A row of `rois` is (picture, x1, y1, x2, y2)."""
    is_shifted = ROI_END_MODE.name("roi_end_mode", roi_end_mode, "legacy", "shifted") == "shifted"
    numbers = cast(op.gather(rois, ints_of([0]), op.constant(1)).output(0), ov.Type.i32)
    boxes = op.gather(rois, ints_of([1, 2, 3, 4]), op.constant(1)).output(0)
    if is_shifted:
        # Half a pixel is added to what is scaled, which OpenVINO takes off again in this mode.
        half = 0.5 / spatial_scale
        shifts = op.constant([half, half, half + 1, half + 1], ov.Type.f32)
        boxes = op.add(boxes, cast(shifts.output(0), boxes.get_element_type())).output(0)
    return op.roi_align(
        x,
        boxes,
        reshape(numbers, (-1,)),
        pooled_height,
        pooled_width,
        sample_num,
        spatial_scale,
        "avg",
        "half_pixel_for_nn" if is_shifted else "asymmetric",
    )


def _nms_v3(
    boxes: Tensor,
    scores: Tensor,
    max_output_size: Tensor,
    iou_threshold: Tensor,
    score_threshold: Tensor,
) -> Any:
    """Positions of the boxes (y1, x1, y2, x2) that are kept, the best first."""
    one = ints_of([0])
    node = op.non_max_suppression(
        op.unsqueeze(boxes, one),
        op.unsqueeze(op.unsqueeze(scores, one), one),
        cast(reshape(max_output_size, ()), ov.Type.i64),
        reshape(iou_threshold, ()),
        reshape(score_threshold, ()),
        output_type="i32",
    )
    count = cast(node.output(2), ov.Type.i64)
    rows = op.gather(node.output(0), ints_of([2]), op.constant(1))
    return op.slice(reshape(rows.output(0), (-1,)), ints_of([0]), count, ints_of([1]))


def _nms_with_mask(x: Tensor, iou_threshold: Float = 0.5) -> Any:
    """Rows (x1, y1, x2, y2, score) by score, their numbers, and which are kept."""
    one = ints_of([0])
    scores = reshape(op.gather(x, ints_of([4]), op.constant(1)).output(0), (-1,))
    count = op.gather(sizes_of(x), one, one)
    order = op.topk(scores, reshape(count.output(0), ()), 0, "max", "value", "i32", stable=True)
    rows = op.gather(x, order.output(1), op.constant(0)).output(0)
    # Scores by place: all are candidates, and the order stays where scores are equal.
    places = op.range(reshape(count.output(0), ()), op.constant(0), op.constant(-1), "f32")
    node = op.non_max_suppression(
        op.unsqueeze(op.gather(rows, ints_of(range(4)), op.constant(1)), one),
        op.unsqueeze(op.unsqueeze(places, one), one),
        reshape(count.output(0), ()),
        op.constant(iou_threshold, ov.Type.f32),
        op.constant(0.0, ov.Type.f32),
        output_type="i64",
    )
    kept = op.gather(node.output(0), ints_of([2]), op.constant(1))
    kept = op.slice(kept, one, cast(node.output(2), ov.Type.i64), ints_of([1]))
    zeros = op.broadcast(op.constant(0), count)
    ones = op.broadcast(op.constant(1), op.gather(op.shape_of(kept, "i64"), one, one))
    mask = op.scatter_nd_update(zeros, kept, ones).output(0)
    numbers = op.range(op.constant(0), reshape(count.output(0), ()), op.constant(1), "i32")
    return rows, numbers, cast(mask, ov.Type.boolean)


OPERATORS: dict[str, Operator] = {
    "GridSampler2D": _grid_sample,
    "NMSWithMask": _nms_with_mask,
    "NonMaxSuppressionV3": _nms_v3,
    "ROIAlign": _roi_align,
}
