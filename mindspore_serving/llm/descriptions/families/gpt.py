"""Architectures with layer norms: GPT-2 and its relatives, Cohere's, and Nemotron.

Most of them have biases and feed-forward blocks without gates.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions import layer_kinds
from mindspore_serving.llm.descriptions.architecture import (
    LAYER,
    LAYER_PLAIN,
    LAYER_PLUS_ONE,
    OF_EACH_HEAD,
    PAIRS,
    Architecture,
    Config,
    Names,
)
from mindspore_serving.llm.descriptions.config_types import number, size
from mindspore_serving.llm.descriptions.families.llama import PLAIN, WINDOWED
from mindspore_serving.llm.descriptions.settings import PATTERN, TYPED_WINDOW, WINDOW

QKV = ("self_attention.query", "self_attention.key", "self_attention.value")  # split by `layouts`
BIASED: dict[str, Any] = {
    "norm": LAYER, "norm_bias": True, "qkv_bias": True, "output_bias": True, "mlp_bias": True
}  # fmt: skip

GPT2 = Architecture(
    names=Names(
        prefix="transformer.", embedding="transformer.wte", positions="transformer.wpe",
        norm="transformer.ln_f", layers="transformer.h", attention_norm="ln_1",
        qkv=("attn.c_attn",), output="attn.c_proj", mlp_norm="ln_2", gate_up=("mlp.c_fc",),
        down="mlp.c_proj", matrix="linear.weight",
    ),
    **BIASED, gated=False, rope="",
    defaults={"tie_word_embeddings": True, "activation_function": "gelu_new",
              "layer_norm_epsilon": 1e-5},
    fixed={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
           "add_cross_attention": (False,)},
)  # fmt: skip


def _neox(config: Config) -> Config:
    """Translate the setting names of the first checkpoints (Pythia)."""
    names = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
    return {new: config[old] for old, new in names.items() if config.get(old) is not None}


def _neox_variant(architecture: Architecture, config: Config) -> Architecture:
    return replace(architecture, parallel=bool(config.get("use_parallel_residual", True)))


def _gptj(config: Config) -> Config:
    heads = size(config, "num_attention_heads", "n_head")
    head_dim = size(config, "hidden_size", "n_embd") // heads
    return {"partial_rotary_factor": size(config, "rotary_dim") / max(head_dim, 1)}


def _opt(config: Config) -> Config:
    hidden, width = size(config, "hidden_size"), config.get("word_embed_proj_dim")
    if width not in (None, hidden):
        raise StartError(
            f"config.json has word_embed_proj_dim {width!r}, but hidden_size {hidden}: embeddings "
            "that are projected are not computed"
        )
    return {}


def _stablelm(architecture: Architecture, config: Config) -> Architecture:
    if not config.get("use_parallel_residual"):
        return architecture
    return replace(architecture, parallel=True, names=replace(architecture.names, mlp_norm=""))


def _falcon(architecture: Architecture, config: Config) -> Architecture:
    """Choose the norms of a layer: two in the second generation, one or a sequence in the first."""
    is_new = bool(config.get("new_decoder_architecture"))
    alibi = bool(config.get("alibi"))
    count = config.get("num_ln_in_parallel_attn")
    if is_new and count in (None, 2):
        names = replace(architecture.names, attention_norm="ln_attn", mlp_norm="ln_mlp")
        return replace(architecture, names=names, parallel=True, alibi=alibi)
    if is_new or config.get("parallel_attn", True):
        names = replace(architecture.names, mlp_norm="")
        return replace(architecture, names=names, parallel=True, alibi=alibi)
    return replace(architecture, alibi=alibi)


def _falcon_heads(config: Config) -> Config:
    heads = size(config, "num_attention_heads", "n_head")
    if config.get("new_decoder_architecture"):
        return {"num_key_value_heads": size(config, "num_kv_heads", "n_head_kv", default=heads)}
    return {"num_key_value_heads": 1 if config.get("multi_query", True) else heads}


def _cohere(config: Config) -> Config:
    return {"logits_scaling": 1 / number(config, "logit_scale")}


def _cohere2(config: Config) -> Config:
    """Give positions only to layers with a window."""
    count = size(config, "num_hidden_layers")
    sizes = layer_kinds.windows(config, count, COHERE)
    return {**_cohere(config), "no_rope_layers": [int(bool(window)) for window in sizes]}


COHERE = Architecture(
    names=Names(mlp_norm=""), norm=LAYER, parallel=True, rope=PAIRS, read=_cohere,
    qkv_bias="attention_bias", output_bias="attention_bias", qk_norm=OF_EACH_HEAD,
    qk_norm_key="use_qk_norm", fixed=PLAIN,
    defaults={"tie_word_embeddings": True, "rope_theta": 500_000.0, "logit_scale": 0.0625},
)  # fmt: skip
NO_RESIDUAL = {"apply_residual_connection_post_layernorm": (False,)}

ROWS: Mapping[str, Architecture] = {
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": Architecture(
        names=Names(
            embedding="gpt_neox.embed_in", norm="gpt_neox.final_layer_norm", head="embed_out",
            layers="gpt_neox.layers", fused="attention.query_key_value", qkv=QKV,
            output="attention.dense", gate_up=("mlp.dense_h_to_4h",), down="mlp.dense_4h_to_h",
        ),
        **BIASED | {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}, gated=False,
        read=_neox, variant=_neox_variant, unused=("is_decoder",),
        defaults={"partial_rotary_factor": 0.25, "attention_bias": True, "hidden_act": "gelu"},
    ),
    "GPTJForCausalLM": Architecture(
        names=Names(
            embedding="transformer.wte", norm="transformer.ln_f", layers="transformer.h",
            attention_norm="ln_1", qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
            output="attn.out_proj", mlp_norm="", gate_up=("mlp.fc_in",), down="mlp.fc_out",
        ),
        norm=LAYER, norm_bias=True, mlp_bias=True, head_bias=True, parallel=True, gated=False,
        rope=PAIRS, read=_gptj,
        defaults={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
    ),
    "PhiForCausalLM": Architecture(
        names=Names(
            norm="model.final_layernorm", output="self_attn.dense", mlp_norm="",
            gate_up=("mlp.fc1",), down="mlp.fc2",
        ),
        **BIASED, head_bias=True, parallel=True, gated=False,
        defaults={"partial_rotary_factor": 0.5, "hidden_act": "gelu_new"},
        fixed={"qk_layernorm": (False,)},
    ),
    "StableLmForCausalLM": Architecture(
        norm=LAYER, norm_bias=True, qkv_bias="use_qkv_bias", variant=_stablelm,
        defaults={"partial_rotary_factor": 0.25}, fixed={"qk_layernorm": (False,)},
    ),
    "Starcoder2ForCausalLM": Architecture(
        names=Names(gate_up=("mlp.c_fc",), down="mlp.c_proj"), norm=LAYER, norm_bias=True,
        qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", gated=False,
        follows=WINDOW,
        defaults={"use_bias": True, "tie_word_embeddings": True,
                  "hidden_act": "gelu_pytorch_tanh"},
    ),
    "OPTForCausalLM": Architecture(
        names=Names(
            prefix="model.", embedding="model.decoder.embed_tokens",
            positions="model.decoder.embed_positions", norm="model.decoder.final_layer_norm",
            layers="model.decoder.layers", attention_norm="self_attn_layer_norm",
            output="self_attn.out_proj", mlp_norm="final_layer_norm", gate_up=("fc1",),
            down="fc2",
        ),
        **BIASED | {"qkv_bias": "enable_bias", "output_bias": "enable_bias",
                    "mlp_bias": "enable_bias"},
        gated=False, rope="", read=_opt,
        defaults={"enable_bias": True, "tie_word_embeddings": True, "layer_norm_eps": 1e-5,
                  "activation_function": "relu"},
        fixed={"do_layer_norm_before": (True,), "_remove_final_layer_norm": (False,),
               "layer_norm_elementwise_affine": (True,)},
    ),
    "BloomForCausalLM": Architecture(
        names=Names(
            prefix="transformer.", embedding="transformer.word_embeddings",
            embedding_norm="transformer.word_embeddings_layernorm", norm="transformer.ln_f",
            layers="transformer.h", fused="self_attention.query_key_value", qkv=QKV,
            output="self_attention.dense", gate_up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
        ),
        **BIASED, gated=False, alibi=True,
        defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh",
                  "seq_length": 2048, "layer_norm_epsilon": 1e-5},
        fixed=NO_RESIDUAL, unused=("pretraining_tp",),
    ),
    "FalconForCausalLM": Architecture(
        names=Names(
            prefix="transformer.", embedding="transformer.word_embeddings",
            norm="transformer.ln_f", layers="transformer.h",
            fused="self_attention.query_key_value", qkv=QKV, output="self_attention.dense",
            gate_up=("mlp.dense_h_to_4h",), down="mlp.dense_4h_to_h",
        ),
        norm=LAYER, norm_bias=True, qkv_bias="bias", output_bias="bias", mlp_bias="bias",
        gated=False, alibi_scaled=True, read=_falcon_heads, variant=_falcon,
        unused=("multi_query", "parallel_attn", "num_kv_heads", "n_head_kv",
                "num_ln_in_parallel_attn"),
        defaults={"tie_word_embeddings": True, "activation": "gelu", "layer_norm_epsilon": 1e-5,
                  "max_position_embeddings": 2048},
        fixed=NO_RESIDUAL,
    ),
    "CohereForCausalLM": COHERE,
    "Cohere2ForCausalLM": replace(
        COHERE, qk_norm="", qk_norm_key="", read=_cohere2, follows=(*TYPED_WINDOW, PATTERN),
        defaults={**WINDOWED, "tie_word_embeddings": True, "logit_scale": 0.0625, PATTERN: 4},
    ),
    "NemotronForCausalLM": Architecture(
        norm=LAYER_PLUS_ONE, norm_bias=True, qkv_bias="attention_bias",
        output_bias="attention_bias", mlp_bias="mlp_bias", gated=False,
        names=Names(gate_up=("mlp.up_proj",)),
        defaults={"partial_rotary_factor": 0.5, "hidden_act": "relu2"},
    ),
    "OlmoForCausalLM": Architecture(
        norm=LAYER_PLAIN, qkv_bias="attention_bias", output_bias="attention_bias", fixed=PLAIN,
        defaults={"layer_norm_eps": 1e-5},
    ),
    "ArceeForCausalLM": Architecture(
        names=Names(gate_up=("mlp.up_proj",)), qkv_bias="attention_bias",
        output_bias="attention_bias", mlp_bias="mlp_bias", gated=False, fixed=PLAIN,
        defaults={"hidden_act": "relu2"},
    ),
}  # fmt: skip
