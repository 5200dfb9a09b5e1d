"""Operators on images: samples, boxes, windows as columns and columns as images."""

from typing import Any

import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import (
    GRID_PADDING,
    INTERPOLATION,
    PAD_MODE,
    ROI_END_MODE,
    check_channels_first,
)
from mindspore_serving.mindir.tensors import (
    Bool,
    Float,
    Int,
    Ints,
    Operator,
    Tensor,
    UnsupportedTensor,
    cast,
    counting,
    dims,
    ints_of,
    like,
    reshape,
    size_of,
    unsqueeze,
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
    attributes = {
        "mode": INTERPOLATION.name("interpolation_mode", interpolation_mode, *_GRID_MODES),
        "padding_mode": GRID_PADDING.name("padding_mode", padding_mode, *_GRID_PADS),
        "align_corners": align_corners,
    }
    return op.grid_sample(x, grid, attributes)


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
    """Pool regions of interest; a row of `rois` is (image, x1, y1, x2, y2)."""
    is_shifted = ROI_END_MODE.name("roi_end_mode", roi_end_mode, "legacy", "shifted") == "shifted"
    numbers = cast(op.gather(rois, ints_of([0]), op.constant(1)).output(0), ov.Type.i32)
    boxes = op.gather(rois, ints_of([1, 2, 3, 4]), op.constant(1)).output(0)
    if is_shifted:
        # OpenVINO subtracts half a pixel from the scaled boxes in this mode: add it before.
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
    """Return the positions of the kept boxes (y1, x1, y2, x2), the best first."""
    count = cast(reshape(max_output_size, ()), ov.Type.i64)
    iou, score = reshape(iou_threshold, ()), reshape(score_threshold, ())
    return reshape(_suppressed(boxes, scores, count, iou, score, kind="i32"), (-1,))


def _suppressed(boxes: Any, scores: Any, count: Any, iou: Any, score: Any, *, kind: str) -> Any:
    """Return the positions [kept, 1] of at most `count` boxes, the best first."""
    node = op.non_max_suppression(
        unsqueeze(boxes, 0), unsqueeze(scores, 0, 1), count, iou, score, output_type=kind
    )
    positions = op.gather(node.output(0), ints_of([2]), op.constant(1))
    kept = cast(node.output(2), ov.Type.i64)
    return op.slice(positions, ints_of([0]), kept, ints_of([1])).output(0)


def _nms_with_mask(x: Tensor, iou_threshold: Float = 0.5) -> Any:
    """Return rows (x1, y1, x2, y2, score) by score, their numbers, and a mask of the kept ones."""
    scores = reshape(op.gather(x, ints_of([4]), op.constant(1)).output(0), (-1,))
    count = reshape(size_of(x, 0), ())
    order = op.topk(scores, count, 0, "max", "value", "i32", stable=True)
    rows = op.gather(x, order.output(1), op.constant(0)).output(0)
    # Ranks as scores: all boxes are candidates, and equal scores keep their order.
    ranks = op.range(count, op.constant(0), op.constant(-1), "f32")
    boxes = op.gather(rows, ints_of(range(4)), op.constant(1))
    iou, score = (op.constant(limit, ov.Type.f32) for limit in (iou_threshold, 0.0))
    kept = _suppressed(boxes, ranks, count, iou, score, kind="i64")
    zeros = op.broadcast(op.constant(0), size_of(x, 0))
    flags = op.broadcast(op.constant(1), size_of(kept, 0))
    mask = op.scatter_nd_update(zeros, kept, flags).output(0)
    return rows, counting(count, "i32"), cast(mask, ov.Type.boolean)


def _pair(values: tuple[int, ...]) -> list[int]:
    return list(values * 2 if len(values) == 1 else values)


def _columns(
    x: Any, kernel: list[int], dilations: list[int], pads: list[int], strides: list[int]
) -> Any:
    """Unfold (batch, channels, rows, columns) to (batch, channels, kernel, positions)."""
    padded = op.pad(x, ints_of([0, 0, *pads]), ints_of([0, 0, *pads]), "constant", like(0, x))
    patches = op.extract_image_patches(padded, kernel, strides, dilations, "valid")
    # (batch, kernel x channels, rows, columns): channels must be outside.
    shape = ints_of([0, kernel[0] * kernel[1], dims(x)[1], -1])
    return op.transpose(op.reshape(patches, shape, True), ints_of([0, 2, 1, 3])).output(0)


def _im2col_ext(
    x: Tensor, kernel_size: Ints, dilation: Ints = (1,), padding: Ints = (0,), stride: Ints = (1,)
) -> Any:
    """Unfold to (batch, channels x kernel, positions)."""
    sizes = [_pair(size) for size in (kernel_size, dilation, padding, stride)]
    area = sizes[0][0] * sizes[0][1]
    return op.reshape(_columns(x, *sizes), ints_of([0, area * dims(x)[1], -1]), True)


def _im2col(
    x: Tensor,
    *,
    ksizes: Ints,
    strides: Ints = (1,),
    dilations: Ints = (1,),
    padding_mode: Value = "CALCULATED",
    pads: Ints = (0,),
) -> Any:
    """Unfold to (batch, channels, kernel, positions)."""
    PAD_MODE.name("padding_mode", padding_mode, "pad")
    return _columns(x, _pair(ksizes), _pair(dilations), _pair(pads), _pair(strides))


def _col2im_ext(
    x: Tensor,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints = (1,),
    padding: Ints = (0,),
    stride: Ints = (1,),
) -> Any:
    """Fold (batch, channels x kernel, positions): sum the elements of each pixel."""
    pads = _pair(padding)
    sizes, kernel = (op.constant(_pair(size), ov.Type.i64) for size in (output_size, kernel_size))
    return op.col2im(x, sizes, kernel, _pair(stride), _pair(dilation), pads, pads)


def _col2im(
    x: Tensor,
    output_size: Ints,
    *,
    kernel_size: Ints,
    dilation: Ints = (1,),
    padding: Ints = (0,),
    stride: Ints = (1,),
) -> Any:
    """Fold (batch, channels, kernel, positions): sum the elements of each pixel."""
    _, channels, area, _ = dims(x)
    joined = op.reshape(x, ints_of([0, channels * area, -1]), True).output(0)
    return _col2im_ext(joined, output_size, kernel_size, dilation, padding, stride)


def _sampled(x: Any, rows: Any, columns: Any, mode: str = "bilinear", pad: str = "zeros") -> Any:
    """Sample `x` (batch, channels, height, width) at pixels given by (batch, rows, columns)."""
    positions = []
    for pixels, axis in ((columns, 3), (rows, 2)):
        size = cast(size_of(x, axis), ov.Type.f32)
        ahead = op.add(op.multiply(pixels, like(2, pixels)), like(1, pixels))
        scaled = op.subtract(op.divide(ahead, size), like(1, pixels))
        positions.append(unsqueeze(scaled, 3))
    attributes = {"align_corners": False, "mode": mode, "padding_mode": pad}
    return op.grid_sample(x, op.concat(positions, 3), attributes).output(0)


def _crop_and_resize(
    x: Tensor,
    boxes: Tensor,
    box_index: Tensor,
    crop_size: Ints,
    *,
    method: Value = "bilinear",
    extrapolation_value: Float = 0.0,
) -> Any:
    """Crop images (batch, height, width, channels), and resize to (boxes, *crop_size, channels).

    A box is (top, left, bottom, right) as fractions of the image.
    """
    if method not in ("bilinear", "nearest"):
        raise UnsupportedTensor(f"method {method!r}")
    x = op.transpose(cast(x, ov.Type.f32), ints_of([0, 3, 1, 2])).output(0)
    chosen = op.gather(x, box_index, op.constant(0)).output(0)
    lines, are_inside = [], []
    for side, (axis, count) in enumerate(zip((2, 3), _pair(crop_size), strict=True)):
        low, high = (op.gather(boxes, ints_of([at]), op.constant(1)) for at in (side, side + 2))
        last = cast(op.subtract(size_of(x, axis), ints_of([1])).output(0), ov.Type.f32)
        shares = [index / (count - 1) for index in range(count)] if count > 1 else [0.5]
        steps = op.constant([shares], ov.Type.f32)
        at = op.multiply(op.add(low, op.multiply(op.subtract(high, low), steps)), last)
        is_inside = op.logical_and(op.greater_equal(at, like(0, x)), op.less_equal(at, last))
        if method == "nearest":
            at = op.floor(op.add(at, like(0.5, x)))
        lines.append(unsqueeze(at, 2 - side))
        are_inside.append(unsqueeze(is_inside, 2 - side))
    area = op.logical_and(*are_inside).output(0)
    zeros = op.multiply(op.add(*lines), like(0, x))
    rows, columns = (op.add(line, zeros).output(0) for line in lines)
    values = _sampled(chosen, rows, columns, pad="border")
    shown = op.select(unsqueeze(area, 1), values, like(extrapolation_value, x))
    return op.transpose(shown, ints_of([0, 2, 3, 1]))


def _deformable_offsets(
    x: Tensor,
    offsets: Tensor,
    *,
    strides: Ints,
    pads: Ints,
    ksize: Ints,
    dilations: Ints = (1, 1, 1, 1),
    deformable_groups: Int = 1,
    modulated: Bool = True,
    format: Value = "NCHW",
) -> Any:
    """Return the samples that a deformable convolution multiplies with its kernel.

    They are (batch, channels, rows x kernel rows, columns x kernel columns).
    """
    channels = dims(x)[1]
    height, width = dims(offsets)[2:]
    rows, columns = _pair(ksize)
    groups = deformable_groups
    check_channels_first(format)
    if min(channels, height, width) < 0:
        raise UnsupportedTensor(f"shape {dims(x)} with offsets {dims(offsets)}")
    kinds = 3 if modulated else 2
    split = reshape(offsets, (-1, kinds, groups, rows, columns, height, width))
    parts = [op.gather(split, op.constant(kind), op.constant(1)).output(0) for kind in range(kinds)]
    (top, _, left, _), (_, _, down, right), (_, _, deep, wide) = pads, strides, dilations
    row_positions = [[y * down - top + i * deep for y in range(height)] for i in range(rows)]
    column_positions = [
        [at * right - left + j * wide for at in range(width)] for j in range(columns)
    ]
    row_base = reshape(
        op.constant(row_positions, ov.Type.f32).output(0), (1, 1, rows, 1, height, 1)
    )
    column_base = op.constant(column_positions, ov.Type.f32)
    column_base = reshape(column_base.output(0), (1, 1, 1, columns, 1, width))

    def joined(part: Any) -> Any:
        """Reorder to (batch x groups, rows x kernel rows, columns x kernel columns)."""
        turned = op.transpose(part, ints_of([0, 1, 4, 2, 5, 3])).output(0)
        return reshape(turned, (-1, height * rows, width * columns))

    at_rows, at_columns = op.add(parts[1], row_base), op.add(parts[0], column_base)
    sizes = [size_of(x, axis) for axis in (2, 3)]
    grouped_shape = op.concat([ints_of([-1, channels // groups]), *sizes], 0).output(0)
    values = _sampled(reshape(x, grouped_shape), joined(at_rows), joined(at_columns))
    if modulated:
        values = op.multiply(values, unsqueeze(joined(parts[2]), 1)).output(0)
    return reshape(values, (-1, channels, height * rows, width * columns))


OPERATORS: dict[str, Operator] = {
    "GridSampler2D": _grid_sample,
    "NMSWithMask": _nms_with_mask,
    "NonMaxSuppressionV3": _nms_v3,
    "ROIAlign": _roi_align,
    "Col2Im": _col2im,
    "Col2ImExt": _col2im_ext,
    "CropAndResize": _crop_and_resize,
    "DeformableOffsets": _deformable_offsets,
    "Im2Col": _im2col,
    "Im2ColExt": _im2col_ext,
}
