"""LoRA adapters on disk, as PEFT writes them: adapter_config.json, adapter_model.safetensors.

An adapter adds scale * up @ down to some matrices of a model.  Knows no runtime.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# Options that change the sum above, and the only accepted value of each.
PLAIN: dict[str, Any] = {
    "use_dora": False,
    "bias": "none",
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "trainable_token_indices": None,
}


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to a matrix: up [out, rank], with the scale in it, @ down [rank, in]."""

    down: Matrix
    up: Matrix


def read_adapter(directory: str | Path) -> dict[str, LowRank]:
    """Checkpoint tensor ("model.layers.0.self_attn.q_proj.weight") -> what is added to it.

    Raises StartError naming the file, and the key or tensor that is missing or not supported.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise StartError(f"{directory} is not a directory; expected one with {CONFIG}")
    rank, scale = _rank_and_scale(directory / CONFIG)
    matrices = _matrices(directory / FILE)
    changes = {}
    for module in dict.fromkeys(module for module, _ in matrices):
        where = f"{directory / FILE}: {module!r}"
        down, up = matrices.get((module, DOWN)), matrices.get((module, UP))
        if down is None or up is None:
            raise StartError(f"{where} has one of lora_A and lora_B, expected both")
        if down.ndim != 2 or up.ndim != 2 or not down.shape[0] == up.shape[1] == rank:
            raise StartError(
                f"{where} has lora_A {list(down.shape)} and lora_B {list(up.shape)}, expected "
                f"[{rank}, in] and [out, {rank}]"
            )
        changes[f"{module}.weight"] = LowRank(down, up * np.float32(scale))
    if not changes:
        raise StartError(f"{directory / FILE} has no matrices")
    return changes


def _rank_and_scale(path: Path) -> tuple[int, float]:
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise StartError(f"{path} has peft_type {config.get('peft_type')!r}, expected 'LORA'")
    for key, plain in PLAIN.items():
        value = config.get(key, plain)
        if value != plain and value:
            raise StartError(f"{path} has {key} {value!r}, which is not supported")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise StartError(f"{path} has r {rank!r}, expected an int >= 1")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise StartError(f"{path} has lora_alpha {alpha!r}, expected a number")
    return rank, alpha / (sqrt(rank) if config.get("use_rslora") else rank)


def _matrices(path: Path) -> Mapping[tuple[str, str], Matrix]:
    """(module, DOWN or UP) -> matrix."""
    found = {}
    for name, stored in read_safetensors(path).items():
        kind = next((kind for kind in (DOWN, UP) if name.endswith(kind)), None)
        if kind is None or not name.startswith(PREFIX):
            raise StartError(
                f"{path}: tensor {name!r} is not supported, expected {PREFIX}<module>{DOWN} "
                f"and {UP}"
            )
        module = name[len(PREFIX) : -len(kind)]
        found[module, kind] = to_f32(stored, f"{path}: tensor {name!r}")
    return found
