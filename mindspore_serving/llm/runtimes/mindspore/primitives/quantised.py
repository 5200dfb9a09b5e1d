"""Products with quantised weights and activations, composed of plain operators.

They are for checks and as a fallback: each call widens its weight matrix, which on a CPU costs more
than the product of few tokens.
"""

from typing import Any, TypeAlias

from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops

Tensor: TypeAlias = Any  # a mindspore.Tensor
MIN_SCALE = 1e-12  # of a row of zeros


class ComposedWeightQuantMatmul(mindspore.nn.Cell):  # type: ignore[misc]
    """The product of x, [T, K], with (weight + offset) * scale.

    With 8 bits the weight is int8 [K, N]; with 4 the int8 storage of qint4x2, [K, N / 2], element
    2j in the low half of a byte.  Scale and offset are [N], or with `group_size` [K / group_size,
    N].
    """

    def __init__(self, bits: int = 8, group_size: int = 0) -> None:
        super().__init__()
        self.bits = bits
        self.group_size = group_size
        self.matmul = ops.MatMul()

    def construct(self, x: Tensor, weight: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
        wide = weight.astype(mindspore.float32)
        columns = scale.shape[-1]
        if self.bits == 4:
            high = ops.floor(wide / 16)
            low = wide - 16 * high  # 0 to 15; from 8 on it is negative
            low = low - 16 * (low >= 8).astype(mindspore.float32)
            wide = ops.reshape(ops.stack((low, high), -1), (-1, columns))
        if self.group_size > 0:
            wide = ops.reshape(wide, (-1, self.group_size, columns))
            scale = ops.expand_dims(scale, 1)
        if offset is not None:
            if self.group_size > 0:
                offset = ops.expand_dims(offset, 1)
            wide = wide + offset.astype(mindspore.float32)
        wide = ops.reshape(wide * scale.astype(mindspore.float32), (-1, columns))
        return self.matmul(x, wide.astype(x.dtype))


class ComposedDynamicQuant(mindspore.nn.Cell):  # type: ignore[misc]
    """Rows of x, [T, K], as int8, and the scale of each, float32, such that its largest is 127."""

    def __init__(self) -> None:
        super().__init__()
        self.max = ops.ReduceMax(keep_dims=True)

    def construct(self, x: Tensor, smooth: Tensor | None = None) -> tuple[Tensor, Tensor]:
        wide = x.astype(mindspore.float32)
        if smooth is not None:
            wide = wide * smooth.astype(mindspore.float32)
        scale = ops.maximum(self.max(ops.abs(wide), -1) / 127, MIN_SCALE)
        return ops.round(wide / scale).astype(mindspore.int8), ops.reshape(scale, (-1,))


class ComposedQuantMatmul(mindspore.nn.Cell):  # type: ignore[misc]
    """(x weight.T + bias) * scale * pertoken, of int8 x [T, K] and weight [N, K].

    The sum is in float32, exact up to K = 1040.  An int64 scale holds the bits of a float32.
    """

    def __init__(self, dtype: str = "float16") -> None:
        super().__init__()
        self.dtype = getattr(mindspore, dtype)
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(
        self, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, pertoken: Tensor | None
    ) -> Tensor:
        out = self.matmul(x.astype(mindspore.float32), weight.astype(mindspore.float32))
        if bias is not None:
            out = out + bias.astype(mindspore.float32)
        if scale.dtype == mindspore.int64:
            exponent = (scale // 2**23).astype(mindspore.float32) - 150
            mantissa = (scale % 2**23 + 2**23).astype(mindspore.float32)
            scale = mantissa * ops.pow(2.0, exponent)
        out = out * scale.astype(mindspore.float32)
        if pertoken is not None:
            out = out * ops.expand_dims(pertoken, 1)
        return out.astype(self.dtype)


class ComposedQuantise(mindspore.nn.Cell):  # type: ignore[misc]
    """x as int8: round(x / scale) + offset with an int8 offset, else round(x * scale + offset)."""

    def construct(self, x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        wide, scale = x.astype(mindspore.float32), scale.astype(mindspore.float32)
        shift = offset.astype(mindspore.float32)
        if offset.dtype == mindspore.int8:
            rounded = ops.round(wide / scale) + shift
        else:
            rounded = ops.round(wide * scale + shift)
        return ops.clamp(rounded, -128.0, 127.0).astype(mindspore.int8)
