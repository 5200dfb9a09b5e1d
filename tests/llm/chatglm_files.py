"""ChatGLM as it was published: tiny configurations, shapes of tensors, and what they compute by the
Glm of transformers, which has the same blocks under other names.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from tests.llm import gguf_files

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
LAYER = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "self_attention.dense": "self_attn.o_proj",
    "mlp.dense_h_to_4h": "mlp.gate_up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}
FILE = {  # GGUF's names
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
FILE_TOP = {
    "token_embd": "transformer.embedding.word_embeddings",
    "output_norm": "transformer.encoder.final_layernorm",
    "output": "transformer.output_layer",
}


def described(
    sizes: Config, architecture: str = "ChatGLMModel", **extra: Any
) -> tuple[Config, dict[str, tuple[int, ...]]]:
    """config.json with the words of the published ones, and the shapes of the tensors."""
    h, f, v = (sizes[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    groups, features = sizes["num_key_value_heads"], sizes["head_dim"]
    config = {
        "architectures": [architecture], "model_type": "chatglm",
        "auto_map": {"AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration"},
        "add_bias_linear": False, "add_qkv_bias": True, "apply_query_key_layer_scaling": True,
        "apply_residual_connection_post_layernorm": False, "attention_softmax_in_fp32": True,
        "ffn_hidden_size": f, "fp32_residual_connection": False, "hidden_size": h,
        "kv_channels": features, "layernorm_epsilon": 1e-5, "multi_query_attention": True,
        "multi_query_group_num": groups, "num_attention_heads": sizes["num_attention_heads"],
        "num_layers": sizes["num_hidden_layers"], "original_rope": True, "padded_vocab_size": v,
        "post_layer_norm": True, "pre_seq_len": None, "quantization_bit": 0, "rmsnorm": True,
        "seq_length": 512, "tie_word_embeddings": False, "eos_token_id": 2, **extra,
    }  # fmt: skip
    packed = (sizes["num_attention_heads"] + 2 * groups) * features
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.embedding.word_embeddings.weight": (v, h),
        "transformer.rotary_pos_emb.inv_freq": (features // 4,),
        "transformer.encoder.final_layernorm.weight": (h,),
        "transformer.output_layer.weight": (v, h),
    }
    for i in range(config["num_layers"]):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (h,), "post_attention_layernorm.weight": (h,),
            "self_attention.query_key_value.weight": (packed, h),
            "self_attention.query_key_value.bias": (packed,),
            "self_attention.dense.weight": (h, sizes["num_attention_heads"] * features),
            "mlp.dense_h_to_4h.weight": (2 * f, h), "mlp.dense_4h_to_h.weight": (h, f),
        }  # fmt: skip
        shapes |= {f"transformer.encoder.layers.{i}.{name}": one for name, one in layer.items()}
    return config, shapes


def in_transformers(config: Config, rope: Config) -> Config:
    """The configuration of a Glm of these sizes, with the rotary parameters `rope`."""
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return {
        "hidden_size": config["hidden_size"], "intermediate_size": config["ffn_hidden_size"],
        "num_hidden_layers": config["num_layers"], "vocab_size": config["padded_vocab_size"],
        "num_attention_heads": config["num_attention_heads"], "head_dim": config["kv_channels"],
        "num_key_value_heads": config["multi_query_group_num"], "pad_token_id": 0,
        "rms_norm_eps": config["layernorm_epsilon"], "rope_parameters": {**parameters, **rope},
        "attention_bias": config["add_qkv_bias"],
    }  # fmt: skip


def logits(config: Config, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Of all positions, [T, vocab]."""
    is_second = "chatglm2" in config["_name_or_path"]
    ratio = config["rope_ratio"]
    rope = {"rope_type": "linear", "factor": ratio} if is_second else {"rope_theta": 1e4 * ratio}
    model = transformers.GlmForCausalLM(
        transformers.GlmConfig(**in_transformers(config, rope), attn_implementation="eager")
    )
    model.load_state_dict(_renamed(config, tensors))
    found: torch.Tensor = model.eval()(ids[None], use_cache=False).logits[0]
    return found


def logits_of_file(path: Path, ids: Sequence[int]) -> np.ndarray:
    """What a GGUF file computes, [T, vocab]; queries, keys and values may be one tensor."""
    tensors = {}
    for one in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(one.data, one.tensor_type)
        tensors[one.name] = torch.tensor(values.astype(np.float32))
    layers = {
        f"blk.{i}.{own}": f"transformer.encoder.layers.{i}.{name}"
        for i in range(gguf_files.LAYERS)
        for own, name in FILE.items()
    }
    names = FILE_TOP | layers
    for i in range(gguf_files.LAYERS):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{i}.attn_{part}.{kind}", None) for part in "qkv"]
            if parts[0] is not None:
                tensors[f"blk.{i}.attn_qkv.{kind}"] = torch.cat(parts)
    renamed = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        renamed[f"{names[stem]}.{kind}"] = tensor
    sizes = {
        "hidden_size": gguf_files.HIDDEN, "intermediate_size": gguf_files.INNER,
        "vocab_size": gguf_files.VOCAB, "num_attention_heads": gguf_files.HEADS,
        "num_key_value_heads": gguf_files.KV_HEADS, "head_dim": gguf_files.HEAD_DIM,
        "num_hidden_layers": gguf_files.LAYERS,
    }  # fmt: skip
    config, _ = described(sizes, rope_ratio=1, _name_or_path="", layernorm_epsilon=1e-6)
    with torch.no_grad():
        return logits(config, renamed, torch.tensor(list(ids))).numpy()


def _renamed(config: Config, tensors: Tensors) -> Tensors:
    old = "transformer."
    found = {
        "model.embed_tokens.weight": tensors[f"{old}embedding.word_embeddings.weight"],
        "model.norm.weight": tensors[f"{old}encoder.final_layernorm.weight"],
        "lm_head.weight": tensors[f"{old}output_layer.weight"],
    }
    features, keys = config["kv_channels"], config["multi_query_group_num"]
    sizes = [count * features for count in (config["num_attention_heads"], keys, keys)]
    for i in range(config["num_layers"]):
        before, after = f"{old}encoder.layers.{i}.", f"model.layers.{i}."
        found |= {f"{after}{LAYER[n]}.weight": tensors[f"{before}{n}.weight"] for n in LAYER}
        for kind in ("weight", "bias"):
            packed = tensors[f"{before}self_attention.query_key_value.{kind}"]
            parts = zip("qkv", packed.split(sizes), strict=True)
            found |= {f"{after}self_attn.{n}_proj.{kind}": part for n, part in parts}
    return found
