"""Whether attention is computed by kernels of our own: where Triton is, and where they agree with
the operations of PyTorch on this device.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from mindspore_serving import log
from mindspore_serving.llm.models.ops import AttentionSpec
from mindspore_serving.llm.runtimes.layout import Layout, RunnerLimits, lay_out
from mindspore_serving.llm.runtimes.torch.attention import AttentionPath, GatherPath
from mindspore_serving.llm.runtimes.torch.transfer import upload
from mindspore_serving.llm.step import Row, Step

if TYPE_CHECKING:
    from mindspore_serving.llm.runtimes.torch.paged import PagedPath

# What the two ways may differ by, as a share of the largest value.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
TRIED = ((1, 1), (1, 700), (5, 40), (90, 130))  # new tokens, length with them
GATHERED = "so keys and values are gathered in every step, and there are no CUDA graphs"


@dataclass(frozen=True, slots=True)
class Setting:
    """What attention is computed in and on."""

    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_size: int
    device: str


def open_kernels(specs: Collection[AttentionSpec], setting: Setting) -> "PagedPath | None":
    """The path by Triton's kernels for a model whose layers have `specs`, compiled and compared
    with the path by PyTorch's operations; None, with a warning that says why, if there is none.
    """
    try:
        from mindspore_serving.llm.runtimes.torch.paged import PagedPath
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        log.warning("triton is not installed, %s; `pip install triton` changes that", GATHERED)
        return None
    processors = torch.cuda.get_device_properties(setting.device).multi_processor_count
    for spec in specs:
        path = PagedPath.of(spec, setting.dtype, setting.block_size, processors)
        try:
            found = max(
                deviation(some, spec, setting) for some in (path, replace(path, num_processors=1))
            )
        except Exception as error:  # Triton's own, or of the compiler that it calls
            log.warning("the attention kernel does not run here, %s: %s", GATHERED, error)
            return None
        if not found <= TOLERANCE[setting.dtype]:
            log.warning("the attention kernel is off by %.2g here, %s", found, GATHERED)
            return None
    return path


def deviation(path: AttentionPath, spec: AttentionSpec, setting: Setting) -> float:
    """How far `path` is from gathering, on random numbers, as a share of the largest value."""
    layout = _layout(setting.block_size)
    generator = torch.Generator().manual_seed(0)
    num_blocks = sum(len(span.blocks) for span in layout.spans)
    shape = (num_blocks, setting.block_size, spec.num_kv_heads, spec.head_dim)

    def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(setting.device, dtype)

    keys, values = (drawn(shape, setting.kv_dtype) for _ in range(2))
    q = drawn((len(layout.slots), spec.num_heads * spec.head_dim), setting.dtype)
    found = []
    for some in (path, GatherPath(setting.block_size)):
        plan = some.plan(layout)
        attention = plan.attention(upload(plan.arrays, setting.device))
        found.append(attention.attend(keys, values, q, spec).float())
    return float((found[0] - found[1]).abs().max() / found[1].abs().max())


def _layout(block_size: int) -> Layout:
    rows, begin = [], 0
    for num_new, length in TRIED:
        end = begin - (-length // block_size)
        rows.append(Row([0] * num_new, length - num_new, range(begin, end), 1))
        begin = end
    return lay_out(Step(tuple(rows)), RunnerLimits(block_size, begin, 1, max(n for _, n in TRIED)))
