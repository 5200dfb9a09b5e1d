"""Tiny random checkpoints of every architecture, in Hugging Face's layout, and what the reference
implementation answers on them.

What transformers has is built and run by transformers; the rest by `references.py`.  The weights
are large enough that greedy tokens vary, so that equal tokens mean something.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.llm import architectures, references
from tests.llm.references import PUBLISHED

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
COMMON_SETTINGS = set(transformers.PretrainedConfig().to_dict())  # of no architecture
NOTHING: Mapping[str, Any] = {}
MAX_SAVED = 8  # models that are kept: to load one again takes longer than a pass through it
_saved: dict[Path, tuple[Any, set[tuple[str, int, int]]]] = {}  # by directory, with its files
VOCAB = 160
LAYERS = 3
EOS = 2  # in every config; the reference never stops at it
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
MIXED_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}

# name -> (class of transformers, what its config has beyond SIZES)
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3-tied": ("Llama", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN_ROPE}),
    "phi3": ("Phi3", {"rope_parameters": PARTIAL_ROPE}),
    "gemma2": (
        "Gemma2",
        {
            "sliding_window": 24,
            "layer_types": MIXED_LAYERS,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 15.0,
            "final_logit_softcapping": 40.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "sliding_window": 24,
            "layer_types": MIXED_LAYERS,
            "query_pre_attn_scalar": 24,
            "rope_parameters": GEMMA3_ROPE,
            "tie_word_embeddings": True,
        },
    ),
    "gpt2": ("GPT2", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
        },
    ),
}
ALL = (*TRANSFORMERS, *PUBLISHED)
TRANSFORMERS["llama-deep"] = ("Llama", {"num_hidden_layers": 4})  # to be cut; else as llama


def build(
    name: str, directory: Path, *, shards: int = 1, dtype: str = "float32", **settings: Any
) -> Path:
    """Write `name`'s checkpoint below `directory` and return its own directory.

    With `shards` > 1 there are about that many files and an index.  `dtype` is that of the file.
    `settings` are other ones of a configuration that transformers has, or other `SIZES`.
    """
    target = directory / name
    if name in TRANSFORMERS or name in architectures.TRANSFORMERS:
        _build_with_transformers(_model(name, settings), target, shards, getattr(torch, dtype))
    else:
        _build_published(name, target, shards, getattr(torch, dtype), SIZES | settings)
    return target


def _build_with_transformers(
    built: tuple[Any, str], target: Path, shards: int, dtype: torch.dtype
) -> None:
    model, family = built
    with _seeded(target.name):
        stored = ("_bias", "layer_scalar")
        biases = (pair for pair in model.named_buffers() if pair[0].endswith(stored))
        for key, weight in (*model.named_parameters(), *biases):
            _fill(
                key,
                weight.data,
                transposed=family == "GPT2",
                gemma="Gemma" in family,
                plus_one=family in {"Gemma", "Gemma2", "Gemma3"},
            )
    model.to(dtype)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    model.save_pretrained(target, max_shard_size=size // shards + 1 if shards > 1 else "1GB")
    _saved.pop(target, None)
    if dtype is torch.float32:
        _saved[target] = model, _files(target)
        while len(_saved) > MAX_SAVED:
            _saved.pop(next(iter(_saved)))


def _files(directory: Path) -> set[tuple[str, int, int]]:
    """Names, times and sizes: others if a test has changed one."""
    found = [(path.name, path.stat()) for path in directory.iterdir()]
    return {(name, stat.st_mtime_ns, stat.st_size) for name, stat in found}


def architecture(name: str) -> str:
    """What config.json calls one that transformers has."""
    family, _ = (architectures.TRANSFORMERS | TRANSFORMERS)[name]
    return family + ("LMHeadModel" if family == "GPT2" else "ForCausalLM")


def configuration(name: str) -> dict[str, Any]:
    """config.json of one that transformers has, without the settings that all models have."""
    config, _ = _config(name)
    own = {key: value for key, value in config.to_dict().items() if key not in COMMON_SETTINGS}
    return {**own, "architectures": [architecture(name)]}


def _model(name: str, settings: Mapping[str, Any]) -> tuple[Any, str]:
    """A model with any weights, and its family."""
    config, family = _config(name, settings)
    return getattr(transformers, architecture(name))(config), family


def _config(name: str, settings: Mapping[str, Any] = NOTHING) -> tuple[Any, str]:
    if name in architectures.TRANSFORMERS:
        family, extra = architectures.TRANSFORMERS[name]
        sizes = SIZES | {"num_hidden_layers": 2} | extra
    else:
        family, extra = TRANSFORMERS[name]
        sizes = SIZES | extra
    if family == "GPT2":
        config = transformers.GPT2Config(
            **{"vocab_size": VOCAB, "n_embd": 64, "n_layer": LAYERS, "n_head": 4,
               "n_positions": 512, "bos_token_id": 1, "eos_token_id": EOS, **settings}
        )  # fmt: skip
        return config, family
    kind = family + ("TextConfig" if family in architectures.TEXT_PARTS else "Config")
    known = getattr(transformers, kind)
    sizes = {key: size for key, size in sizes.items() if key in extra or _has(known, key)}
    return known(**sizes | settings), family


def _has(known: Any, key: str) -> bool:
    """Whether the configurations of class `known` have `key`, which can be set."""
    return key in known.attribute_map or key in _keys(known)


@cache
def _keys(known: Any) -> frozenset[str]:
    """Of the configurations of class `known`: one takes milliseconds to make."""
    return frozenset(known().to_dict())


def two_layers(name: str) -> dict[str, Any]:
    """The settings of one of `ALL` without its third layer, where time counts."""
    if name == "gpt2":
        return {"n_layer": 2}
    mixed = {"layer_types": MIXED_LAYERS[:2]} if name in {"gemma2", "gemma3"} else {}
    return {"num_hidden_layers": 2, **mixed}


def _build_published(
    name: str, target: Path, shards: int, dtype: torch.dtype, sizes: Mapping[str, Any]
) -> None:
    config, shapes = references.DESCRIPTIONS[name](dict(sizes))
    tensors = {}
    with _seeded(name):
        for key, shape in shapes.items():
            tensors[key] = torch.empty(shape)
            _fill(key, tensors[key])
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(config))
    keys = sorted(tensors)
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    where = {key: files[i % shards] for i, key in enumerate(keys)}
    for file in files:
        part = {key: tensors[key].to(dtype) for key in keys if where[key] == file}
        save_file(part, target / (file if shards > 1 else "model.safetensors"), {"format": "pt"})
    if shards > 1:
        index = {"metadata": {}, "weight_map": where}
        (target / "model.safetensors.index.json").write_text(json.dumps(index))


@contextmanager
def _seeded(name: str) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(name.encode()))
        yield


def _fill(
    key: str, weight: torch.Tensor, *, transposed: bool = False, gemma: bool = False,
    plus_one: bool = False,
) -> None:  # fmt: skip
    """With `plus_one`, norms add 1 themselves.  Gemma's embeddings are scaled up and tied: small,
    and the last norm large, lest every token be followed by itself."""
    if key == "model.norm.weight" and gemma:
        weight.normal_(12.0, 0.2)
    elif key.endswith("layer_scalar"):
        weight.fill_(0.8)
    elif key.endswith(("q_norm.weight", "k_norm.weight")) and plus_one:
        weight.normal_(1.5, 0.2)  # attention that picks tokens out, and does not average them
    elif key.endswith("bias"):
        weight.normal_(0.0, 0.2)
    elif "norm" in key or (".ln_" in key and key.endswith("weight")):
        weight.normal_(0.0 if plus_one else 1.0, 0.2)
    elif weight.dim() == 1:
        weight.normal_(0.0, 0.2)
    elif "per_layer" in key and "embed" in key:
        weight.normal_(0.0, 0.3)
    elif "embed" in key or ".wte" in key or ".wpe" in key:
        weight.normal_(0.0, 0.05 if gemma else 0.5)
    else:
        gain = 6.0 if gemma and "q_proj" in key else 2.0
        weight.normal_(0.0, gain * weight.shape[-2 if transposed else -1] ** -0.5)


def _implementation(name: str) -> str:
    """Of attention: transformers 5.23 adds Falcon's ALiBi twice where it is not fused."""
    return "sdpa" if name == "falcon-alibi" else "eager"


@lru_cache(maxsize=32)
def _reference(directory: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """[T] ids -> [T, vocab] logits, float32, without any cache."""
    if directory.name in PUBLISHED:
        config = json.loads((directory / "config.json").read_text())
        tensors: dict[str, torch.Tensor] = {}
        for file in sorted(directory.glob("*.safetensors")):
            tensors |= load_file(file)
        tensors = {key: tensor.float() for key, tensor in tensors.items()}
        forward = PUBLISHED[directory.name]
        return lambda ids: forward(config, tensors, ids)
    model, files = _saved.pop(directory, (None, set()))
    if model is not None and _files(directory) == files:
        model.set_attn_implementation(_implementation(directory.name))
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation=_implementation(directory.name)
        )
    model.eval()
    return lambda ids: model(ids[None], use_cache=False).logits[0]


@torch.inference_mode()
def logits(directory: Path, ids: Sequence[int]) -> np.ndarray:
    """The reference's logits of every position, float32 [T, vocab]."""
    return _reference(directory)(torch.tensor(list(ids))).float().numpy()


@lru_cache(maxsize=256)
def greedy(directory: Path, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The reference's `count` most likely next tokens, one by one; it does not stop at EOS."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(logits(directory, ids)[-1].argmax()))
    return tuple(ids[len(prompt) :])


def likeliest(directory: Path, prompt: Sequence[int], answer: Sequence[int]) -> tuple[int, ...]:
    """The reference's likeliest token after `prompt` and after each token of `answer` but the last.

    An answer is the reference's greedy one if and only if it is equal to this, for one forward
    pass in place of one per token.
    """
    ids = [*prompt, *answer[:-1]]
    best = logits(directory, ids).argmax(-1)
    return tuple(int(token) for token in best[len(prompt) - 1 :])


def shortfall(directory: Path, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """How far the reference's logit of a token of `answer` is below its largest, at most: 0 for its
    greedy answer, and next to 0 where processors round two tokens that are as likely otherwise."""
    found = logits(directory, [*prompt, *answer[:-1]])[len(prompt) - 1 :]
    own = np.take_along_axis(found, np.array(answer)[:, None], -1)
    return float((found.max(-1, keepdims=True) - own).max() / np.abs(found).max())


def prompts(count: int, *, seed: int = 0, longest: int = 60) -> list[tuple[int, ...]]:
    """Random prompts of 1 to `longest` tokens, the first one of `longest`."""
    random = np.random.default_rng(seed)
    lengths = [longest, *random.integers(1, longest, count - 1)]
    return [tuple(int(t) for t in random.integers(3, VOCAB, length)) for length in lengths]
