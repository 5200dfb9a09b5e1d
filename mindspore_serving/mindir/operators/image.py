"""Operators on pictures: resizing, sampling, boxes."""

from functools import partial
from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Int,
    Operator,
    Shape,
    Tensor,
    Unsupported,
    cast,
    dims,
    ints_of,
    rank,
    reshape,
    sizes_of,
)
from mindspore_serving.mindir.values import Value

_GRID_MODES = ("bilinear", "nearest", "bicubic")
_GRID_PADS = ("zeros", "border", "reflection")


def _coordinates(align_corners: bool, half_pixel_centers: bool) -> str:
    if align_corners:
        return "align_corners"
    return "half_pixel" if half_pixel_centers else "asymmetric"


def _resized(x: Any, sizes: Any, mode: str, coordinates: str, nearest: str = "floor") -> Any:
    """`sizes` of the last axes, a 1-D tensor."""
    count = rank(x) - 2
    return op.interpolate(
        x,
        sizes,
        mode,
        "sizes",
        coordinate_transformation_mode=coordinates,
        nearest_mode=nearest,
        axes=ints_of(range(2, 2 + count)),
    )


def _resize(
    mode: str,
    x: Tensor,
    size: Shape,
    align_corners: Bool = False,
    half_pixel_centers: Bool = False,
) -> Any:
    return _resized(x, size, mode, _coordinates(align_corners, half_pixel_centers))


def _resize_nearest(
    x: Tensor, size: Shape, align_corners: Bool = False, half_pixel_centers: Bool = False
) -> Any:
    how = _coordinates(align_corners, half_pixel_centers)
    return _resized(x, size, "nearest", how, "round_prefer_ceil" if align_corners else "floor")


def _resize_linear(x: Tensor, size: Shape, coordinate_transformation_mode: Value = 0) -> Any:
    how = {0: "align_corners", 1: "half_pixel"}.get(
        coordinate_transformation_mode, coordinate_transformation_mode
    )
    return _resized(x, size, "linear_onnx", str(how))


def _sizes(x: Any, output_size: Value, scales: Value) -> Any:
    """The sizes asked for, or the sizes of `x` times `scales`, rounded down."""
    if output_size is not None:
        return output_size
    count = rank(x) - 2
    known = dims(x)[2:]
    if scales is None:
        raise Unsupported("neither sizes nor scales")
    if -1 not in known:
        return ints_of([int(size * scale) for size, scale in zip(known, scales, strict=True)])
    own = op.slice(sizes_of(x), ints_of([2]), ints_of([2 + count]), ints_of([1]))
    scaled = op.multiply(op.convert(own, "f32"), op.constant(list(scales), ov.Type.f32))
    return op.convert(op.floor(scaled), "i64").output(0)


def _upsample_nearest(x: Tensor, output_size: Shape | None = None, scales: Value = None) -> Any:
    return _resized(x, _sizes(x, output_size, scales), "nearest", "asymmetric")


def _upsample(
    mode: str,
    x: Tensor,
    output_size: Shape | None = None,
    scales: Value = None,
    align_corners: Bool = False,
) -> Any:
    return _resized(x, _sizes(x, output_size, scales), mode, _coordinates(align_corners, True))


def _name(names: tuple[str, ...], mode: Value) -> str:
    return names[mode] if isinstance(mode, int) else str(mode)


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
            "mode": _name(_GRID_MODES, interpolation_mode),
            "padding_mode": _name(_GRID_PADS, padding_mode),
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
    roi_end_mode: Int = 1,
) -> Any:
    """A row of `rois` is (picture, x1, y1, x2, y2)."""
    if roi_end_mode:
        raise Unsupported("roi_end_mode 1, accepted is 0")
    numbers = cast(op.gather(rois, ints_of([0]), op.constant(1)).output(0), ov.Type.i32)
    boxes = op.gather(rois, ints_of([1, 2, 3, 4]), op.constant(1))
    return op.roi_align(
        x,
        boxes,
        reshape(numbers, (-1,)),
        pooled_height,
        pooled_width,
        sample_num,
        spatial_scale,
        "avg",
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
    **dict.fromkeys(
        ("UpsampleLinear1D", "UpsampleBilinear2D", "UpsampleTrilinear3D"),
        partial(_upsample, "linear_onnx"),
    ),
    "GridSampler2D": _grid_sample,
    "NMSWithMask": _nms_with_mask,
    "NonMaxSuppressionV3": _nms_v3,
    "ROIAlign": _roi_align,
    "ResizeBicubic": partial(_resize, "cubic"),
    "ResizeBilinearV2": partial(_resize, "linear_onnx"),
    "ResizeLinear1D": _resize_linear,
    "ResizeNearestNeighbor": _resize_nearest,
    "ResizeNearestNeighborV2": _resize_nearest,
    "UpsampleBicubic2D": partial(_upsample, "cubic"),
    "UpsampleNearest1D": _upsample_nearest,
    "UpsampleNearest2D": _upsample_nearest,
    "UpsampleNearest3D": _upsample_nearest,
}
