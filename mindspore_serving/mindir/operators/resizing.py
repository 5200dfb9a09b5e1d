"""Resizing of images: by OpenVINO where it samples at the same points, else by weighted taps.

OpenVINO takes the step between points from the sizes.  A scale that does not divide them has a step
of its own, and so have MindSpore's cubic weights: there every output position is a sum of input
positions (taps), axis by axis.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset16 as op

from mindspore_serving.mindir.operators.enumerations import COORDINATES
from mindspore_serving.mindir.tensors import (
    Bool,
    Operator,
    Shape,
    Tensor,
    UnsupportedTensor,
    cast,
    dims,
    ints_of,
    known,
    rank,
    reshape,
    size_of,
    tensor,
)
from mindspore_serving.mindir.values import Value

ALIGN, HALF, ASYMMETRIC, CENTER = "align_corners", "half_pixel", "asymmetric", "center"
Taps = list[tuple[Any, Any]]
"""(positions in the input, weights or None for 1), each of one entry per output position."""
ToTaps = Callable[[Any, Any], Taps]
"""Taps of exact positions (float32) in an axis of a size (1 int64)."""

_PRECISION = 1024  # MindSpore's cubic weights are those of the nearest of so many fractions


def _coordinates(align_corners: bool, half_pixel_centers: bool) -> str:
    if align_corners:
        return ALIGN
    return HALF if half_pixel_centers else ASYMMETRIC


def _native(x: Any, sizes: Any, mode: str, how: str, nearest: str = "floor") -> Any:
    """Resize with OpenVINO; `sizes` is a 1-D tensor of the sizes of the last axes."""
    return op.interpolate(
        x,
        sizes,
        mode,
        "sizes",
        coordinate_transformation_mode=how,
        nearest_mode=nearest,
        axes=ints_of(range(2, rank(x))),
    )


def _f32(value: float) -> Any:
    return op.constant(value, ov.Type.f32)


def _positions(size: Any, length: Any, how: str, scale: float | None) -> Any:
    """Return the float32 positions of `length` outputs on an axis of `size`."""
    stop = cast(reshape(length, ()), ov.Type.f32)
    positions = op.range(_f32(0.0), stop, _f32(1.0), "f32").output(0)
    before, after = cast(size, ov.Type.f32), cast(length, ov.Type.f32)
    unit = _f32(1.0)
    if how == ALIGN:
        gaps = op.maximum(op.subtract(after, unit), unit)
        return op.multiply(positions, op.divide(op.subtract(before, unit), gaps)).output(0)
    step = op.divide(before, after) if scale is None else _f32(1.0 / scale)
    if how == ASYMMETRIC:
        return op.multiply(positions, step).output(0)
    centers = op.multiply(op.add(positions, _f32(0.5)), step)
    return (centers if how == CENTER else op.subtract(centers, _f32(0.5))).output(0)


def _inside(positions: Any, size: Any) -> Any:
    last = op.subtract(cast(size, ov.Type.f32), _f32(1.0))
    return op.minimum(op.maximum(positions, _f32(0.0)), last).output(0)


def _nearest_taps(positions: Any, size: Any) -> Taps:
    return [(_inside(op.floor(positions), size), None)]


def _linear_taps(positions: Any, size: Any) -> Taps:
    positions = _inside(positions, size)
    first = op.floor(positions)
    weight = op.subtract(positions, first)
    after = op.add(first, _f32(1.0))
    return [
        (_inside(first, size), op.subtract(_f32(1.0), weight)),
        (_inside(after, size), weight),
    ]


def _cubic_taps(a: float, drops_outside: bool, is_rounded: bool, positions: Any, size: Any) -> Taps:
    """Return taps of a cubic with parameter `a`; outside the border is dropped, or repeated."""
    first = op.floor(positions)
    part = op.subtract(positions, first)
    if is_rounded:
        part = op.divide(op.round(op.multiply(part, _f32(_PRECISION))), _f32(_PRECISION))
    taps = []
    for number in (-1.0, 0.0, 1.0, 2.0):
        position = op.add(first, _f32(number))
        behind = op.subtract(_f32(number), part)
        distance = behind if number > 0 else op.negative(behind)
        weight = _cubic(a, distance, number in (0.0, 1.0))
        bounded = _inside(position, size)
        if drops_outside:
            weight = op.select(op.equal(bounded, position), weight, _f32(0.0))
        taps.append((bounded, weight))
    if not drops_outside:
        return taps
    total = taps[0][1]
    for _, weight in taps[1:]:
        total = op.add(total, weight)
    return [(position, op.divide(weight, total)) for position, weight in taps]


def _cubic(a: float, x: Any, is_inner: bool) -> Any:
    """Compute the weight at distance `x`: up to 1 for inner taps, above 1 for outer ones."""
    factors = (a + 2, -(a + 3), 0.0, 1.0) if is_inner else (a, -5 * a, 8 * a, -4 * a)
    y: Any = _f32(0.0)
    for factor in factors:
        y = op.add(op.multiply(y, x), _f32(factor))
    return y


def _resampled(
    x: Any, sizes: Any, to_taps: ToTaps, how: str, scales: Sequence[float | None]
) -> Any:
    """Resize the axes behind the channels one after another by weighted taps."""
    kind = x.get_element_type()
    for number, scale in enumerate(scales):
        axis = number + 2
        size, length = size_of(x, axis), op.gather(sizes, ints_of([number]), ints_of([0]))
        positions = _positions(size, length.output(0), how, scale)
        shape = [1] * rank(x)
        shape[axis] = -1
        total = None
        for position, weight in to_taps(positions, size):
            part = op.gather(x, cast(position, ov.Type.i64), ints_of([axis])).output(0)
            if weight is not None:
                part = op.multiply(cast(part, ov.Type.f32), reshape(weight, shape)).output(0)
            total = part if total is None else op.add(total, part).output(0)
        x = total
    return cast(x, kind)


def _open_scales(x: Any) -> list[float | None]:
    return [None] * (rank(x) - 2)


def _resize_linear(x: Tensor, size: Shape, align_corners: Bool = False, half: Bool = False) -> Any:
    return _native(x, size, "linear_onnx", _coordinates(align_corners, half))


def _resize_linear_1d(x: Tensor, size: Shape, coordinate_transformation_mode: Value = 1) -> Any:
    name = COORDINATES.name(
        "coordinate_transformation_mode", coordinate_transformation_mode, ALIGN, HALF
    )
    return _native(x, size, "linear_onnx", name)


def _resize_cubic(
    x: Tensor, size: Shape, align_corners: Bool = False, half_pixel_centers: Bool = False
) -> Any:
    """Resize by a cubic; with half pixels by a = -0.5, without elements outside the border."""
    a = -0.5 if half_pixel_centers else -0.75
    taps = partial(_cubic_taps, a, half_pixel_centers, True)
    how = _coordinates(align_corners, half_pixel_centers)
    return _resampled(x, size, taps, how, _open_scales(x))


def _resize_nearest(
    x: Tensor, size: Shape, align_corners: Bool = False, half_pixel_centers: Bool = False
) -> Any:
    if align_corners:
        return _native(x, size, "nearest", ALIGN, "round_prefer_ceil")
    return _nearest(x, size, CENTER if half_pixel_centers else ASYMMETRIC, _open_scales(x))


def _nearest(x: Any, sizes: Any, how: str, steps: list[float | None]) -> Any:
    """Resize to nearest elements; by OpenVINO if each is repeated equally often."""
    lengths, before = known(sizes), dims(x)[2:]
    is_known = lengths is not None and min(before) > 0 and steps == _open_scales(x)
    if is_known and not (lengths % np.array(before)).any():
        return _native(x, sizes, "nearest", ASYMMETRIC)
    return _resampled(x, sizes, _nearest_taps, how, steps)


def _sizes(x: Any, output_size: Value, scales: Value) -> tuple[Any, list[float | None]]:
    """Return the sizes of the result, and for each axis the scale if it defines the step."""
    if output_size is not None:
        return output_size, _open_scales(x)
    if scales is None:
        raise UnsupportedTensor("neither sizes nor scales")
    factors = [_scale(factor) for factor in scales]
    sizes: list[Any] = []
    steps: list[float | None] = []
    for axis, factor in enumerate(factors, 2):
        size = dims(x)[axis]
        is_whole = (factor if size < 0 else size * factor).is_integer()
        steps.append(None if is_whole else factor)
        sizes.append(int(size * factor) if size >= 0 else _scaled(x, axis, factor))
    if all(isinstance(size, int) for size in sizes):
        return ints_of(sizes), steps
    parts = [ints_of([size]) if isinstance(size, int) else size for size in sizes]
    return op.concat(parts, 0).output(0), steps


def _scale(number: Value) -> float:
    array = known(number)
    if array is None:
        raise UnsupportedTensor("scales that depend on the data")
    return float(array.ravel()[0])


def _scaled(x: Any, axis: int, factor: float) -> Any:
    size = cast(size_of(x, axis), ov.Type.f32)
    return cast(op.floor(op.multiply(size, tensor(factor))).output(0), ov.Type.i64)


def _upsample_nearest(x: Tensor, output_size: Shape | None = None, scales: Value = None) -> Any:
    sizes, steps = _sizes(x, output_size, scales)
    return _nearest(x, sizes, ASYMMETRIC, steps)


def _upsample(
    mode: str,
    to_taps: ToTaps,
    x: Tensor,
    output_size: Shape | None = None,
    scales: Value = None,
    align_corners: Bool = False,
) -> Any:
    sizes, steps = _sizes(x, output_size, scales)
    if align_corners or all(step is None for step in steps):
        return _native(x, sizes, mode, _coordinates(align_corners, True))
    return _resampled(x, sizes, to_taps, HALF, steps)


_LINEAR = partial(_upsample, "linear_onnx", _linear_taps)

OPERATORS: dict[str, Operator] = {
    **dict.fromkeys(("UpsampleLinear1D", "UpsampleBilinear2D", "UpsampleTrilinear3D"), _LINEAR),
    **{f"UpsampleNearest{count}D": _upsample_nearest for count in (1, 2, 3)},
    "ResizeBicubic": _resize_cubic,
    "ResizeBilinearV2": _resize_linear,
    "ResizeLinear1D": _resize_linear_1d,
    "ResizeNearestNeighbor": _resize_nearest,
    "ResizeNearestNeighborV2": _resize_nearest,
    "UpsampleBicubic2D": partial(_upsample, "cubic", partial(_cubic_taps, -0.75, False, False)),
}
