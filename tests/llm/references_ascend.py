"""Reference implementations of architectures that were trained on Ascend and that transformers does
not have: TeleChat2 and openPangu Ultra MoE.  Plain torch over whole sequences, no cache, float32.
openPangu Embedded is the Llama of transformers, which has the same biases under another setting.

Written from the published architectures.  TeleChat2: one matrix has the key and the value of each
head side by side, only two projections have biases, and the rotary base grows with the trained
length.  Ultra MoE: latent attention whose rotated features are pairs, experts chosen by sigmoids,
and norms before and after both blocks.
"""

import math
from typing import Any

import torch
import transformers
from torch.nn import functional as F

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


def telechat2(config: Config, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    eps, heads = config["layer_norm_epsilon"], config["n_head"]
    keys, dim = config["num_key_value_heads"], config["hidden_size"] // heads
    length = max(len(ids), config["training_seqlen"])
    alpha = max(2 ** math.ceil(math.log2(length / config["base_seqlen"]) + 1) - 1, 1)
    scale = max(0.1 * math.log(length / config["training_seqlen"]) + 1, 1)
    speeds = (10000 * alpha ** (dim / (dim - 2))) ** (-torch.arange(0, dim, 2) / dim)
    angles = (torch.arange(len(ids))[:, None] * speeds).repeat(1, 2)[:, None]
    cos, sin = scale * angles.cos(), scale * angles.sin()

    def rotated(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    x = tensors["transformer.word_embeddings.weight"][ids]
    if config["embed_layernorm"]:
        x = _norm(x, tensors["transformer.word_embeddings_layernorm.weight"], eps)
    for i in range(config["n_layer"]):
        p = f"transformer.h.{i}."
        h = _norm(x, tensors[p + "input_layernorm.weight"], eps)
        query = F.linear(h, tensors[p + "self_attention.query.weight"])
        both = F.linear(h, tensors[p + "self_attention.key_value.weight"])
        key, value = both.view(len(ids), keys, 2 * dim).split(dim, -1)
        out = _attend(rotated(query.view(len(ids), heads, dim)), rotated(key), value)
        dense = p + "self_attention.dense."
        x = x + F.linear(out, tensors[dense + "weight"], tensors[dense + "bias"])
        h = _norm(x, tensors[p + "post_attention_layernorm.weight"], eps)
        gate, up, down = (tensors[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
        h = F.silu(F.linear(h, gate)) * F.linear(h, up)
        x = x + F.linear(h, down, tensors[p + "mlp.down_proj.bias"])
    return F.linear(_norm(x, tensors["transformer.ln_f.weight"], eps), tensors["lm_head.weight"])


def pangu_embedded(config: Config, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    settings = {"attention_bias": config["bias"], "rope_theta": config["rope_theta"]}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config | settings))
    model.load_state_dict(tensors)
    logits: torch.Tensor = model.eval()(ids[None], use_cache=False).logits[0]
    return logits


def pangu_ultra(config: Config, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    eps = config["rms_norm_eps"]
    x = tensors["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        layer = {
            name.removeprefix(f"model.layers.{i}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"model.layers.{i}.")
        }
        h = _latent_attention(config, layer, _norm(x, layer["input_layernorm.weight"], eps))
        x = x + _norm(h, layer["post_attention_layernorm.weight"], eps)
        h = _norm(x, layer["pre_mlp_layernorm.weight"], eps)
        h = _gated(layer, "mlp", h) if i < config["num_dense_layers"] else _mixed(config, layer, h)
        x = x + _norm(h, layer["post_mlp_layernorm.weight"], eps)
    return F.linear(_norm(x, tensors["model.norm.weight"], eps), tensors["lm_head.weight"])


def _latent_attention(config: Config, layer: Tensors, h: torch.Tensor) -> torch.Tensor:
    eps, heads, count = config["rms_norm_eps"], config["num_attention_heads"], len(h)
    plain, turned = config["attention_qk_dim"], config["attention_qk_rope_dim"]
    matrix = {name: layer[f"self_attn.{name}.weight"] for name in LATENT}
    speeds = config["rope_theta"] ** (-torch.arange(0, turned, 2) / turned)
    angles = (torch.arange(count)[:, None] * speeds)[:, None]

    def rotated(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    query = _norm(F.linear(h, matrix["q_a_proj"]), matrix["q_a_layernorm"], eps)
    query = F.linear(query, matrix["q_b_proj"]).view(count, heads, plain + turned)
    latent = F.linear(h, matrix["kv_a_proj_with_mqa"])
    latent, shared = latent.split([config["attention_kv_lora_dim"], turned], -1)
    both = F.linear(_norm(latent, matrix["kv_a_layernorm"], eps), matrix["kv_b_proj"])
    key, value = both.view(count, heads, -1).split([plain, config["attention_v_dim"]], -1)
    shared = rotated(shared[:, None]).expand(count, heads, turned)
    query = torch.cat([query[..., :plain], rotated(query[..., plain:])], -1)
    return F.linear(_attend(query, torch.cat([key, shared], -1), value), matrix["o_proj"])


def _mixed(config: Config, layer: Tensors, h: torch.Tensor) -> torch.Tensor:
    scores = F.linear(h, layer["mlp.gate.weight"]).sigmoid()
    weights, chosen = scores.topk(config["num_experts_per_tok"], -1)
    weights = weights / weights.sum(-1, keepdim=True) * config["routed_scaling_factor"]
    each = torch.zeros_like(scores).scatter(1, chosen, weights)
    outputs = (
        each[:, index, None] * _gated(layer, f"mlp.experts.{index}", h)
        for index in range(config["num_routed_experts"])
    )
    return _gated(layer, "mlp.shared_experts", h) + torch.stack(list(outputs)).sum(0)


def _gated(layer: Tensors, prefix: str, h: torch.Tensor) -> torch.Tensor:
    gate, up, down = (layer[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention, [T, heads, d] each -> [T, heads * d]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    scores = scores + torch.full(scores.shape[1:], -math.inf).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


def describe_telechat2(sizes: Config) -> tuple[Config, Shapes]:
    h, f, v = (sizes[n] for n in ("hidden_size", "intermediate_size", "vocab_size"))
    keys = 2 * sizes["num_key_value_heads"] * h // sizes["num_attention_heads"]
    config = {
        "architectures": ["TeleChat2ForCausalLM"], "model_type": "telechat", "hidden_size": h,
        "vocab_size": v, "ffn_hidden_size": f, "n_layer": sizes["num_hidden_layers"],
        "n_head": sizes["num_attention_heads"], "layer_norm_epsilon": sizes["rms_norm_eps"],
        "num_key_value_heads": sizes["num_key_value_heads"], "embed_layernorm": False,
        "training_seqlen": sizes["max_position_embeddings"], "base_seqlen": 64, "logn": True,
        "apply_residual_connection_post_layernorm": False, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": sizes["eos_token_id"], "flash_attn": True,
    }  # fmt: skip
    shapes: Shapes = {"transformer.word_embeddings.weight": (v, h), "lm_head.weight": (v, h)}
    shapes["transformer.ln_f.weight"] = (h,)
    for i in range(config["n_layer"]):
        p = f"transformer.h.{i}."
        shapes |= {f"{p}{n}_layernorm.weight": (h,) for n in ("input", "post_attention")}
        shapes |= {f"{p}self_attention.{n}.weight": (h, h) for n in ("query", "dense")}
        shapes |= {f"{p}self_attention.key_value.weight": (keys, h)}
        shapes |= {f"{p}mlp.{n}_proj.weight": (f, h) for n in ("gate", "up")}
        shapes |= {f"{p}mlp.down_proj.weight": (h, f), f"{p}mlp.down_proj.bias": (h,)}
        shapes[f"{p}self_attention.dense.bias"] = (h,)
    return config, shapes


def describe_pangu_embedded(sizes: Config) -> tuple[Config, Shapes]:
    config = {key: value for key, value in sizes.items() if key != "head_dim"} | {
        "architectures": ["PanguEmbeddedForCausalLM"], "model_type": "PanguEmbedded",
        "hidden_act": "silu", "bias": True, "rope_theta": 16_000_000.0,
    }  # fmt: skip
    h, keys = sizes["hidden_size"], sizes["num_key_value_heads"] * sizes["head_dim"]
    shapes = _outside(sizes)
    for i in range(sizes["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows in {"q": h, "k": keys, "v": keys, "o": h}.items():
            shapes |= {f"{p}self_attn.{name}_proj.weight": (rows, h)}
            shapes |= {f"{p}self_attn.{name}_proj.bias": (rows,)}
        shapes |= {f"{p}{n}_layernorm.weight": (h,) for n in ("input", "post_attention")}
        shapes |= _gated_shapes(f"{p}mlp", h, sizes["intermediate_size"])
    return config, shapes


LATENT = (
    "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj",
    "o_proj",
)  # fmt: skip


def describe_pangu_ultra(sizes: Config) -> tuple[Config, Shapes]:
    config = {key: value for key, value in sizes.items() if key != "head_dim"} | {
        "architectures": ["PanguUltraMoEForCausalLM"], "model_type": "pangu_ultra_moe",
        "hidden_act": "silu", "rope_theta": 25_600_000.0, "sandwich_norm": True,
        "attention_q_lora_dim": 24, "attention_kv_lora_dim": 16, "attention_qk_dim": 16,
        "attention_qk_rope_dim": 8, "attention_v_dim": 12, "num_routed_experts": 8,
        "num_shared_experts": 1, "num_dense_layers": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "num_mtp_layers": 0,
    }  # fmt: skip
    h, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    rows = ((24, h), (24,), (heads * 24, 24), (24, h), (16,), (heads * 28, 16), (h, heads * 12))
    norms = ("input", "post_attention", "pre_mlp", "post_mlp")
    shapes = _outside(sizes)
    for i in range(sizes["num_hidden_layers"]):
        p = f"model.layers.{i}."
        named = zip(LATENT, rows, strict=True)
        shapes |= {f"{p}self_attn.{name}.weight": shape for name, shape in named}
        shapes |= {f"{p}{n}_layernorm.weight": (h,) for n in norms}
        if not i:
            shapes |= _gated_shapes(f"{p}mlp", h, sizes["intermediate_size"])
            continue
        shapes[f"{p}mlp.gate.weight"] = (8, h)
        for name in ("shared_experts", *(f"experts.{index}" for index in range(8))):
            shapes |= _gated_shapes(f"{p}mlp.{name}", h, 32)
    return config, shapes


def _outside(sizes: Config) -> Shapes:
    h, v = sizes["hidden_size"], sizes["vocab_size"]
    tables: Shapes = {"model.embed_tokens.weight": (v, h), "lm_head.weight": (v, h)}
    return tables | {"model.norm.weight": (h,)}


def _gated_shapes(prefix: str, hidden: int, width: int) -> Shapes:
    shapes: Shapes = {f"{prefix}.{n}_proj.weight": (width, hidden) for n in ("gate", "up")}
    return shapes | {f"{prefix}.down_proj.weight": (hidden, width)}
