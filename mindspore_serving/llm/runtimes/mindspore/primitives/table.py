"""The operators of an Ascend device, each with three fillings and its rules.

    ascend    makes the device's own primitive
    composed  makes the same of plain operators: any device, and where the device's is wrong
    golden    computes the same in numpy

All fillings of a row have the same options and arguments, and `make(...)(...)` in the `construct`
of a cell can be any of the first two.  What composed cells can do beyond the device's kernels
(windows, soft caps, ALiBi, sinks) is an option of theirs alone.  No row was verified on hardware.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspore_serving.llm.runtimes.mindspore.primitives import ascend, attention, basic, goldens
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import Contract
from mindspore_serving.llm.runtimes.mindspore.primitives.rules import RULES


@dataclass(frozen=True, slots=True)
class Primitive:
    """One operator.

    `ascend` and `composed` take the options as keywords and return what a graph calls; `golden`
    takes the arguments, as arrays, and the options; `contract` says what the device accepts.
    """

    ascend: Callable[..., Any]
    composed: Callable[..., Any]
    golden: Callable[..., Any]
    contract: Contract


_FILLINGS = {
    "rms_norm": (ascend.rms_norm, basic.ComposedRmsNorm, goldens.rms_norm),
    "add_rms_norm": (ascend.AddRmsNorm, basic.ComposedAddRmsNorm, goldens.add_rms_norm),
    "rope": (ascend.rope, basic.ComposedRope, goldens.rope),
    "reshape_and_cache": (
        ascend.primitives.ReshapeAndCache, basic.ComposedReshapeAndCache, goldens.reshape_and_cache,
    ),
    "attention_mask": (
        ascend.AttentionMask, attention.ComposedAttentionMask, goldens.attention_mask,
    ),
    "flash_attention": (
        ascend.FlashAttention, attention.ComposedFlashAttention, goldens.flash_attention,
    ),
    "paged_attention": (
        ascend.PagedAttention, attention.ComposedPagedAttention, goldens.paged_attention,
    ),
    "swiglu": (ascend.Swiglu, basic.ComposedSwiglu, goldens.swiglu),
    "matmul": (ascend.matmul, ascend.matmul, goldens.matmul),
    "top_k": (basic.TopK, basic.TopK, goldens.top_k),
    "argmax": (ascend.argmax, ascend.argmax, goldens.argmax),
}  # fmt: skip
PRIMITIVES = {name: Primitive(*row, RULES[name]) for name, row in _FILLINGS.items()}


def make(name: str, filling: str, **options: Any) -> Any:
    """Return the primitive `name`, to be called in a graph; `filling` is "ascend" or "composed".

    Raises TypeError for an option that the filling lacks, as `window` of the device's attention.
    """
    row = PRIMITIVES[name]
    return (row.ascend if filling == "ascend" else row.composed)(**options)
