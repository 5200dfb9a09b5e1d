"""Tiny random encoder checkpoints in Hugging Face's layout, and their states by transformers."""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

VOCAB = 160
LONGEST = 70
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": LONGEST,
}
ROBERTA = {"max_position_embeddings": LONGEST + 2, "pad_token_id": 1, "type_vocab_size": 1}
MPNET = {"max_position_embeddings": LONGEST + 2, "pad_token_id": 1}
DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 64,
    "hidden_dim": 96,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": LONGEST,
}
MODERNBERT = {
    **SIZES,
    "num_hidden_layers": 4,
    "pad_token_id": 0,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "local_attention": 16,
}
GEMMA = {
    **SIZES,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 14,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "use_bidirectional_attention": True,
}
# name -> (class of transformers, its config)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", SIZES),
    "bert-tanh": ("BertModel", {**SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    "bert-silu": ("BertModel", {**SIZES, "hidden_act": "silu"}),
    "bert-masked": ("BertForMaskedLM", SIZES),
    "roberta": ("RobertaModel", {**SIZES, **ROBERTA}),
    "roberta-masked": ("RobertaForMaskedLM", {**SIZES, **ROBERTA}),
    "xlm-roberta": ("XLMRobertaModel", {**SIZES, **ROBERTA}),
    "camembert": ("CamembertModel", {**SIZES, **ROBERTA}),
    "distilbert": ("DistilBertModel", DISTILBERT),
    "distilbert-masked": ("DistilBertForMaskedLM", DISTILBERT),
    "modernbert": ("ModernBertModel", MODERNBERT),
    "modernbert-biased": (
        "ModernBertModel",
        {**MODERNBERT, "attention_bias": True, "mlp_bias": True, "norm_bias": True},
    ),
    "modernbert-masked": ("ModernBertForMaskedLM", MODERNBERT),
    "gemma": ("Gemma3TextModel", GEMMA),
    "mpnet": ("MPNetModel", {**SIZES, **MPNET}),
    "mpnet-masked": ("MPNetForMaskedLM", {**SIZES, **MPNET}),
}


def build(name: str, directory: Path) -> Path:
    """Write `name`'s checkpoint below `directory` and return its own directory."""
    target = directory / name
    kind, sizes = FAMILIES[name]
    model_class = getattr(transformers, kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(name.encode()))
        model = model_class(model_class.config_class(**sizes))
        for key, weight in model.named_parameters():
            if "norm" in key.lower():
                weight.data.normal_(1.0 if key.endswith("weight") else 0.0, 0.2)
            else:
                weight.data.normal_(0.0, 0.2 if weight.dim() == 1 else 0.3)
    model.save_pretrained(target)
    return target


def rename_as_tensorflow_did(directory: Path) -> None:
    """Call the tensors of norms gamma and beta."""
    path = directory / "model.safetensors"
    tensors = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for key, tensor in load_file(path).items()
    }
    save_file(tensors, path, {"format": "pt"})


def describe_modules(
    directory: Path, pooling: dict[str, Any], *, normalizes: bool, dense: Sequence[Any] = ()
) -> None:
    """The files of sentence-transformers; `dense` is (weight, bias, activation)."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if dense:
        weight, bias, activation = dense
        place = directory / "2_Dense"
        place.mkdir()
        (place / "config.json").write_text(
            json.dumps({"activation_function": f"torch.nn.modules.activation.{activation}"})
        )
        tensors = {"linear.weight": torch.tensor(weight), "linear.bias": torch.tensor(bias)}
        save_file(tensors, place / "model.safetensors")
        modules.append(("2_Dense", "Dense"))
    if normalizes:
        modules.append(("9_Normalize", "Normalize"))
    kinds = "sentence_transformers.models."
    entries = [{"path": path, "type": kinds + kind} for path, kind in modules]
    (directory / "modules.json").write_text(json.dumps(entries))


@lru_cache(maxsize=16)
def _reference(directory: Path) -> Any:
    return transformers.AutoModel.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@torch.inference_mode()
def states(directory: Path, prompt: Sequence[int]) -> np.ndarray:
    """The reference's final hidden states, one prompt alone: float32 [tokens, hidden size]."""
    model = _reference(directory)
    return model(torch.tensor([list(prompt)])).last_hidden_state[0].numpy()


def prompts(count: int, *, seed: int = 0, longest: int = 60) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens, the first one of `longest`."""
    random = np.random.default_rng(seed)
    lengths = [longest, *random.integers(1, longest + 1, count - 1)]
    return [random.integers(3, VOCAB, length).tolist() for length in lengths]
