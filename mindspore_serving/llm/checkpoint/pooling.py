"""Pooling of hidden states to a prompt's vector, as a sentence-transformers directory describes.

The directory has modules.json and a directory for each module. Knows no runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import load_json, read_optional_json
from mindspore_serving.llm.checkpoint.safetensors import read_safetensors
from mindspore_serving.llm.checkpoint.weights import to_f32
from mindspore_serving.llm.step import Vectors

MODULES = "modules.json"

Starts = npt.NDArray[np.intp]

# Older flag -> mode, in the order in which several modes are concatenated.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS: dict[str, Callable[[Vectors], Vectors]] = {
    "Tanh": np.tanh,
    "Identity": lambda x: x,
    "ReLU": lambda x: np.maximum(x, 0),
}


@dataclass(frozen=True, slots=True)
class PoolingDense:
    """A matrix [outputs, inputs] after the pooling, with its activation."""

    weight: Vectors
    bias: Vectors | None
    activation: str

    def apply(self, vectors: Vectors) -> Vectors:
        """Apply the layer to vectors [count, inputs]."""
        product: Vectors = vectors @ self.weight.T
        if self.bias is not None:
            product += self.bias
        return ACTIVATIONS[self.activation](product)


@dataclass(frozen=True, slots=True)
class Pooling:
    """Pooling of hidden states to vectors.

    The results of `modes` are concatenated; `denses` follow one after another.
    """

    modes: tuple[str, ...] = ("mean",)
    denses: tuple[PoolingDense, ...] = ()
    normalizes: bool = True

    @property
    def labels(self) -> None:
        """Absent labels: it makes vectors."""

    def size(self, hidden_size: int) -> int:
        """Return the size of a vector."""
        return len(self.denses[-1].weight) if self.denses else len(self.modes) * hidden_size

    def pool(self, states: Vectors, lengths: Sequence[int]) -> Vectors:
        """Pool states [tokens, hidden_size], prompt after prompt, to float32 [prompts, size]."""
        counts = np.asarray(lengths)
        starts = np.cumsum(counts) - counts
        pooled = [_pool(mode, states, starts, counts) for mode in self.modes]
        vectors: Vectors = np.concatenate(pooled, 1)
        for dense in self.denses:
            vectors = dense.apply(vectors)
        return vectors

    def apply(self, states: Vectors, lengths: Sequence[int]) -> Vectors:
        """Pool as `pool` does, and scale vectors to length 1 if the directory says so."""
        vectors = self.pool(states, lengths)
        return unit_vectors(vectors) if self.normalizes else vectors


def _pool(mode: str, states: Vectors, starts: Starts, counts: Starts) -> Any:
    if mode in ("cls", "lasttoken"):
        return states[starts if mode == "cls" else starts + counts - 1]
    if mode == "max":
        return np.maximum.reduceat(states, starts, axis=0)
    divisors = counts.astype(np.float32)
    if mode == "weightedmean":  # the first token counts once, the second twice
        positions = np.arange(len(states)) - np.repeat(starts, counts) + 1
        states = states * positions[:, None].astype(np.float32)
        divisors = divisors * (divisors + 1) / 2
    elif mode == "mean_sqrt_len_tokens":
        divisors = np.sqrt(divisors)
    return np.add.reduceat(states, starts, axis=0) / divisors[:, None]


def read_pooling(directory: Path, hidden_size: int) -> Pooling:
    """Read the pooling of a directory; without modules.json it is the normalised mean.

    Raises StartError naming a file that is broken, or a module that is not supported.
    """
    path = directory / MODULES
    if not path.exists():
        log.warning("%s has no modules.json: its tokens are averaged", directory.name)
        return Pooling()
    modes: tuple[str, ...] = ()
    denses: list[PoolingDense] = []
    normalizes = False
    for kind, module in _modules(path):
        if kind == "Pooling":
            modes = _modes(module / "config.json")
        elif kind == "Dense":
            denses.append(_read_dense(module))
        elif kind == "Normalize":
            normalizes = True
        elif kind != "Transformer":
            raise StartError(
                f"{path} has a module {kind!r}, expected Transformer, Pooling, Dense or Normalize"
            )
    if not modes:
        raise StartError(f"{path} has no module Pooling, expected one")
    _check_sizes(path, len(modes) * hidden_size, denses)
    return Pooling(modes, tuple(denses), normalizes)


def _modules(path: Path) -> list[tuple[str, Path]]:
    """Return (kind, directory) of each module, in order."""
    entries = load_json(path)
    try:
        modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    except (KeyError, TypeError) as error:
        raise StartError(f"{path} is no list of modules with type and path: {error}") from None
    for _, module in modules:
        if Path(module).is_absolute() or ".." in Path(module).parts:
            raise StartError(f"{path} names {module!r}, expected a directory beside it")
    return [(kind, path.parent / module) for kind, module in modules]


def _modes(path: Path) -> tuple[str, ...]:
    config = read_optional_json(path)
    names = config.get("pooling_mode")
    if names is None:
        modes = tuple(mode for flag, mode in FLAGS.items() if config.get(flag)) or ("mean",)
    else:
        modes = (names,) if isinstance(names, str) else tuple(names)
    for mode in modes:
        if mode not in FLAGS.values():
            raise StartError(
                f"{path} has pooling mode {mode!r}, expected one of {', '.join(FLAGS.values())}"
            )
    return modes


def _read_dense(directory: Path) -> PoolingDense:
    path = directory / "config.json"
    config = read_optional_json(path)
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    plain = (None, False, "sentence_embedding")
    odd = [key for key in ("use_residual", "module_input_name") if config.get(key) not in plain]
    if activation not in ACTIVATIONS or odd:
        problem = f"has {odd[0]}" if odd else f"has activation_function {activation!r}"
        raise StartError(f"{path} {problem}, expected a plain layer with {', '.join(ACTIVATIONS)}")
    file = directory / "model.safetensors"
    tensors = read_safetensors(file)
    if "linear.weight" not in tensors:
        raise StartError(f"{file} has no tensor 'linear.weight'")
    unknown = sorted(set(tensors) - {"linear.weight", "linear.bias"})
    if unknown:
        raise StartError(f"{file} has a tensor {unknown[0]!r}, which a Dense module does not have")
    arrays = {name: to_f32(x, f"tensor {name!r} of {file}") for name, x in tensors.items()}
    return PoolingDense(arrays["linear.weight"], arrays.get("linear.bias"), activation)


def _check_sizes(path: Path, width: int, denses: Sequence[PoolingDense]) -> None:
    for dense in denses:
        shape, bias = dense.weight.shape, dense.bias
        if len(shape) != 2 or shape[1] != width:
            raise StartError(f"{path}: a Dense module has shape {shape}, expected [*, {width}]")
        if bias is not None and bias.shape != shape[:1]:
            raise StartError(
                f"{path}: a Dense module's bias has shape {bias.shape}, expected {shape[:1]}"
            )
        width = len(dense.weight)


def recommended_max_length(directory: Path) -> int | None:
    """Return the recommended limit of a prompt's tokens, None if the directory has none."""
    for path in sorted(directory.glob("sentence_*_config.json")):
        limit = read_optional_json(path).get("max_seq_length")
        if limit is not None:
            if type(limit) is not int or limit < 1:
                raise StartError(f"{path} has max_seq_length {limit!r}, expected an int over 0")
            return limit
    limit = read_optional_json(directory / "tokenizer_config.json").get("model_max_length")
    return limit if type(limit) is int and limit > 0 else None


def unit_vectors(vectors: Vectors) -> Vectors:
    """Scale `vectors` [count, size] to length 1; zeros stay zeros."""
    lengths: Any = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, np.maximum(lengths, np.float32(1e-12)), dtype=np.float32)
