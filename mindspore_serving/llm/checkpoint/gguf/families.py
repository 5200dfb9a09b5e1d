"""llama.cpp's architectures as rows: their class in config.json, and differences.

Names of tensors follow from the architecture's description (`descriptions`); a row names what
llama.cpp's converter does differently, as its files show. Knows no tensor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mindspore_serving.llm.checkpoint.gguf import gemma
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture of llama.cpp.

    Attributes:
        name: the first of `architectures` in config.json.
        fixed: settings of config.json that the file does not have.
        sizes: key of config.json -> that after "{architecture}.", in addition to the common ones.
        tensors: role -> name, where it differs from the description's.
        pairs: rows of queries and keys are in the order of rotated pairs.
        halves_in_parts: with positions in time, height and width they are in the order of halves,
            where the description has pairs.
        read: returns the settings that follow from more than one key.
        state_head: key of config.json for the size of a value head, for layers with a state.
        in_turns: value heads that share a key head are interleaved.
    """

    name: str
    fixed: Settings = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    pairs: bool = False
    halves_in_parts: bool = False
    read: Callable[[GgufFile], Settings] | None = None
    state_head: str = ""
    interleaved: bool = False


SUMMED: Settings = {"norm_topk_prob": True}
APART: Settings = {"norm_topk_prob": False}
UNGROUPED: Settings = {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0}
GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
LATENT = {
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
}
DELTA_RULE = {
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
SHARED = {"shared_intermediate_size": "expert_shared_feed_forward_length"}
MAMBA = {
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_ssm": "ssm.inner_size",
    "mamba_d_state": "ssm.state_size",
    "mamba_n_groups": "ssm.group_count",
    "mamba_n_heads": "ssm.time_step_rank",
}
COHERE = {"logit_scale": "logit_scale"}
GELU: Settings = {"hidden_activation": "gelu_pytorch_tanh"}
UNCAPPED: Settings = {**GELU, "final_logit_softcapping": None}


def _baichuan(file: GgufFile) -> Settings:
    """Return the context length; 13B has ALiBi, which only its number of layers shows."""
    is_rotated = file.metadata.get("baichuan.block_count") != 40
    longest = "max_position_embeddings" if is_rotated else "model_max_length"
    return {longest: file.metadata.get("baichuan.context_length")}


LFM2 = Family(
    name="Lfm2ForCausalLM", fixed={"block_auto_adjust_ff_dim": False},
    sizes={"conv_L_cache": "shortconv.l_cache"},
    tensors={f"shortconv.{part}": f"conv.{part}" for part in ("in_proj", "conv", "out_proj")},
)  # fmt: skip
QWEN3_NEXT = Family(
    name="Qwen3NextForCausalLM", sizes=DELTA_RULE, state_head="linear_value_head_dim"
)
QWEN3_5 = replace(QWEN3_NEXT, name="Qwen3_5ForCausalLM", interleaved=True)
MAMBA_2 = Family(
    name="Mamba2ForCausalLM", state_head="head_dim",
    sizes={
        **MAMBA, "conv_kernel": MAMBA["mamba_d_conv"], "n_groups": "ssm.group_count",
        "state_size": "ssm.state_size", "num_heads": "ssm.time_step_rank",
    },
)  # fmt: skip
NEMOTRON_H = Family(
    name="NemotronHForCausalLM", fixed={"topk_group": 1}, state_head="mamba_head_dim",
    sizes={
        "conv_kernel": MAMBA["mamba_d_conv"], "n_groups": "ssm.group_count",
        "ssm_state_size": "ssm.state_size", "mamba_num_heads": "ssm.time_step_rank",
        "moe_latent_size": "moe_latent_size",
    },
)  # fmt: skip
# Architecture -> (suffix of a tensor's name, the family of files with such a tensor).
VARIANTS: dict[str, tuple[str, Family]] = {
    "llama": (".ffn_gate_inp.weight", Family(name="MixtralForCausalLM", pairs=True)),
    "deepseek2": (
        ".exp_probs_b.bias",
        Family(name="DeepseekV3ForCausalLM", fixed={**UNGROUPED, **APART}, sizes=LATENT),
    ),
    "falcon": (
        ".attn_norm_2.weight",
        Family(
            name="FalconForCausalLM", fixed={"new_decoder_architecture": True},
            sizes={"num_kv_heads": "attention.head_count_kv"},
            tensors={"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
        ),
    ),
}  # fmt: skip
FAMILIES: dict[str, Family] = {
    "llama": Family(name="LlamaForCausalLM", pairs=True),
    "mistral3": Family(name="Ministral3ForCausalLM", pairs=True),
    "llama4": Family(
        name="Llama4ForCausalLM", sizes={"intermediate_size_mlp": "feed_forward_length"}
    ),
    "qwen2": Family(name="Qwen2ForCausalLM"),
    "qwen2vl": Family(name="Qwen2ForCausalLM"),  # a text's token has one position
    "qwen3": Family(name="Qwen3ForCausalLM"),
    "qwen3vl": Family(name="Qwen3ForCausalLM"),
    "qwen3moe": Family(name="Qwen3MoeForCausalLM", fixed=SUMMED),
    "qwen3vlmoe": Family(name="Qwen3MoeForCausalLM", fixed=SUMMED),
    "qwen2moe": Family(name="Qwen2MoeForCausalLM"),
    "phi3": Family(name="Phi3ForCausalLM"),
    "gemma": Family(name="GemmaForCausalLM", fixed=GELU),
    "gemma2": Family(name="Gemma2ForCausalLM", fixed=GELU),
    "gemma3": Family(name="Gemma3ForCausalLM", fixed=GELU),
    "gemma3n": Family(
        name="Gemma3nForCausalLM", fixed=UNCAPPED, sizes=gemma.SIZES_3N, read=gemma.read_3n
    ),
    "gemma4": Family(
        name="Gemma4ForCausalLM", fixed=UNCAPPED, sizes=gemma.SIZES_4, read=gemma.read_4
    ),
    "gpt-oss": Family(name="GptOssForCausalLM"),
    "chatglm": Family(name="GlmForCausalLM"),
    "glm4": Family(name="Glm4ForCausalLM", halves_in_parts=True),
    "glm4moe": Family(name="Glm4MoeForCausalLM"),
    "granite": Family(name="GraniteForCausalLM", sizes=GRANITE, pairs=True),
    "granitemoe": Family(name="GraniteMoeForCausalLM", sizes=GRANITE, pairs=True),
    "smollm3": Family(name="SmolLM3ForCausalLM", pairs=True),
    "seed_oss": Family(name="SeedOssForCausalLM"),
    "ernie4_5": Family(name="Ernie4_5ForCausalLM"),
    "ernie4_5-moe": Family(
        name="Ernie4_5_MoeForCausalLM",
        sizes={
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_layer_interval": "interleave_moe_layer_step",
        },
    ),
    "hunyuan-dense": Family(name="HunYuanDenseV1ForCausalLM"),
    "exaone4": Family(name="Exaone4ForCausalLM"),
    "olmo": Family(name="OlmoForCausalLM", pairs=True),
    "olmo2": Family(name="Olmo3ForCausalLM"),
    "olmoe": Family(name="OlmoeForCausalLM"),
    "command-r": Family(name="CohereForCausalLM", sizes=COHERE),
    "cohere2": Family(name="Cohere2ForCausalLM", sizes=COHERE),
    "arcee": Family(name="ArceeForCausalLM", pairs=True),
    "pangu-embedded": Family(name="PanguEmbeddedForCausalLM"),
    "internlm2": Family(name="InternLM2ForCausalLM", pairs=True),
    "dots1": Family(name="Dots1ForCausalLM"),
    "deepseek2": Family(name="DeepseekV2ForCausalLM", fixed=UNGROUPED, sizes=LATENT),
    "minicpm3": Family(name="MiniCPM3ForCausalLM", sizes=LATENT),
    "lfm2": LFM2,
    "lfm2moe": replace(LFM2, name="Lfm2MoeForCausalLM"),
    "qwen3next": QWEN3_NEXT,
    "qwen35": QWEN3_5,
    "qwen35moe": replace(QWEN3_5, name="Qwen3_5MoeForCausalLM"),
    "mamba2": MAMBA_2,
    "falcon-h1": Family(
        name="FalconH1ForCausalLM",
        fixed={"mamba_norm_before_gate": False},
        sizes=MAMBA,
        state_head="mamba_d_head",
    ),
    "granitehybrid": Family(
        name="GraniteMoeHybridForCausalLM",
        fixed={"num_local_experts": 0},
        pairs=True,
        sizes={**GRANITE, **MAMBA, **SHARED},
        state_head="mamba_d_head",
    ),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "stablelm": Family(name="StableLmForCausalLM"),
    "starcoder2": Family(name="Starcoder2ForCausalLM"),
    "nemotron": Family(name="NemotronForCausalLM"),
    "phi2": Family(name="PhiForCausalLM"),
    "gpt2": Family(name="GPT2LMHeadModel"),
    "gptneox": Family(name="GPTNeoXForCausalLM"),
    "falcon": Family(name="FalconForCausalLM"),
    "bloom": Family(name="BloomForCausalLM"),
    "baichuan": Family(
        name="BaichuanForCausalLM",
        fixed={"is_packed": False},
        pairs=True,
        read=_baichuan,
        sizes={"max_position_embeddings": ""},
    ),  # fmt: skip
}
