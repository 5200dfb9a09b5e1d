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

from mindspore_serving.llm.runtimes.mindspore.primitives import (
    ascend,
    attention,
    basic,
    experts,
    goldens,
    goldens_experts,
    quantised,
)
from mindspore_serving.llm.runtimes.mindspore.primitives.contracts import Contract
from mindspore_serving.llm.runtimes.mindspore.primitives.rules import RULES


@dataclass(frozen=True, slots=True)
class DevicePrimitive:
    """An operator of the device.

    `ascend` and `composed` take the options as keywords and return what a graph calls; `golden`
    takes the arguments, as arrays, and the options; `contract` says what the device accepts.
    """

    ascend: Callable[..., Any]
    composed: Callable[..., Any]
    golden: Callable[..., Any]
    contract: Contract


_FILLINGS: dict[str, tuple[Callable[..., Any], ...]] = {
    "rms_norm": (ascend.rms_norm, basic.ComposedRmsNorm, goldens.rms_norm),
    "add_rms_norm": (ascend.AddRmsNorm, basic.ComposedAddRmsNorm, goldens.add_rms_norm),
    "rope": (ascend.rope, basic.ComposedRope, goldens.rope),
    "reshape_and_cache": (
        ascend.reshape_and_cache, basic.ComposedReshapeAndCache, goldens.reshape_and_cache,
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
    # Between CPUs the same operators compute; goldens take the parts of all ranks.
    "all_reduce": (ascend.all_reduce, ascend.all_reduce, goldens.all_reduce),
    "all_gather": (ascend.all_gather, ascend.all_gather, goldens.all_gather),
    "weight_quant_matmul": (
        ascend.WeightQuantMatmul, quantised.ComposedWeightQuantMatmul,
        goldens_experts.weight_quant_matmul,
    ),
    "dynamic_quant": (
        ascend.DynamicQuant, quantised.ComposedDynamicQuant, goldens_experts.dynamic_quant,
    ),
    "quant_matmul": (
        ascend.QuantMatmul, quantised.ComposedQuantMatmul, goldens_experts.quant_matmul,
    ),
    "quantise": (ascend.Quantise, quantised.ComposedQuantise, goldens_experts.quantise),
    "moe_gating_topk_softmax": (
        ascend.GatingTopKSoftmax, experts.ComposedGatingTopKSoftmax,
        goldens_experts.moe_gating_topk_softmax,
    ),
    "moe_init_routing": (
        ascend.InitRouting, experts.ComposedInitRouting, goldens_experts.moe_init_routing,
    ),
    "grouped_matmul": (
        ascend.GroupedMatmul, experts.ComposedGroupedMatmul, goldens_experts.grouped_matmul,
    ),
    "moe_unpermute": (
        ascend.TokenUnpermute, experts.ComposedTokenUnpermute, goldens_experts.moe_unpermute,
    ),
    "fused_add_topk_div": (
        ascend.AddTopKDiv, experts.ComposedAddTopKDiv, goldens_experts.fused_add_topk_div,
    ),
    "mla": (ascend.Mla, experts.ComposedMla, goldens_experts.mla),
}  # fmt: skip
PRIMITIVES = {
    name: DevicePrimitive(device, composed, golden, RULES[name])
    for name, (device, composed, golden) in _FILLINGS.items()
}


def make(name: str, filling: str, **options: Any) -> Any:
    """Return the primitive `name`, to be called in a graph; `filling` is "ascend" or "composed".

    Raises TypeError for an option that the filling lacks, as `window` of the device's attention.
    """
    row = PRIMITIVES[name]
    return (row.ascend if filling == "ascend" else row.composed)(**options)
