"""A small random Llama in numpy: the reference for a device, and a load to measure its speed.

It is composed of the goldens of the primitives.  Knows no MindSpore.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.runtimes.mindspore.primitives import goldens
from mindspore_serving.llm.runtimes.mindspore.primitives.cases import rounded_numbers

F32 = npt.NDArray[np.float32]
PROMPT = tuple(range(3, 40))
BLOCK_SIZE = 128
THETA, EPS = 10000.0, 1e-5


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a Llama."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def config(self) -> dict[str, Any]:
        """Return config.json."""
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate, "vocab_size": self.vocab,
            "rms_norm_eps": EPS, "rope_theta": THETA, "max_position_embeddings": 2048,
            "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32",
        }  # fmt: skip

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors by their names in checkpoints."""
        kv = self.kv_heads * self.head_dim
        square, wide = (self.hidden, self.hidden), (self.intermediate, self.hidden)
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
            "lm_head.weight": (self.vocab, self.hidden),
        }
        for layer in range(self.layers):
            sizes = {
                "input_layernorm": (self.hidden,), "post_attention_layernorm": (self.hidden,),
                "self_attn.q_proj": square, "self_attn.k_proj": (kv, self.hidden),
                "self_attn.v_proj": (kv, self.hidden), "self_attn.o_proj": square,
                "mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": wide[::-1],
            }  # fmt: skip
            shapes |= {f"model.layers.{layer}.{name}.weight": each for name, each in sizes.items()}
        return shapes


TINY = ModelSizes(128, 2, 4, 2, 256, 320)
MEASURED = ModelSizes(2048, 8, 16, 8, 5504, 32000)  # 500 million weights


def random_weights(sizes: ModelSizes) -> dict[str, F32]:
    """Return weights that bfloat16 holds exactly, of sizes that keep activations near 1."""
    draw = np.random.default_rng(5)
    weights: dict[str, F32] = {}
    for name, shape in sizes.shapes().items():
        spread = 1.0 if len(shape) == 1 or "embed" in name else shape[-1] ** -0.5
        values = draw.standard_normal(shape, np.float32) * np.float32(spread)
        weights[name] = rounded_numbers(values + (len(shape) == 1), "bfloat16")
    return weights


def write_model(directory: Path, sizes: ModelSizes, weights: dict[str, F32]) -> None:
    """Write config.json and model.safetensors.  Needs the package safetensors."""
    from safetensors.numpy import save_file

    (directory / "config.json").write_text(json.dumps(sizes.config()))
    save_file(weights, directory / "model.safetensors")


def reference_logits(sizes: ModelSizes, weights: dict[str, F32], tokens: Sequence[int]) -> F32:
    """Return the logits behind each token, [T, vocab], in float32."""
    lengths = np.array([len(tokens)], np.int32)
    dim = sizes.head_dim
    frequencies = THETA ** (-np.arange(0, dim, 2) / dim)
    angles = np.tile(np.arange(len(tokens))[:, None] * frequencies, 2).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    x = weights["model.embed_tokens.weight"][list(tokens)]
    for layer in range(sizes.layers):
        block = {
            name.split(".")[-2]: value for name, value in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }  # fmt: skip
        h, _ = goldens.rms_norm(x, block["input_layernorm"], eps=EPS)
        q, k, v = (goldens.matmul(h, block[f"{part}_proj"]) for part in "qkv")
        q, k = goldens.rope(q, k, cos, sin, lengths)
        heads = {"head_num": sizes.heads, "kv_head_num": sizes.kv_heads, "scale": dim**-0.5}
        attended = goldens.flash_attention(q, k, v, None, lengths, **heads)
        x = x + goldens.matmul(attended, block["o_proj"])
        h, _ = goldens.rms_norm(x, block["post_attention_layernorm"], eps=EPS)
        both = [goldens.matmul(h, block[f"{part}_proj"]) for part in ("gate", "up")]
        x = x + goldens.matmul(goldens.swiglu(np.concatenate(both, -1)), block["down_proj"])
    x, _ = goldens.rms_norm(x, weights["model.norm.weight"], eps=EPS)
    logits: F32 = goldens.matmul(x, weights["lm_head.weight"])
    return logits
