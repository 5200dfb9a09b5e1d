"""Names of a GGUF file's tensors in checkpoints of Hugging Face's format.

llama.cpp has one name for each role, whatever the architecture; the checkpoint's names are in an
architecture's description (`descriptions.architecture`). Knows no numbers.
"""

from dataclasses import dataclass

from mindspore_serving.llm.descriptions.architecture import (
    DELTA_RULE,
    MAMBA,
    Architecture,
    Experts,
    Names,
    ParallelMixture,
)

# Role -> the matrices of each expert that the tensor stacks.
EXPERTS = {
    "ffn_gate_exps": ("gate",),
    "ffn_up_exps": ("up",),
    "ffn_gate_up_exps": ("gate", "up"),
    "ffn_down_exps": ("down",),
}
LATENT = {
    "attn_q_a": "q_a_proj",
    "attn_q_a_norm": "q_a_layernorm",
    "attn_q_b": "q_b_proj",
    "attn_kv_a_mqa": "kv_a_proj_with_mqa",
    "attn_kv_a_norm": "kv_a_layernorm",
    "attn_kv_b": "kv_b_proj",
}
# Gemma 3n and 4: inputs of layers, and several hidden states.
LATER_TOP = {
    "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
    "altup_proj": "altup_projections",
    "altup_unembd_proj": "altup_unembed_projections",
}
LATER = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
LATER_BARE = {"altup_correct_scale": "altup.correct_output_scale"}
RATE = "ssm_a"  # decay rates, of all states except mere convolutions
# End of a tensor's name -> ends of the names of the checkpoint's tensors that it splits into.
DELTA = {
    "attn_qkv.weight": ("in_proj_qkv.weight",),
    "attn_gate.weight": ("in_proj_z.weight",),
    "ssm_in.weight": ("in_proj_qkv.weight", "in_proj_z.weight"),  # in older files
    "ssm_alpha.weight": ("in_proj_a.weight",),
    "ssm_beta.weight": ("in_proj_b.weight",),
    "ssm_ba.weight": ("in_proj_b.weight", "in_proj_a.weight"),
    "ssm_conv1d.weight": ("conv1d.weight",),
    RATE: ("A_log",),
    "ssm_dt.bias": ("dt_bias",),
    "ssm_norm.weight": ("norm.weight",),
    "ssm_out.weight": ("out_proj.weight",),
}
MAMBA_2 = {
    **{end: DELTA[end] for end in (RATE, "ssm_dt.bias", "ssm_norm.weight", "ssm_out.weight")},
    "ssm_in.weight": ("in_proj.weight",),
    "ssm_conv1d.weight": ("conv1d.weight",),
    "ssm_conv1d.bias": ("conv1d.bias",),
    "ssm_d": ("D",),
}


@dataclass(frozen=True, slots=True)
class Roles:
    """Names by role.

    `top` are those of the model and `layer` those of each layer, below its number; `bare` are layer
    names without "weight" at the end. `experts` are the parts of each expert, below its number.
    `states` are those of layers with a state, whose roles include the rest of the name.
    """

    top: dict[str, str]
    layer: dict[str, str]
    bare: dict[str, str]
    experts: dict[str, tuple[str, ...]]
    states: dict[str, tuple[str, ...]]


def roles_of(architecture: Architecture) -> Roles:
    """Return the roles that an architecture has."""
    names = architecture.names
    top = {
        "token_embd": names.embedding,
        "token_embd_norm": names.embedding_norm or names.norm,  # LFM2's final norm
        "position_embd": names.positions,
        "output_norm": names.norm,
        "output": names.head,
    }
    layer = {**_attention(names), **_feed_forward(names)}
    bare, experts = {"attn_sinks": names.sinks}, dict[str, tuple[str, ...]]()
    bare["layer_output_scale"] = names.scalar
    if names.scalar or names.low_rank:
        stem = names.embedding.removesuffix("embed_tokens")
        top |= {role: f"{stem}{name}" for role, name in LATER_TOP.items()}
        layer, bare = {**layer, **LATER}, {**bare, **LATER_BARE}
    if architecture.experts:
        bare["exp_probs_b"] = architecture.experts.correction
        layer |= _mixture(architecture.experts)
        if architecture.experts.shares_dense:
            layer |= {f"{role}_shexp": name for role, name in _feed_forward(names).items()}
        stored = {
            role: tuple(getattr(architecture.experts, part) for part in parts)
            for role, parts in EXPERTS.items()
        }
        experts = {role: parts for role, parts in stored.items() if all(parts)}
        dense = architecture.experts.parallel
        layer |= _norms_of(dense) if dense else {}
        bare["ffn_gate_inp.scale"] = dense.router_gain if dense else ""
        bare["ffn_down_exps.scale"] = dense.gains if dense else ""
    return Roles(_named(top), _named(layer), _named(bare), experts, _states(architecture))


def _states(architecture: Architecture) -> dict[str, tuple[str, ...]]:
    kinds = {DELTA_RULE: ("linear_attn", DELTA), MAMBA: (architecture.names.mamba, MAMBA_2)}
    stem, roles = kinds.get(architecture.state, ("", {}))
    return {end: tuple(f"{stem}.{part}" for part in parts) for end, parts in roles.items()}


def _attention(names: Names) -> dict[str, str]:
    is_fused = len(names.qkv) == 1
    parts = ("attn_qkv",) if is_fused else ("attn_q", "attn_k", "attn_v")
    latent = {} if is_fused else {role: f"self_attn.{name}" for role, name in LATENT.items()}
    return {
        **latent,
        **dict(zip(parts, names.qkv, strict=True)),
        "attn_norm": names.attention_norm,
        "attn_q_norm": names.q_norm,
        "attn_k_norm": names.k_norm,
        "attn_output": names.output,
        # Two norms share this name: after attention, or before the feed-forward block.
        "post_attention_norm": names.after_attention or names.mlp_norm,
    }


def _feed_forward(names: Names) -> dict[str, str]:
    parts = ("ffn_gate", "ffn_up") if len(names.gate_up) == 2 else ("ffn_up",)
    return {
        **dict(zip(parts, names.gate_up, strict=True)),
        "ffn_norm": names.mlp_norm,
        "ffn_down": names.down,
        "post_ffw_norm": names.after_mlp,
    }


def _mixture(experts: Experts) -> dict[str, str]:
    shared = experts.shared
    parts = ("gate", "up", "down") if shared else ()
    latent = dict(zip(("ffn_latent_down", "ffn_latent_up"), experts.latent or (), strict=False))
    return {
        **latent,
        **{f"ffn_{part}_shexp": f"{shared}.{part}_proj" for part in parts},
        "ffn_gate_inp": experts.router,
        "ffn_gate_inp_shexp": experts.shared_gate,
    }


def _norms_of(mixture: ParallelMixture) -> dict[str, str]:
    return {
        "post_ffw_norm_1": mixture.dense_norm,
        "pre_ffw_norm_2": mixture.input_norm,
        "post_ffw_norm_2": mixture.output_norm,
    }


def _named(roles: dict[str, str]) -> dict[str, str]:
    return {role: name for role, name in roles.items() if name}
