"""openPangu: the dense Embedded models, and Ultra MoE, which is DeepSeek V3 with more norms.

Ultra MoE's config.json has other names for the sizes of latent attention. Knows no runtime.
"""

from dataclasses import replace

from mindspore_serving.llm.descriptions.architecture import Architecture, Config
from mindspore_serving.llm.descriptions.families.llama import PLAIN, SANDWICH
from mindspore_serving.llm.descriptions.families.mixtures import (
    DEEPSEEK2,
    SIGMOID,
    SIGMOID_EXPERTS,
    UNGROUPED,
)

# openPangu's names -> DeepSeek's.
SIZES = {
    "attention_q_lora_dim": "q_lora_rank",
    "attention_kv_lora_dim": "kv_lora_rank",
    "attention_qk_dim": "qk_nope_head_dim",
    "attention_qk_rope_dim": "qk_rope_head_dim",
    "attention_v_dim": "v_head_dim",
    "num_routed_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    "num_dense_layers": "first_k_dense_replace",
}
NO_SINKS = {**PLAIN, "param_sink_number": (0,)}  # later models have keys that no token made


def _ultra(config: Config) -> Config:
    return {new: config[old] for old, new in SIZES.items() if config.get(old) is not None}


def _norms(architecture: Architecture, config: Config) -> Architecture:
    """Add the norms after the blocks."""
    if not config.get("sandwich_norm"):
        return architecture
    names = replace(SANDWICH, mlp_norm="pre_mlp_layernorm", after_mlp="post_mlp_layernorm")
    return replace(architecture, names=names)


ROWS: dict[str, Architecture] = {
    "PanguEmbeddedForCausalLM": Architecture(
        qkv_bias="bias", output_bias="bias",
        fixed={**NO_SINKS, "mlp_bias": (False,), "is_causal": (True,)},
        defaults={"bias": True, "rope_theta": 16_000_000.0, "rms_norm_eps": 1e-5},
    ),
    "PanguUltraMoEForCausalLM": replace(
        DEEPSEEK2, experts=replace(SIGMOID_EXPERTS, correction=""), read=_ultra, variant=_norms,
        fixed={**NO_SINKS, **SIGMOID, "router_enable_expert_bias": (False,)},
        defaults={**UNGROUPED, "norm_topk_prob": True, "rms_norm_eps": 1e-5,
                  "rope_theta": 25_600_000.0},
    ),
}  # fmt: skip
