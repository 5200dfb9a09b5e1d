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


@dataclass(frozen=True, slots=True)
class Primitive:
    """One operator.

    `ascend` and `composed` take the options as keywords and return what a graph calls; `golden`
    takes the arguments, as arrays, and the options.
    """

    ascend: Callable[..., Any]
    composed: Callable[..., Any]
    golden: Callable[..., Any]


PRIMITIVES = {
    "rms_norm": Primitive(ascend.rms_norm, basic.ComposedRmsNorm, goldens.rms_norm),
    "rope": Primitive(ascend.rope, basic.ComposedRope, goldens.rope),
    "reshape_and_cache": Primitive(
        ascend.primitives.ReshapeAndCache, basic.ComposedReshapeAndCache, goldens.reshape_and_cache
    ),
    "attention_mask": Primitive(
        ascend.AttentionMask, attention.ComposedAttentionMask, goldens.attention_mask
    ),
    "flash_attention": Primitive(
        ascend.FlashAttention, attention.ComposedFlashAttention, goldens.flash_attention
    ),
    "paged_attention": Primitive(
        ascend.PagedAttention, attention.ComposedPagedAttention, goldens.paged_attention
    ),
    "swiglu": Primitive(ascend.Swiglu, basic.ComposedSwiglu, goldens.swiglu),
    "matmul": Primitive(ascend.matmul, ascend.matmul, goldens.matmul),
    "top_k": Primitive(basic.TopK, basic.TopK, goldens.top_k),
    "argmax": Primitive(ascend.argmax, ascend.argmax, goldens.argmax),
}


def make(name: str, filling: str, **options: Any) -> Any:
    """Return the primitive `name`, to be called in a graph; `filling` is "ascend" or "composed".

    Raises TypeError for an option that the filling lacks, as `window` of the device's attention.
    """
    row = PRIMITIVES[name]
    return (row.ascend if filling == "ascend" else row.composed)(**options)
