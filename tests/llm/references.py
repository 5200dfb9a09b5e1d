"""Reference implementations of published architectures that transformers does not have: InternLM,
InternLM2, Baichuan2 7B and 13B.  Plain torch over whole sequences, no cache, float32.  InternLM3 is
the Llama of transformers, whose biases have other names in its configuration, ChatGLM its Glm
(`chatglm_files`); `references_ascend` has TeleChat2 and openPangu.

Written from the published architectures: InternLM is Llama with biases on the attention's four
projections; InternLM2 packs q, k and v per key-value head; Baichuan packs them one after another,
its 13B has ALiBi in place of rotary positions, and its second generation normalises the rows of
the output matrix.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch.nn import functional as F

from tests.llm import chatglm_files, references_ascend

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def internlm(config: Config, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    def attention(x: torch.Tensor, prefix: str) -> torch.Tensor:
        q, k, v = (
            F.linear(x, tensors[f"{prefix}.{n}_proj.weight"], tensors[f"{prefix}.{n}_proj.bias"])
            for n in "qkv"
        )
        out = _attend(_rotate(config, _heads(config, q)), _rotate(config, _heads(config, k)),
                      _heads(config, v))  # fmt: skip
        return F.linear(out, tensors[f"{prefix}.o_proj.weight"], tensors[f"{prefix}.o_proj.bias"])

    return _decoder(config, tensors, ids, attention)


def internlm2(config: Config, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    kv_heads = config["num_key_value_heads"]
    groups = config["num_attention_heads"] // kv_heads

    def attention(x: torch.Tensor, prefix: str) -> torch.Tensor:
        packed = F.linear(x, tensors[f"{prefix}.wqkv.weight"])
        packed = packed.view(len(x), kv_heads, groups + 2, -1)
        q = packed[:, :, :groups].flatten(1, 2).transpose(0, 1)
        k, v = packed[:, :, groups].transpose(0, 1), packed[:, :, groups + 1].transpose(0, 1)
        out = _attend(_rotate(config, q), _rotate(config, k), v)
        return F.linear(out, tensors[f"{prefix}.wo.weight"])

    x = tensors["model.tok_embeddings.weight"][ids]
    eps = config["rms_norm_eps"]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        normed = _norm(x, tensors[p + "attention_norm.weight"], eps)
        x = x + attention(normed, p + "attention")
        h = _norm(x, tensors[p + "ffn_norm.weight"], eps)
        w1, w2, w3 = (tensors[f"{p}feed_forward.w{n}.weight"] for n in (1, 2, 3))
        x = x + F.linear(F.silu(F.linear(h, w1)) * F.linear(h, w3), w2)
    return F.linear(_norm(x, tensors["model.norm.weight"], eps), tensors["output.weight"])


def internlm3(config: Config, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """Llama has one setting for all biases of attention: those that are not there are 0."""
    biases = {"attention_bias": config["qkv_bias"] or config["bias"], "mlp_bias": config["bias"]}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config | biases))
    missing, unknown = model.load_state_dict(tensors, strict=False)
    assert not unknown
    for name in missing:
        assert name.endswith(".bias")
        model.get_parameter(name).data.zero_()
    logits: torch.Tensor = model.eval()(ids[None], use_cache=False).logits[0]
    return logits


def baichuan(config: Config, tensors: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """The second generation: 13B (no `max_position_embeddings`) has ALiBi, 7B rotary positions."""
    alibi = "max_position_embeddings" not in config

    def attention(x: torch.Tensor, prefix: str) -> torch.Tensor:
        packed = F.linear(x, tensors[f"{prefix}.W_pack.weight"])
        q, k, v = (_heads(config, part) for part in packed.chunk(3, -1))
        if alibi:
            out = _attend(q, k, v, alibi_slopes(config["num_attention_heads"]))
        else:
            out = _attend(_rotate(config, q), _rotate(config, k), v)
        return F.linear(out, tensors[f"{prefix}.o_proj.weight"])

    head = F.normalize(tensors["lm_head.weight"], dim=-1)
    return _decoder(config, {**tensors, "lm_head.weight": head}, ids, attention)


def alibi_slopes(num_heads: int) -> torch.Tensor:
    """Press et al.: powers of 2**(-8/n) for a power of two; else every second one of 2n fills."""
    n = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (i + 1) / n) for i in range(n)]
    slopes += [2.0 ** (-4 * (2 * i + 1) / n) for i in range(num_heads - n)]
    return torch.tensor(slopes)


def _decoder(
    config: Config,
    tensors: Tensors,
    ids: torch.Tensor,
    attention: Callable[[torch.Tensor, str], torch.Tensor],
) -> torch.Tensor:
    x, eps = tensors["model.embed_tokens.weight"][ids], config["rms_norm_eps"]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        normed = _norm(x, tensors[p + "input_layernorm.weight"], eps)
        x = x + attention(normed, p + "self_attn")
        h = _norm(x, tensors[p + "post_attention_layernorm.weight"], eps)
        gate, up, down = (tensors[f"{p}mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
        x = x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
    return F.linear(_norm(x, tensors["model.norm.weight"], eps), tensors["lm_head.weight"])


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _heads(config: Config, x: torch.Tensor) -> torch.Tensor:
    """[T, heads * d] -> [heads, T, d]."""
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return x.view(len(x), -1, head_dim).transpose(0, 1)


def _rotate(config: Config, x: torch.Tensor) -> torch.Tensor:
    """Rotary positions by complex multiplication: feature i pairs with i + d/2."""
    d = x.shape[-1]
    theta = float(config.get("rope_theta", 10000.0))
    angles = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(0, d, 2) / d)
    turned = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([turned.real, turned.imag], -1)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention, [heads, T, d] each -> [T, heads * d]."""
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    distance = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])[None]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance
    scores = scores.masked_fill(distance < 0, -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


Description = tuple[Config, dict[str, tuple[int, ...]]]  # config.json, shapes of the tensors


def _describe_internlm(sizes: Config) -> Description:
    config = _config(sizes, "InternLMForCausalLM", "internlm", bias=True)
    config["num_key_value_heads"] = config["num_attention_heads"]
    h = config["hidden_size"]
    attention: dict[str, tuple[int, ...]] = {}
    for name in "qkvo":
        attention |= {f"{name}_proj.weight": (h, h), f"{name}_proj.bias": (h,)}
    return config, _llama_shapes(config, attention)


def _describe_internlm2(sizes: Config) -> Description:
    config = _config(sizes, "InternLM2ForCausalLM", "internlm2", bias=False, rope_theta=1000000)
    h, f, v = (config[n] for n in ("hidden_size", "intermediate_size", "vocab_size"))
    packed = h + 2 * config["num_key_value_heads"] * (h // config["num_attention_heads"])
    shapes = {"model.tok_embeddings.weight": (v, h), "model.norm.weight": (h,)}
    shapes["output.weight"] = (v, h)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes |= {f"{p}{n}.weight": (h,) for n in ("attention_norm", "ffn_norm")}
        shapes |= {f"{p}attention.wqkv.weight": (packed, h), f"{p}attention.wo.weight": (h, h)}
        shapes |= {f"{p}feed_forward.w{n}.weight": (f, h) for n in (1, 3)}
        shapes[f"{p}feed_forward.w2.weight"] = (h, f)
    return config, shapes


def _describe_internlm3(sizes: Config, *, qkv_bias: bool, bias: bool) -> Description:
    scaling = {"rope_type": "dynamic", "factor": 6.0}
    config = _config(
        sizes, "InternLM3ForCausalLM", "internlm3", head_dim=16, qkv_bias=qkv_bias, bias=bias,
        rope_theta=50000.0, rope_scaling=scaling,
    )  # fmt: skip
    h, f, kv = (
        config["hidden_size"],
        config["intermediate_size"],
        16 * config["num_key_value_heads"],
    )
    attention: dict[str, tuple[int, ...]] = {}
    for name, rows in {"q": h, "k": kv, "v": kv, "o": h}.items():
        attention[f"{name}_proj.weight"] = (rows, h)
        if bias if name == "o" else qkv_bias:
            attention[f"{name}_proj.bias"] = (rows,)
    shapes = _llama_shapes(config, attention)
    for i in range(config["num_hidden_layers"] if bias else 0):
        for name, rows in {"gate": f, "up": f, "down": h}.items():
            shapes[f"model.layers.{i}.mlp.{name}_proj.bias"] = (rows,)
    return config, shapes


def _describe_baichuan_7b(sizes: Config) -> Description:
    config = _config(sizes, "BaichuanForCausalLM", "baichuan", model_max_length=512)
    del config["num_key_value_heads"]
    return config, _baichuan_shapes(config)


def _describe_baichuan_13b(sizes: Config) -> Description:
    """Six heads, so that the slopes are those of a number that is not a power of two."""
    config, _ = _describe_baichuan_7b({**sizes, "hidden_size": 96, "num_attention_heads": 6})
    del config["max_position_embeddings"]
    return config, _baichuan_shapes(config)


def _baichuan_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    h = config["hidden_size"]
    return _llama_shapes(config, {"W_pack.weight": (3 * h, h), "o_proj.weight": (h, h)})


def _config(sizes: Config, architecture: str, model_type: str, **extra: Any) -> Config:
    config = {key: value for key, value in sizes.items() if key != "head_dim"}
    return {**config, "architectures": [architecture], "model_type": model_type,
            "hidden_act": "silu", **extra}  # fmt: skip


def _llama_shapes(
    config: Config, attention: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    h, f, v = (config[n] for n in ("hidden_size", "intermediate_size", "vocab_size"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (v, h),
        "model.norm.weight": (h,),
        "lm_head.weight": (v, h),
    }
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes |= {f"{p}self_attn.{name}": shape for name, shape in attention.items()}
        shapes |= {f"{p}{n}.weight": (h,) for n in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{p}mlp.{n}_proj.weight": (f, h) for n in ("gate", "up")}
        shapes[f"{p}mlp.down_proj.weight"] = (h, f)
    return shapes


DESCRIPTIONS: dict[str, Callable[[Config], Description]] = {
    "internlm": _describe_internlm,
    "internlm2": _describe_internlm2,
    "internlm3": partial(_describe_internlm3, qkv_bias=True, bias=False),
    "internlm3-biased": partial(_describe_internlm3, qkv_bias=False, bias=True),
    "baichuan2-7b": _describe_baichuan_7b,
    "baichuan2-13b": _describe_baichuan_13b,
    "chatglm2-32k": partial(
        chatglm_files.described,
        architecture="ChatGLMForConditionalGeneration",
        rope_ratio=4,
        _name_or_path="THUDM/chatglm2-6b-32k",
    ),
    "chatglm3-32k": partial(
        chatglm_files.described, rope_ratio=50, _name_or_path="THUDM/chatglm3-6b-32k"
    ),
    "telechat2": references_ascend.describe_telechat2,
    "pangu-embedded": references_ascend.describe_pangu_embedded,
    "pangu-ultra": references_ascend.describe_pangu_ultra,
}
PUBLISHED: dict[str, Callable[[Config, Tensors, torch.Tensor], torch.Tensor]] = {
    "internlm": internlm,
    "internlm2": internlm2,
    "internlm3": internlm3,
    "internlm3-biased": internlm3,
    "baichuan2-7b": baichuan,
    "baichuan2-13b": baichuan,
    "chatglm2-32k": chatglm_files.logits,
    "chatglm3-32k": chatglm_files.logits,
    "telechat2": references_ascend.telechat2,
    "pangu-embedded": references_ascend.pangu_embedded,
    "pangu-ultra": references_ascend.pangu_ultra,
}
