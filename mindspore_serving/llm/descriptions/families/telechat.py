"""TeleChat and TeleChat2: Llama's blocks with keys and values in one matrix and few biases.

Their config.json has other names for sizes. Knows no runtime.
"""

import math
from dataclasses import replace

from mindspore_serving.llm.descriptions.architecture import Architecture, Config, Names
from mindspore_serving.llm.descriptions.config_types import size

THETA = 10000.0


def _telechat(config: Config) -> Config:
    """Limit positions to the trained length, up to which the rotary base is constant.

    The base grows with the power of two at which the trained length is beyond `base_seqlen`
    (NTK-aware scaling).
    """
    heads = size(config, "n_head", "num_attention_heads")
    dim = size(config, "hidden_size", "n_embed") // max(heads, 1)
    trained = size(config, "training_seqlen")
    if config.get("base_seqlen") is None or dim <= 2:
        positions = size(config, "max_position_embeddings", "training_seqlen")
        return {"max_position_embeddings": positions}
    doublings = math.ceil(math.log2(trained / size(config, "base_seqlen")) + 1)
    alpha = max(2.0**doublings - 1, 1.0)
    return {"max_position_embeddings": trained, "rope_theta": THETA * alpha ** (dim / (dim - 2))}


def _variant(architecture: Architecture, config: Config) -> Architecture:
    """Add the norm of the embeddings, which only some models have."""
    if not config.get("embed_layernorm"):
        return architecture
    norm = f"{architecture.names.embedding}_layernorm"
    return replace(architecture, names=replace(architecture.names, embedding_norm=norm))


TELECHAT = Architecture(
    names=Names(
        embedding="transformer.word_embeddings", norm="transformer.ln_f", layers="transformer.h",
        fused="self_attention.key_value", fuses_queries=False,
        qkv=("self_attention.query", "self_attention.key", "self_attention.value"),
        output="self_attention.dense",
    ),
    output_bias=True, mlp_bias=True, gate_bias=False, read=_telechat, variant=_variant,
    defaults={"layer_norm_epsilon": 1e-5, "training_seqlen": 8192},
    fixed={"apply_residual_connection_post_layernorm": (False,)},
    unused=("logn", "pretraining_tp", "masked_softmax_fusion", "offset_alibi", "skip_bias_add",
            "skip_bias_add_qkv", "seq_length", "n_inner"),
)  # fmt: skip

# All of these names are in use for the same layout of tensors.
NAMES = ("TeleChat2", "Telechat2", "TeleChat", "Telechat")
ROWS = {f"{name}ForCausalLM": TELECHAT for name in NAMES}
