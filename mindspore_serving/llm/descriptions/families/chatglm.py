"""Original format of ChatGLM2, ChatGLM3 and GLM-4: GLM's blocks under other names.

Their config.json has other names for sizes. Knows no runtime.
"""

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import PAIRS, Architecture, Config, Names
from mindspore_serving.llm.descriptions.config_types import number, size

THETA = 10000.0
VOCAB_SIZES = ("padded_vocab_size", "vocab_size")
LARGE_VOCABULARY = 100_000  # GLM-4's is larger, those of ChatGLM2 and 3 are smaller


def _chatglm(config: Config) -> Config:
    if config.get("position_encoding_2d"):
        raise StartError(
            "config.json has position_encoding_2d: this is the first ChatGLM, which is not "
            "supported; expected ChatGLM2, ChatGLM3 or GLM-4"
        )
    if config.get("vision_config"):
        raise StartError(
            "config.json has a vision_config: ChatGLM with images is not supported, expected a "
            "text model"
        )
    if not config.get("multi_query_attention"):
        raise StartError(
            "config.json has no multi_query_attention, without which queries, keys and values are "
            "stored head by head; expected true, as in ChatGLM2, ChatGLM3 and GLM-4"
        )
    return {
        "num_hidden_layers": size(config, "num_layers", "num_hidden_layers"),
        "num_key_value_heads": size(config, "multi_query_group_num"),
        "head_dim": size(config, "kv_channels"),
        "vocab_size": size(config, *VOCAB_SIZES),
        "rms_norm_eps": number(config, "layernorm_epsilon"),
        **_rope(config),
    }


def _rope(config: Config) -> Config:
    """Translate `rope_ratio`: ChatGLM2 divides positions, later models multiply the rotary base."""
    ratio = number(config, "rope_ratio")
    if ratio == 1 or config.get("rope_theta") or config.get("rope_scaling"):
        return {}
    name = str(config.get("_name_or_path") or "").lower()
    if "chatglm2" in name:
        return {"rope_scaling": {"rope_type": "linear", "factor": ratio}}
    if "chatglm3" in name or size(config, *VOCAB_SIZES) > LARGE_VOCABULARY:
        return {"rope_theta": THETA * ratio}
    raise StartError(
        f"config.json has rope_ratio {ratio}, by which ChatGLM2 divides positions but ChatGLM3 "
        "multiplies the rotary base; expected a _name_or_path with chatglm2 or chatglm3, or "
        f'instead "rope_scaling": {{"rope_type": "linear", "factor": {ratio}}} (ChatGLM2) or '
        f'"rope_theta": {THETA * ratio} (ChatGLM3)'
    )


CHATGLM = Architecture(
    names=Names(
        embedding="transformer.embedding.word_embeddings",
        norm="transformer.encoder.final_layernorm", head="transformer.output_layer",
        layers="transformer.encoder.layers", qkv=("self_attention.query_key_value",),
        output="self_attention.dense", gate_up=("mlp.dense_h_to_4h",), down="mlp.dense_4h_to_h",
    ),
    rope=PAIRS, qkv_bias="add_qkv_bias", read=_chatglm,
    fixed={
        "rmsnorm": (True,), "post_layer_norm": (True,),
        "apply_residual_connection_post_layernorm": (False,), "pre_seq_len": (0,),
        "quantization_bit": (0,), "add_bias_linear": (False,),
    },
    unused=("original_rope", "interleaved_qkv", "prefix_projection", "seq_length"),
    defaults={
        "partial_rotary_factor": 0.5, "add_qkv_bias": False,
        "layernorm_epsilon": 1e-5, "rope_ratio": 1,
    },
)  # fmt: skip

# Both names are in use for the same models.
ROWS = {"ChatGLMModel": CHATGLM, "ChatGLMForConditionalGeneration": CHATGLM}
