"""Mixtures of experts, some of them with latent attention (DeepSeek's MLA).

A row names only differences from Llama.
"""

from dataclasses import replace

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import (
    OF_ALL,
    OF_HEAD,
    PAIRS,
    UNWEIGHTED,
    Architecture,
    Config,
    Experts,
    Names,
)
from mindspore_serving.llm.descriptions.config_types import size
from mindspore_serving.llm.descriptions.families.llama import (
    ATTENTION_BIASED,
    ERNIE,
    LATENT_HEADS,
    PLAIN,
    QWEN3,
    SWITCHED,
    WINDOWED,
)
from mindspore_serving.llm.descriptions.layer_kinds import FULL, SLIDING
from mindspore_serving.llm.descriptions.settings import (
    DENSE_FIRST,
    GATED,
    SCALES,
    SPARSE,
    SWITCHED_WINDOW,
    TYPED_WINDOW,
    WINDOW,
)

SHARED = "mlp.shared_experts"
CORRECTION = "mlp.gate.e_score_correction_bias"


def _ernie(config: Config) -> Config:
    """List the layers with experts: every `moe_layer_interval`-th, from a first to a last one."""
    num_layers = size(config, "num_hidden_layers")
    step = size(config, "moe_layer_interval", default=1)
    first = config.get("moe_layer_start_index") or 0
    last = config.get("moe_layer_end_index")
    if not isinstance(last, int | None) or isinstance(last, bool):
        raise StartError(f"config.json has moe_layer_end_index {last!r}, expected an int")
    end = num_layers if last in (None, -1) else min(last + 1, num_layers)
    layers = [i for i in range(first, end) if (i + 1) % step == 0]
    return {"moe_layers": layers, "norm_topk_prob": True}


def _qwen2_moe(config: Config) -> Config:
    """List the layers: every second one of the first `max_window_layers` has a window."""
    first = config["max_window_layers"] if config["use_sliding_window"] else 0
    count = size(config, "num_hidden_layers")
    kinds = [FULL if i % 2 or i >= first else SLIDING for i in range(count)]
    return {"layer_types": config.get("layer_types") or kinds}


def _llama4(config: Config) -> Config:
    """Limit the context to one attention chunk: longer texts are refused."""
    for kind in config.get("layer_types") or ():
        if kind not in ("chunked_attention", "full_attention"):
            raise StartError(
                f"config.json has layers of {kind!r} in layer_types, expected chunked_attention "
                "or full_attention"
            )
    num_layers = size(config, "num_hidden_layers")
    step = size(config, "interleave_moe_layer_step", default=1)
    layers = config.get("moe_layers")
    longest = size(config, "max_position_embeddings")
    return {
        "intermediate_size": size(config, "intermediate_size_mlp"),
        "max_position_embeddings": min(longest, config.get("attention_chunk_size") or longest),
        "layer_types": None,
        "moe_layers": list(range(step - 1, num_layers, step)) if layers is None else layers,
    }


def _deepseek(config: Config) -> Config:
    method = config.get("topk_method")
    if method not in (None, "greedy", "group_limited_greedy", "noaux_tc"):
        raise StartError(
            f"config.json has topk_method {method!r}, expected greedy, group_limited_greedy or "
            "noaux_tc"
        )
    return {"n_group": 1, "topk_group": 1} if method == "greedy" else {}


DEEPSEEK2 = Architecture(
    experts=Experts(shared=SHARED), rope=PAIRS, **ATTENTION_BIASED, mlp_bias="mlp_bias",
    read=_deepseek, follows=DENSE_FIRST, unused=LATENT_HEADS,
    fixed={**PLAIN, "moe_layer_freq": (1,), "scoring_func": ("softmax",),
           "norm_topk_prob": (False,)},
)  # fmt: skip
UNGROUPED = {"n_group": 1, "topk_group": 1}  # defaults
SIGMOID = {"scoring_func": ("sigmoid",), "moe_layer_freq": (1,)}
SIGMOID_EXPERTS = Experts(scores="sigmoid", by_pairs=True, correction=CORRECTION, shared=SHARED)
GRANITE_EXPERTS = Experts(
    router="block_sparse_moe.router.layer", prefix="block_sparse_moe",
    joined=("input_linear", "output_linear"), joined_rows=True,
)  # fmt: skip

ROWS: dict[str, Architecture] = {
    "MixtralForCausalLM": Architecture(
        experts=Experts(
            router="block_sparse_moe.gate", prefix="block_sparse_moe.experts", gate="w1",
            up="w3", down="w2",
        ),
        follows=WINDOW, fixed=PLAIN,
        defaults={"norm_topk_prob": True, "rope_theta": 1_000_000.0},
    ),
    "GraniteMoeForCausalLM": Architecture(
        experts=GRANITE_EXPERTS, **ATTENTION_BIASED, follows=SCALES, fixed=PLAIN,
        defaults={"attention_multiplier": 1.0, "norm_topk_prob": True},
    ),
    "Qwen2MoeForCausalLM": Architecture(
        experts=Experts(
            shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate"
        ),
        qkv_bias="qkv_bias", follows=(*SWITCHED_WINDOW, *SPARSE), read=_qwen2_moe,
        defaults={**SWITCHED, "qkv_bias": True}, fixed=PLAIN,
    ),
    "Qwen3MoeForCausalLM": replace(
        QWEN3, experts=Experts(), follows=(*WINDOW, *SPARSE, "use_sliding_window"),
        defaults={**WINDOWED, "use_sliding_window": False}, unused=("max_window_layers",),
    ),
    "OlmoeForCausalLM": Architecture(
        experts=Experts(), qk_norm=OF_ALL, **ATTENTION_BIASED, follows=GATED, fixed=PLAIN
    ),
    "Ernie4_5_MoeForCausalLM": Architecture(
        experts=Experts(
            correction="mlp.moe_statics.e_score_correction_bias", shared=SHARED
        ),
        rope=PAIRS, read=_ernie, qkv_bias="use_bias", output_bias="use_bias",
        mlp_bias="use_bias", head_bias="use_bias", fixed=ERNIE,
        follows=("moe_layer_end_index", "moe_num_shared_experts", "n_shared_experts",
                 "moe_norm_min"),  # names in GGUF files
        defaults={"tie_word_embeddings": True, "rope_theta": 500_000.0, "moe_layer_start_index": 1,
                  "moe_norm_min": 1e-12},
    ),
    "Glm4MoeForCausalLM": Architecture(
        experts=SIGMOID_EXPERTS,
        qkv_bias="attention_bias", qk_norm=OF_HEAD, qk_norm_key="use_qk_norm", follows=DENSE_FIRST,
        defaults={**UNGROUPED, "partial_rotary_factor": 0.5, "norm_topk_prob": True,
                  "first_k_dense_replace": 1},
        fixed={**PLAIN, **SIGMOID},
    ),
    "Dots1ForCausalLM": Architecture(
        experts=SIGMOID_EXPERTS,
        **ATTENTION_BIASED, qk_norm=OF_HEAD, unused=("num_experts_per_tok",),
        follows=(*DENSE_FIRST, *TYPED_WINDOW, "max_window_layers"),
        defaults={**WINDOWED, **UNGROUPED, "max_window_layers": 62}, fixed={**PLAIN, **SIGMOID},
    ),
    "DeepseekV2ForCausalLM": DEEPSEEK2,
    "DeepseekV3ForCausalLM": replace(
        DEEPSEEK2,
        experts=SIGMOID_EXPERTS,
        defaults={"norm_topk_prob": True, "first_k_dense_replace": 3,
                  "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4},
        fixed={**PLAIN, **SIGMOID, "rope_interleave": (True,)},
    ),
    "Llama4ForCausalLM": Architecture(
        names=Names(
            gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
            down="feed_forward.down_proj",
        ),
        experts=Experts(
            router="feed_forward.router", prefix="feed_forward.experts",
            shared="feed_forward.shared_expert", joined=("gate_up_proj", "down_proj"),
            scores="sigmoid", scales_input=True,
        ),
        follows=("layer_types", "no_rope_layers", "no_rope_layer_interval",
                 "attn_temperature_tuning"),
        rope=PAIRS, **ATTENTION_BIASED, qk_norm=UNWEIGHTED, qk_norm_key="use_qk_norm",
        norm_after_rope=True, read=_llama4, fixed=PLAIN,
        defaults={"rope_theta": 500_000.0, "use_qk_norm": True, "attn_temperature_tuning": True,
                  "floor_scale": 8192, "attn_scale": 0.1, "attention_chunk_size": 8192,
                  "no_rope_layer_interval": 4, "num_experts_per_tok": 1},
    ),
    "GptOssForCausalLM": Architecture(
        names=Names(sinks="self_attn.sinks"),
        experts=Experts(
            router="mlp.router", router_bias=True, bias=True, clamped=True,
            joined=("gate_up_proj", "down_proj"),
        ),
        **ATTENTION_BIASED, follows=TYPED_WINDOW, fixed=PLAIN,
        unused=("experts_per_token", "initial_context_length"),
        defaults={"attention_bias": True, "head_dim": 64, "sliding_window": 128,
                  "sliding_window_pattern": 2, "norm_topk_prob": True, "num_experts_per_tok": 4,
                  "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "rope_theta": 150_000.0},
    ),
}  # fmt: skip
ROWS["Llama4ForConditionalGeneration"] = ROWS["Llama4ForCausalLM"]
