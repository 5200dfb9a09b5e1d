"""Names of tensors of vision towers in llama.cpp's files, and those of Hugging Face's format."""

from collections.abc import Mapping

LATER_PATCHES = "v.patch_embd.weight.1"  # of the second of two frames
PATCHES = LATER_PATCHES.removesuffix(".1")
BREAK = "v.token_embd.img_break"  # which the language model has too


def _both(names: Mapping[str, str]) -> dict[str, str]:
    """Return names of weights and biases, for those of both."""
    ends = ("weight", "bias")
    return {f"{old}.{end}": f"{new}.{end}" for old, new in names.items() for end in ends}


_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_PLAIN = {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
_SIGLIP_PATCHES = {
    **_both({"v.patch_embd": "vision_tower.embeddings.patch_embedding"}),
    "v.position_embd.weight": "vision_tower.embeddings.position_embedding.weight",
    **_both({"v.post_ln": "vision_tower.post_layernorm"}),
}
_QWEN_LAYER = {
    "ln1": "norm1", "ln2": "norm2", "attn_q": "attn.q_proj", "attn_k": "attn.k_proj",
    "attn_v": "attn.v_proj", "attn_qkv": "attn.qkv", "attn_out": "attn.proj",
}  # fmt: skip
SIGLIP_LAYER = {
    "ln1": "layer_norm1", "ln2": "layer_norm2", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.out_proj",
    **_PLAIN,
}  # fmt: skip
QWEN2_LAYER = {**_QWEN_LAYER, **_PLAIN}
QWEN2_5_LAYER = {**_QWEN_LAYER, **_GATED}
QWEN3_LAYER = {**_QWEN_LAYER, "ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
INTERN_LAYER = {
    "ln1": "layernorm_before", "ln2": "layernorm_after", "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj", "attn_v": "attention.v_proj",
    "attn_q_norm": "attention.q_norm", "attn_k_norm": "attention.k_norm",
    "attn_out": "attention.projection_layer", **_PLAIN,
    "ls1.weight": "lambda_1", "ls2.weight": "lambda_2",
}  # fmt: skip
PIXTRAL_LAYER = {
    "ln1": "attention_norm", "ln2": "ffn_norm", "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj", "attn_v": "attention.v_proj", "attn_out": "attention.o_proj",
    "ffn_gate": "feed_forward.gate_proj", "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}  # fmt: skip
GEMMA4_LAYER = {
    "ln1": "input_layernorm", "ln2": "pre_feedforward_layernorm",
    "attn_post_norm": "post_attention_layernorm", "ffn_post_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj.linear", "attn_k": "self_attn.k_proj.linear",
    "attn_v": "self_attn.v_proj.linear", "attn_out": "self_attn.o_proj.linear",
    **{old: f"{new}.linear" for old, new in _GATED.items()},
}  # fmt: skip
# Names of tensors beside the layers; the first is the last matrix.
INTERN_TENSORS = {
    **_both(
        {
            "mm.model.mlp.3": "multi_modal_projector.linear_2",
            "mm.model.mlp.1": "multi_modal_projector.linear_1",
            "mm.model.mlp.0": "multi_modal_projector.layer_norm",
            "v.patch_embd": "vision_tower.embeddings.patch_embeddings.projection",
        }
    ),
    "v.class_embd": "vision_tower.embeddings.cls_token",
    "v.position_embd.weight": "vision_tower.embeddings.position_embeddings",
}  # fmt: skip
QWEN2_TENSORS = _both(
    {
        "mm.2": "visual.merger.mlp.2", "mm.0": "visual.merger.mlp.0",
        "v.post_ln": "visual.merger.ln_q", "v.patch_embd": "visual.patch_embed.proj",
    }
)  # fmt: skip
QWEN3_TENSORS = {
    **_both(
        {
            "mm.2": "visual.merger.linear_fc2", "mm.0": "visual.merger.linear_fc1",
            "v.post_ln": "visual.merger.norm", "v.patch_embd": "visual.patch_embed.proj",
        }
    ),
    "v.position_embd.weight": "visual.pos_embed.weight",
}  # fmt: skip
IDEFICS_TENSORS = {
    "mm.model.fc.weight": "connector.modality_projection.proj.weight", **_SIGLIP_PATCHES,
}  # fmt: skip
GEMMA3_TENSORS = {
    "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
    "mm.soft_emb_norm.weight": "multi_modal_projector.mm_soft_emb_norm.weight",
    **_SIGLIP_PATCHES,
}
LLAVA_TENSORS = {
    **_both(
        {
            "mm.2": "multi_modal_projector.linear_2", "mm.0": "multi_modal_projector.linear_1",
            "v.pre_ln": "vision_tower.pre_layrnorm",
        }
    ),
    "v.class_embd": "vision_tower.embeddings.class_embedding",
    **_SIGLIP_PATCHES,
}  # fmt: skip
LLAVA_NEXT_TENSORS = {**LLAVA_TENSORS, "model.image_newline": "image_newline"}
PIXTRAL_TENSORS = _both(
    {
        "mm.2": "multi_modal_projector.linear_2", "mm.1": "multi_modal_projector.linear_1",
        "mm.input_norm": "multi_modal_projector.norm",
        "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
        "v.pre_ln": "vision_tower.ln_pre", "v.patch_embd": "vision_tower.patch_conv",
    }
)  # fmt: skip
GEMMA4_TENSORS = {
    "mm.input_projection.weight": "embed_vision.embedding_projection.weight",
    PATCHES: "vision_tower.patch_embedder.input_proj.weight",
    "v.position_embd.weight": "vision_tower.patch_embedder.position_embedding_table",
    "v.std_bias": "vision_tower.std_bias",
    "v.std_scale": "vision_tower.std_scale",
}
GLM_TENSORS = {
    **_both(
        {
            "mm.down": "visual.merger.down_proj", "mm.up": "visual.merger.up_proj",
            "mm.gate": "visual.merger.gate_proj", "mm.model.fc": "visual.merger.proj",
            "mm.post_norm": "visual.merger.post_projection_norm",
            "mm.patch_merger": "visual.downsample", "v.post_ln": "visual.post_layernorm",
            "v.norm_embd": "visual.post_conv_layernorm", "v.patch_embd": "visual.patch_embed.proj",
        }
    ),
    "v.position_embd.weight": "visual.embeddings.position_embedding.weight",
}  # fmt: skip
