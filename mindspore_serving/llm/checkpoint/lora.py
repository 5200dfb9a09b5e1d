"""LoRA adapters on disk, as PEFT writes them: adapter_config.json, adapter_model.safetensors.

An adapter adds scale * up @ down to some matrices of a model, and may have others in their place.
Knows no runtime and no model.
"""

import re
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import read_json
from mindspore_serving.llm.checkpoint.safetensors import read_safetensors
from mindspore_serving.llm.checkpoint.weights import to_f32

Matrix = npt.NDArray[np.float32]

CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
WEIGHT = ".weight"
# How the names of a pair of low rank end, (down, up), and whether it changes an embedding.
PAIRS = {
    (".lora_A.weight", ".lora_B.weight"): False,
    (".lora_embedding_A", ".lora_embedding_B"): True,
}
MERGE = "merge it into the model with PEFT's merge_and_unload, and serve that"
# Options that change the sum above, and the only accepted value of each.
PLAIN: dict[str, Any] = {
    "use_dora": False,
    "use_qalora": False,
    "bias": "none",
    "lora_bias": False,
    "trainable_token_indices": None,
    "layer_replication": None,
    "target_parameters": None,
    "alora_invocation_tokens": None,
    "ensure_weight_tying": False,
}
# How A and B begin their training where the model's own matrices stay as they are.
INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
NAME = re.compile(r"\^?[\w.]+")  # in rank_pattern and alpha_pattern


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to a matrix: up [out, rank], with the scale in it, @ down [rank, in].

    Of an embedding, `out` is the vocabulary and `in` the features of a token.
    """

    down: Matrix
    up: Matrix


@dataclass(frozen=True, slots=True)
class Adapter:
    """By checkpoint tensor ("model.layers.0.self_attn.q_proj.weight"): what is added to it, and
    what is in its place.
    """

    added: dict[str, LowRank] = field(default_factory=dict)
    whole: dict[str, Matrix] = field(default_factory=dict)


def read_adapter(directory: str | Path, max_rank: int | None = None) -> Adapter:
    """Raises StartError naming the file, and the key or tensor that is missing or not supported;
    also for ranks over `max_rank`.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise StartError(f"{directory} is not a directory; expected one with {CONFIG}")
    scales = _Scales(directory / CONFIG, max_rank)
    tensors = _tensors(directory / FILE)
    adapter = Adapter()
    for name, tensor in tensors.items():
        module, ends = _split(name)
        if ends is None:
            adapter.whole[module + WEIGHT] = tensor
            continue
        where = f"{directory / FILE}: {module!r}"
        down, up = (tensors.get(f"{PREFIX}{module}{end}") for end in ends)
        if down is None or up is None:
            raise StartError(f"{where} has one of lora_A and lora_B, expected both")
        rank, scale = scales.of(module)
        if down.ndim != 2 or up.ndim != 2 or not down.shape[0] == up.shape[1] == rank:
            raise StartError(
                f"{where} has lora_A {list(down.shape)} and lora_B {list(up.shape)}, expected "
                f"[{rank}, in] and [out, {rank}]"
            )
        if PAIRS[ends]:  # of a table, whose rows are chosen and not multiplied
            down, up = up.T, down.T
        adapter.added[module + WEIGHT] = LowRank(down, up * np.float32(scale))
    if not tensors:
        raise StartError(f"{directory / FILE} has no matrices")
    return adapter


class _Scales:
    """What adapter_config.json says of ranks and scales."""

    def __init__(self, path: Path, max_rank: int | None) -> None:
        self._path = path
        self._max_rank = max_rank
        self._config = config = read_json(path)
        if config.get("peft_type") != "LORA":
            raise StartError(f"{path} has peft_type {config.get('peft_type')!r}, expected 'LORA'")
        for key, plain in PLAIN.items():
            value = config.get(key, plain)
            if value != plain and value:
                raise StartError(f"{path} has {key} {value!r}, which is not supported; {MERGE}")
        self._check_start(config.get("init_lora_weights", True))

    def _check_start(self, initial: object) -> None:
        if initial in INITIAL:
            return
        raise StartError(
            f"{self._path} has init_lora_weights {initial!r}, which changes the model's own "
            "weights: save the adapter with PEFT's path_initial_model_for_weight_conversion, which "
            f"makes a plain one of it, or {MERGE}"
        )

    def of(self, module: str) -> tuple[int, float]:
        """The rank and the scale of a module."""
        rank = self._value("rank_pattern", module, "r")
        alpha = self._value("alpha_pattern", module, "lora_alpha")
        if type(rank) is not int or rank < 1:
            raise StartError(f"{self._path} has r {rank!r}, expected an int >= 1")
        if self._max_rank is not None and rank > self._max_rank:
            raise StartError(
                f"{self._path} has r {rank}, expected at most {self._max_rank} (max_lora_rank)"
            )
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not np.isfinite(alpha):
            raise StartError(f"{self._path} has lora_alpha {alpha!r}, expected a number")
        return rank, alpha / (sqrt(rank) if self._config.get("use_rslora") else rank)

    def _value(self, pattern: str, module: str, default: str) -> object:
        """Of the first name in `pattern` that is the end of `module`, else the `default`'s."""
        found = self._config.get(pattern) or {}
        if not isinstance(found, dict):
            raise StartError(f"{self._path} has {pattern} {found!r}, expected an object")
        for key, value in found.items():
            if not NAME.fullmatch(key):  # PEFT takes any regular expression, and may take for ever
                raise StartError(f"{self._path}: {pattern} has {key!r}, expected names of modules")
            name = key.removeprefix("^")
            if module == name or (name == key and module.endswith(f".{name}")):
                return value
        return self._config.get(default)


def _tensors(path: Path) -> dict[str, Matrix]:
    """All of the file, copied.  A number that is not finite would spoil other rows of a step."""
    found = {}
    for name, stored in read_safetensors(path).items():
        where = f"{path}: tensor {name!r}"
        found[name] = np.array(to_f32(stored, where))
        if not np.isfinite(found[name]).all():
            raise StartError(f"{where} has numbers that are not finite")
    return found


def _split(name: str) -> tuple[str, tuple[str, str] | None]:
    """The module of a tensor, and the pair that it is of; None if it takes a matrix's place."""
    if name.startswith(PREFIX):
        for ends in PAIRS:
            for end in ends:
                if name.endswith(end):
                    return name[len(PREFIX) : -len(end)], ends
        if name.endswith(WEIGHT) and "lora_" not in name:
            module = name[len(PREFIX) : -len(WEIGHT)]
            return module.removesuffix(".base_layer"), None  # an embedding's, beside its pair
    accepted = ", ".join(end for pair in PAIRS for end in pair)
    raise StartError(
        f"tensor {name!r} of the adapter is not supported, expected {PREFIX}<module> and one of "
        f"{accepted}, {WEIGHT}"
    )
