"""LoRA adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.

An adapter adds scale * up @ down to some matrices of a model, and may replace others. Knows no
runtime and no model.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
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
# Name suffixes of a low-rank pair, (down, up) -> whether it changes an embedding.
PAIRS = {
    (".lora_A.weight", ".lora_B.weight"): False,
    (".lora_embedding_A", ".lora_embedding_B"): True,
}
MERGE = "merge it into the model with PEFT's merge_and_unload, and serve that"
# Options that change the formula above -> the only accepted value.
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
# Values of init_lora_weights that leave the model's weights unchanged.
INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")
NAME = re.compile(r"\^?[\w.]+")  # in rank_pattern and alpha_pattern


@dataclass(frozen=True, slots=True)
class LowRank:
    """Low-rank update of a matrix: up [out, rank], scale included, @ down [rank, in].

    For an embedding, `out` is the vocabulary and `in` the features of a token.
    """

    down: Matrix
    up: Matrix


@dataclass(frozen=True, slots=True)
class Adapter:
    """Updates by tensor name ("model.layers.0.self_attn.q_proj.weight").

    `added` has what is added to a matrix, `replaced` what takes its place.
    """

    added: dict[str, LowRank] = field(default_factory=dict)
    replaced: dict[str, Matrix] = field(default_factory=dict)

    def digest(self) -> bytes:
        """Return a hash of all updates."""
        digest = blake2b(digest_size=16)
        for name, array in sorted(self._arrays(), key=lambda pair: pair[0]):
            digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()

    def _arrays(self) -> Iterator[tuple[str, Matrix]]:
        for name, update in self.added.items():
            yield f"down {name}", update.down
            yield f"up {name}", update.up
        for name, matrix in self.replaced.items():
            yield f"all {name}", matrix


def read_adapter(directory: str | Path, max_rank: int | None = None) -> Adapter:
    """Read the adapter in `directory`.

    Raises StartError naming the file, and the key or tensor that is missing or not supported, or a
    rank over `max_rank`.
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
            adapter.replaced[module + WEIGHT] = tensor
            continue
        label = f"{directory / FILE}: {module!r}"
        down, up = (tensors.get(f"{PREFIX}{module}{end}") for end in ends)
        if down is None or up is None:
            raise StartError(f"{label} has one of lora_A and lora_B, expected both")
        rank, scale = scales.of(module)
        if down.ndim != 2 or up.ndim != 2 or not down.shape[0] == up.shape[1] == rank:
            raise StartError(
                f"{label} has lora_A {list(down.shape)} and lora_B {list(up.shape)}, expected "
                f"[{rank}, in] and [out, {rank}]"
            )
        if PAIRS[ends]:  # an embedding, stored transposed, as its rows are looked up
            down, up = up.T, down.T
        adapter.added[module + WEIGHT] = LowRank(down, up * np.float32(scale))
    if not tensors:
        raise StartError(f"{directory / FILE} has no matrices")
    return adapter


class _Scales:
    """Ranks and scales of adapter_config.json."""

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
            f"{self._path} has init_lora_weights {initial!r}, which changes the model's "
            "weights: save the adapter with PEFT's path_initial_model_for_weight_conversion, which "
            f"converts it to a plain adapter, or {MERGE}"
        )

    def of(self, module: str) -> tuple[int, float]:
        """Return the rank and the scale of a module."""
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
        """Return the value of the first name in `pattern` that ends `module`, or the default."""
        values = self._config.get(pattern) or {}
        if not isinstance(values, dict):
            raise StartError(f"{self._path} has {pattern} {values!r}, expected an object")
        for key, value in values.items():
            if not NAME.fullmatch(key):  # a regular expression could take forever
                raise StartError(f"{self._path}: {pattern} has {key!r}, expected names of modules")
            name = key.removeprefix("^")
            if module == name or (name == key and module.endswith(f".{name}")):
                return value
        return self._config.get(default)


def _tensors(path: Path) -> dict[str, Matrix]:
    """Read all tensors as float32 copies.

    Raises StartError for a number that is not finite, which would spoil other rows of a step.
    """
    tensors = {}
    for name, stored in read_safetensors(path).items():
        label = f"{path}: tensor {name!r}"
        tensors[name] = np.array(to_f32(stored, label))
        if not np.isfinite(tensors[name]).all():
            raise StartError(f"{label} has numbers that are not finite")
    return tensors


def _split(name: str) -> tuple[str, tuple[str, str] | None]:
    """Return the module of a tensor and the suffixes of its pair, None if it replaces a matrix."""
    if name.startswith(PREFIX):
        for ends in PAIRS:
            for end in ends:
                if name.endswith(end):
                    return name[len(PREFIX) : -len(end)], ends
        if name.endswith(WEIGHT) and "lora_" not in name:
            module = name[len(PREFIX) : -len(WEIGHT)]
            return module.removesuffix(".base_layer"), None  # an embedding with a pair of its own
    accepted = ", ".join(end for pair in PAIRS for end in pair)
    raise StartError(
        f"tensor {name!r} of the adapter is not supported, expected {PREFIX}<module> and one of "
        f"{accepted}, {WEIGHT}"
    )
