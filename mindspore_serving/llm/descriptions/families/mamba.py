"""Architectures with Mamba-2 layers, some of them with attention.

A row names only differences from Llama.
"""

from dataclasses import replace

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import (
    HALVES,
    MAMBA,
    Architecture,
    Config,
    Experts,
    Names,
)
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.descriptions.families.llama import ATTENTION_BIASED, PLAIN
from mindspore_serving.llm.descriptions.families.mixtures import GRANITE_EXPERTS
from mindspore_serving.llm.descriptions.layer_kinds import FULL
from mindspore_serving.llm.descriptions.settings import GROUPED, PROJECTION_SCALES, SCALES

KINDS = {"linear_attention": MAMBA, "attention": FULL}  # other names of kinds of layers
LETTERS = {"M": MAMBA, "*": FULL, "-": "mlp", "E": "moe"}
NORMED = {"mamba_rms_norm": True, "mamba_norm_before_gate": False}
STATE_SETTINGS = ("mamba_d_head", "mamba_proj_bias", "time_step_limit")  # unused without states
SIZES = {
    **NORMED, "mamba_expand": 2, "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_conv_bias": True,
}  # fmt: skip


def _granite4(config: Config) -> Config:
    return {
        "layer_types": _granite4_kinds(config),
        "intermediate_size": config.get("shared_intermediate_size"),
    }


def _granite4_kinds(config: Config) -> list[str]:
    kinds = config.get("layer_types") or [MAMBA] * size(config, "num_hidden_layers")
    return [KINDS.get(kind, kind) for kind in kinds]


def _granite4_form(architecture: Architecture, config: Config) -> Architecture:
    kind = config.get("position_embedding_type")
    if kind not in (None, "nope", "rope"):
        raise StartError(f"config.json has position_embedding_type {kind!r}, expected rope or none")
    has_experts = config["num_local_experts"] != 0
    return replace(
        architecture,
        rope=HALVES if kind == "rope" else "",
        experts=architecture.experts if has_experts else None,
    )


def _bamba(config: Config) -> Config:
    full = config.get("attn_layer_indices") or ()
    count = size(config, "num_hidden_layers")
    return {"layer_types": [FULL if i in full else MAMBA for i in range(count)]}


def _falcon_h1(config: Config) -> Config:
    return {"layer_types": [MAMBA] * size(config, "num_hidden_layers")}


def _nemotron_h(config: Config) -> Config:
    """Translate the names of sizes; a layer has a single block."""
    kinds = _nemotron_h_kinds(config)
    heads, width = size(config, "mamba_num_heads"), size(config, "mamba_head_dim")
    return {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "moe_layers": [i for i, kind in enumerate(kinds) if kind == "moe"],
        "head_dim": size(config, "head_dim", "attention_head_dim", default=128),
        "hidden_act": config["mlp_hidden_act"],
        "rms_norm_eps": config["layer_norm_epsilon"],
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_d_ssm": heads * width,
        "mamba_d_state": size(config, "ssm_state_size"),
        "mamba_n_groups": size(config, "mamba_n_groups", "n_groups"),
        "mamba_d_conv": size(config, "mamba_d_conv", "conv_kernel"),
        "mamba_conv_bias": config.get("mamba_conv_bias", config["use_conv_bias"]),
        "mamba_proj_bias": config.get("use_bias"),
        "time_step_limit": config.get("mamba_dt_limit") or config.get("time_step_limit"),
    }


def _nemotron_h_kinds(config: Config) -> list[str]:
    kinds, letters = config.get("layers_block_type"), config.get("hybrid_override_pattern")
    if kinds:
        return [KINDS.get(kind, kind) for kind in kinds]
    if not letters or not set(letters) <= set(LETTERS):
        raise StartError(
            f"config.json has hybrid_override_pattern {letters!r}, expected a letter for each "
            f"layer: {', '.join(f'{letter} ({kind})' for letter, kind in LETTERS.items())}"
        )
    return [LETTERS[letter] for letter in letters]


def _nemotron_h_form(architecture: Architecture, config: Config) -> Architecture:
    has_experts = "moe" in _nemotron_h_kinds(config)
    return replace(architecture, experts=architecture.experts if has_experts else None)


def _mamba2(config: Config) -> Config:
    """Translate the names of sizes; no layer attends, so heads are nominal."""
    return {
        "layer_types": [MAMBA] * size(config, "num_hidden_layers"),
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "rms_norm_eps": config["layer_norm_epsilon"],
        "mamba_n_heads": size(config, "num_heads"),
        "mamba_d_head": size(config, "head_dim"),
        "mamba_expand": size(config, "expand"),
        "mamba_d_state": size(config, "state_size"),
        "mamba_n_groups": size(config, "n_groups"),
        "mamba_d_conv": size(config, "conv_kernel"),
        "mamba_conv_bias": config["use_conv_bias"],
        "mamba_proj_bias": config.get("use_bias"),
    }


GRANITE4 = Architecture(
    names=Names(gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"),
    experts=replace(GRANITE_EXPERTS, shares_dense=True),
    **ATTENTION_BIASED, state=MAMBA, read=_granite4, variant=_granite4_form, fixed=PLAIN,
    follows=(*SCALES, "layer_types"), unused=STATE_SETTINGS,
    defaults={**SIZES, "attention_multiplier": 1.0, "num_local_experts": 8,
              "num_experts_per_tok": 2, "norm_topk_prob": True, "mamba_n_heads": 128,
              "mamba_d_state": 256},
)  # fmt: skip
BAMBA = Architecture(
    names=Names(
        norm="model.final_layernorm", mlp_norm="pre_ff_layernorm",
        gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"), down="feed_forward.down_proj",
    ),
    **ATTENTION_BIASED, mlp_bias="mlp_bias", state=MAMBA, read=_bamba,
    fixed={**PLAIN, "mamba_use_mlp": (True,)},
    defaults={**SIZES, "partial_rotary_factor": 0.5},
)  # fmt: skip
FALCON_H1 = replace(
    BAMBA, read=_falcon_h1, attends_beside=True, follows=PROJECTION_SCALES,
    defaults={**SIZES, "mamba_rms_norm": False, "mamba_norm_before_gate": True},
)  # fmt: skip
NEMOTRON_H = Architecture(
    names=Names(
        embedding="backbone.embeddings", norm="backbone.norm_f", layers="backbone.layers",
        attention_norm="norm", mlp_norm="norm", mamba="mixer",
        qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"), output="mixer.o_proj",
        gate_up=("mixer.up_proj",), down="mixer.down_proj",
    ),
    experts=Experts(
        scores="sigmoid", by_pairs=True, router="mixer.gate", prefix="mixer.experts", gate="",
        correction="mixer.gate.e_score_correction_bias", shared="mixer.shared_experts",
        latent=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
    ),
    gated=False, rope="", mlp_bias="mlp_bias", state=MAMBA, single=True, read=_nemotron_h,
    variant=_nemotron_h_form, follows=(*GROUPED, "moe_latent_size"),
    unused=("expand", "n_routed_experts", "num_experts_per_tok", "sliding_window"),
    fixed={**PLAIN, "attention_bias": (False,), "mamba_proj_bias": (False,)},
    defaults={**NORMED, "mamba_expand": 2, "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2",
              "layer_norm_epsilon": 1e-5, "conv_kernel": 4, "use_conv_bias": True,
              "norm_topk_prob": True},
)  # fmt: skip
MAMBA2 = Architecture(
    names=NEMOTRON_H.names, rope="", state=MAMBA, single=True, read=_mamba2,
    fixed={"rms_norm": (True,)},
    defaults={**NORMED, "layer_norm_epsilon": 1e-5, "expand": 2, "conv_kernel": 4, "n_groups": 8,
              "use_conv_bias": True, "max_position_embeddings": 131072},
)  # fmt: skip

ROWS: dict[str, Architecture] = {
    "Mamba2ForCausalLM": MAMBA2,
    "NemotronHForCausalLM": NEMOTRON_H,
    "GraniteMoeHybridForCausalLM": GRANITE4,
    "BambaForCausalLM": BAMBA,
    "FalconH1ForCausalLM": FALCON_H1,
}
