"""Baichuan 1 and 2: Llama with q, k and v in one matrix; 13B has ALiBi in place of rotations.

`layouts` has normalised the output matrix of the second generation, and says by the tensor
`model.alibi_slopes` that a checkpoint is one of ALiBi's.
"""

from mindspore_serving.llm.models.layouts import ALIBI, alibi_slopes
from mindspore_serving.llm.models.llama import Names, decode
from mindspore_serving.llm.models.ops import Inputs, Ops, Tensor
from mindspore_serving.llm.models.spec import ModelSpec

NAMES = Names(qkv=("self_attn.W_pack",))


def decoder(ops: Ops, spec: ModelSpec, inputs: Inputs) -> Tensor:
    """Logits of `inputs.rows`, [num_logits, vocab]."""
    slopes = alibi_slopes(spec.num_heads) if ops.has_weight(ALIBI) else None
    return decode(ops, spec, inputs, NAMES, slopes=slopes)
