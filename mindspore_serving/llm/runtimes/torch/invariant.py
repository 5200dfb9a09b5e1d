"""Operations whose result for a token does not depend on the other tokens of the step, to the bit.

Matrix kernels choose the order of their sums by the number of rows, so rows are multiplied in tiles
of one size.  Functions that compute the rest of an array otherwise than its vectors are written in
those that do not.  What else the definitions use was tried, and computes each row by itself.
"""

from collections.abc import Iterable

import torch
from torch.nn import functional

from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.torch.ops import Tensor, TorchOps

TILE = 16  # rows of a product; fewer take another kernel, more would be wasted on one sequence
TURNS = (1, 5, 8, 15)  # places by which rows are moved within a tile to try a kernel


class InvariantOps(TorchOps):
    """`TorchOps` without adapters and experts."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x, weight, bias)

    def logits(self, x: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x, head, bias)

    def sigmoid(self, x: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-x))

    def silu(self, x: Tensor) -> Tensor:
        return x / (1 + torch.exp(-x))


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, in tiles of `TILE` rows."""
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
    """Raises StartError naming what there are no such operations for."""
    reasons = {
        f"device is {device!r}, expected 'cpu'": device != "cpu",
        f"dtype is {config.dtype!r}, expected 'f32'": dtype != torch.float32,
        "adapters are not computed so": config.has_adapters,
        f"tensor_parallel is {config.tensor_parallel}, expected 1": config.tensor_parallel > 1,
        f"{spec.architecture} has states beside keys and values, expected none": bool(spec.state),
        "images are not computed so, expected max_images=0": (
            spec.form.takes_images and config.max_images > 0
        ),
        f"{spec.architecture} has a mixture of experts, expected none": spec.mixture is not None,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise StartError(f"deterministic: {reason}")


def check_kernels(weights: Iterable[Tensor]) -> None:
    """Multiply random rows by a matrix of each shape of `weights`.  Raises StartError if a row's
    product changes with its place in the tile, or with the other rows.
    """
    generator = torch.Generator().manual_seed(0)
    matrices = {weight.shape: weight for weight in weights if weight.dim() == 2}
    for shape, weight in matrices.items():
        x = torch.randn(TILE, shape[1], generator=generator)
        expected = product(x, weight, None)
        alone = product(x[:1], weight, None)
        moved = (product(x.roll(turn, 0), weight, None).roll(-turn, 0) for turn in TURNS)
        if not all(torch.equal(one, expected[: len(one)]) for one in (alone, *moved)):
            raise StartError(
                f"deterministic: the product of rows with a matrix of {list(shape)} depends on the "
                "other rows on this processor; leave deterministic out"
            )
