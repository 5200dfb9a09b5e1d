"""Adapters on disk, and the models that they make of another, by the definition: W + s * B @ A."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RANK, ALPHA = 4, 6.0
SCALE = ALPHA / RANK
ATTENTION = ("self_attn.q_proj", "self_attn.v_proj")
INNER = (
    *(*ATTENTION, "self_attn.k_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
OUTSIDE = ("model.embed_tokens", "lm_head")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ENDS = ((".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B"))
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}


def write(directory: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def adapter(
    model: Path, modules: tuple[str, ...], seed: int, rank: int = RANK
) -> dict[str, torch.Tensor]:
    """Random matrices for `modules` of every layer, or of `OUTSIDE`, under PEFT's names."""
    weights = load_file(model / "model.safetensors")
    random = torch.Generator().manual_seed(seed)
    count = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    layers = [f"model.layers.{layer}.{{}}" for layer in range(count)]
    tensors = {}
    for module in modules:
        for where in ["{}"] if module in OUTSIDE else layers:
            name = where.format(module)
            out, into = weights.get(f"{name}.weight", weights[EMBEDDING]).shape
            sizes = (out, into) if "embed" in module else (into, out)
            shapes = ((rank, sizes[0]), (sizes[1], rank))
            for end, shape in zip(ENDS["embed" in module], shapes, strict=True):
                values = torch.randn(shape, generator=random) * shape[1] ** -0.5
                tensors[f"base_model.model.{name}{end}"] = values
    return tensors


def merged(model: Path, tensors: dict[str, torch.Tensor], target: Path) -> Path:
    """The model with the adapter in its weights, by the definition."""
    shutil.copytree(model, target)
    weights = load_file(model / "model.safetensors")
    if HEAD not in weights:
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        weights[HEAD] = weights[EMBEDDING].clone()
    for name, down in tensors.items():
        module, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
        if kind == "A.weight":
            up = tensors[name.replace(".lora_A.", ".lora_B.")]
            weights[f"{module}.weight"] += SCALE * (up @ down)
        elif kind == "embedding_A":
            up = tensors[name.replace("embedding_A", "embedding_B")]
            weights[f"{module}.weight"] += SCALE * (up @ down).T
        elif not kind:
            weights[module] = down
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target
