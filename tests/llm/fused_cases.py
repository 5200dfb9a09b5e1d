"""Operations of `FusedOps` beside those of `TorchOps`, on random numbers."""

from collections.abc import Callable
from typing import Any

import torch

from mindspore_serving.llm.runtimes.torch.fused import FusedOps
from mindspore_serving.llm.runtimes.torch.lora import TorchAdapters
from mindspore_serving.llm.runtimes.torch.ops import TorchOps

TOKENS, HEADS = 5, 3
Case = Callable[[TorchOps, Callable[..., torch.Tensor]], torch.Tensor]


def rope(width: int, half: int, *, pairs: bool = False) -> Case:
    def case(ops: TorchOps, drawn: Callable[..., torch.Tensor]) -> torch.Tensor:
        tables = drawn(TOKENS, 1, half), drawn(TOKENS, 1, half)
        both = drawn(TOKENS, 2 * HEADS * width)  # a product that is split has strides of both
        return ops.rope(both[:, : HEADS * width], tables, HEADS, pairs=pairs)

    return case


CASES: dict[str, Case] = {
    "norm": lambda ops, drawn: ops.rms_norm(drawn(TOKENS, 48), drawn(48), 1e-5),
    "norm, plus one": lambda ops, drawn: ops.rms_norm(
        drawn(TOKENS, 64), drawn(64), 1e-6, plus_one=True
    ),
    "norm of heads": lambda ops, drawn: ops.head_rms_norm(
        drawn(TOKENS, 2 * HEADS * 16)[:, : HEADS * 16], drawn(16), HEADS, 1e-5
    ),
    "rope": rope(32, 16),
    "rope of some features": rope(40, 12),
    "rope of few features": rope(24, 4),
    "rope of pairs": rope(32, 16, pairs=True),
    "gate": lambda ops, drawn: ops.silu_mul(
        drawn(TOKENS, 1000)[:, :500], drawn(TOKENS, 1000)[:, 500:]
    ),
}


def error(name: str, dtype: torch.dtype, device: str) -> float:
    """The largest difference of a case from `TorchOps` in float64, as a share of its largest value.

    float64 is not what a norm computes in, but far more exact than either."""
    outputs = []
    for kind, computed in ((FusedOps, dtype), (TorchOps, torch.float64)):
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int, computed: torch.dtype = computed) -> torch.Tensor:
            numbers = torch.randn(shape, generator=generator)  # noqa: B023
            return numbers.to(dtype).to(device, computed)

        nothing: Any = None
        ops = kind(nothing, (nothing, nothing), computed, TorchAdapters())
        outputs.append(CASES[name](ops, drawn).double())
    fused, exact = outputs
    return float((fused - exact).abs().max() / exact.abs().max())
