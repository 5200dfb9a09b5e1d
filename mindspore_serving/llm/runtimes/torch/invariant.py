"""Batch-invariant operations: a token's result does not depend on other tokens, to the bit.

Matrix kernels choose the order of their sums by the number of rows, so rows are multiplied in tiles
of one size.  Functions that treat the end of an array differently from its full vectors are
expressed by functions that do not.  The other operations of the definitions were tested and compute
each row independently.
"""

from collections.abc import Iterable

import torch
from torch.nn import functional

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.torch.ops import Tensor, TorchOps

TILE = 16  # rows of a product; fewer use another kernel, more would be wasted on one sequence
ROTATIONS = (1, 5, 8, 15)  # rows by which a tile is rotated to check a kernel


class InvariantOps(TorchOps):
    """Batch-invariant `TorchOps`, without adapters and experts."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x, weight, bias)

    def logits(self, x: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x, head, bias)

    def sigmoid(self, x: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-x))

    def silu(self, x: Tensor) -> Tensor:
        return x / (1 + torch.exp(-x))


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x @ weight.T + bias, in tiles of `TILE` rows."""
    count = len(x)
    padded = functional.pad(x, (0, 0, 0, -count % TILE))
    y = x.new_empty(len(padded), len(weight))
    for begin in range(0, len(padded), TILE):
        tile = slice(begin, begin + TILE)
        torch.mm(padded[tile], weight.T, out=y[tile])
    y = y[:count]
    return y if bias is None else y + bias


def check_deterministic(
    config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, device: str
) -> None:
    """Raise StartError naming an option or a part of the model without deterministic operations."""
    name = spec.architecture_name
    reasons = {
        f"device is {device!r}, expected 'cpu'": device != "cpu",
        f"dtype is {config.dtype!r}, expected 'f32'": dtype != torch.float32,
        "adapters are not supported": config.has_adapters,
        f"tensor_parallel is {config.tensor_parallel}, expected 1": config.tensor_parallel > 1,
        f"{name} has states beside keys and values, expected none": bool(spec.state),
        "images and sounds are not supported, expected max_images=0 and max_audios=0": (
            spec.architecture.has_features(config.max_images, config.max_audios)
        ),
        f"{name} has a mixture of experts, expected none": spec.mixture is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise StartError(f"deterministic: {reason}")


def check_kernels(weights: Iterable[Tensor]) -> None:
    """Check that a row's product is the same at any place in a tile and with any other rows.

    Multiplies random rows by a matrix of each shape in `weights`.

    Raises StartError if a product differs.
    """
    generator = torch.Generator().manual_seed(0)
    matrices = {weight.shape: weight for weight in weights if weight.dim() == 2}
    for shape, weight in matrices.items():
        x = torch.randn(TILE, shape[1], generator=generator)
        expected = product(x, weight, None)
        alone = product(x[:1], weight, None)
        rotated = (product(x.roll(shift, 0), weight, None).roll(-shift, 0) for shift in ROTATIONS)
        if not all(torch.equal(result, expected[: len(result)]) for result in (alone, *rotated)):
            raise StartError(
                f"deterministic: the product of rows with a matrix of {list(shape)} depends on the "
                "other rows on this processor; leave deterministic out"
            )
