"""Heads behind an encoder: the layers from hidden states to logits, computed by numpy.

They are a thousandth of the encoder's work.  A head takes states [n, hidden_size].  Checkpoints of
the families differ by the names of tensors and by a layer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_serving.core.tasks import split_architecture
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models import encoder_architecture
from mindspore_serving.llm.models.layer import GELU
from mindspore_serving.llm.models.spec import from_config
from mindspore_serving.llm.step import Vectors

Layer = Callable[[Vectors], Vectors]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_CLS = "cls.predictions"


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of a family's tensors.

    A sequence head has a dense layer with its activation, and a matrix; a masked head has a dense
    layer, a norm, and a matrix, which may have one of several biases.
    """

    dense: str = "classifier.dense"
    activation: Layer = np.tanh
    labels: str = "classifier.out_proj"
    masked_dense: str = "lm_head.dense"
    masked_norm: str = "lm_head.layer_norm"
    masked: str = "lm_head.decoder.weight"
    biases: tuple[str, ...] = ("lm_head.bias", "lm_head.decoder.bias")


_FAMILIES = {
    "Bert": _Names(
        "pooler.dense", np.tanh, "classifier", f"{_CLS}.transform.dense",
        f"{_CLS}.transform.LayerNorm", f"{_CLS}.decoder.weight",
        (f"{_CLS}.bias", f"{_CLS}.decoder.bias"),
    ),
    "DistilBert": _Names(
        "pre_classifier", lambda x: np.maximum(x, 0), "classifier", "vocab_transform",
        "vocab_layer_norm", "vocab_projector.weight", ("vocab_projector.bias",),
    ),
}  # fmt: skip
_ROBERTA = _Names()  # also for all other families but ModernBERT
_MODERN = "ModernBert"
# Prefixes of the tensors of heads, for labels and for words.
LABELS = ("classifier.", "pre_classifier.", "score.", "head.")
MASKED = ("cls.predictions.", "lm_head.", "vocab_", "decoder.", "head.")


@dataclass(frozen=True, slots=True)
class ModuleHead:
    """A head; `apply` turns states [n, hidden_size] into logits [n, num_outputs]."""

    apply: Layer
    num_outputs: int

    def behind(self, *layers: Layer) -> "ModuleHead":
        """Return this head behind `layers`."""
        return ModuleHead(_chain(*layers, self.apply), self.num_outputs)


def sequence_head(checkpoint: Checkpoint) -> ModuleHead:
    """Return the head for pooled states of texts.  Raises StartError for a wrong tensor."""
    return _build_checked(checkpoint, _sequence_head, LABELS)


def token_head(checkpoint: Checkpoint) -> ModuleHead:
    """Return the head for every state [tokens, hidden_size].

    Raises StartError for a wrong tensor.
    """
    return _build_checked(checkpoint, _token_head, LABELS)


def masked_head(checkpoint: Checkpoint) -> ModuleHead:
    """Return the head for the states of masks [masks, hidden_size]; outputs are tokens.

    Raises StartError for a wrong tensor.
    """
    return _build_checked(checkpoint, _masked_head, MASKED)


def _build_checked(
    checkpoint: Checkpoint, build: Callable[[Checkpoint], ModuleHead], prefixes: tuple[str, ...]
) -> ModuleHead:
    """Return what `build` makes, and check that it reads all tensors that begin with `prefixes`.

    Raises StartError for a tensor that is not read, unless it repeats another one.
    """
    noting = checkpoint.tracked()
    head = build(noting)
    read = [checkpoint.stored(name).bits for name in noting.read]
    for name in set(checkpoint.names()) - noting.read:
        bits = checkpoint.stored(name).bits
        if name.startswith(prefixes) and not any(np.array_equal(bits, other) for other in read):
            raise StartError(
                f"{checkpoint.directory} has a tensor {name!r}, which the head of "
                f"{checkpoint.config['architectures'][0]} does not use: results would be wrong "
                "without it"
            )
    return head


def _sequence_head(checkpoint: Checkpoint) -> ModuleHead:
    family = _family(checkpoint)
    if family == _MODERN:
        return _token_head(checkpoint)
    names = _FAMILIES.get(family, _ROBERTA)
    first, last = (_biased(checkpoint, name) for name in (names.dense, names.labels))
    return last.behind(first.apply, names.activation)


def _token_head(checkpoint: Checkpoint) -> ModuleHead:
    last = _biased(checkpoint, "classifier")
    return last.behind(*_modern_layers(checkpoint)) if _family(checkpoint) == _MODERN else last


def _masked_head(checkpoint: Checkpoint) -> ModuleHead:
    family, form = _family(checkpoint), encoder_architecture(checkpoint.config)
    words = f"{form.names.embedding}.weight"  # the matrix in most checkpoints
    if family == _MODERN:
        matrix = "decoder.weight" if checkpoint.has("decoder.weight") else words
        last = _matrix(checkpoint, matrix, _bias_of(checkpoint, "decoder"))
        return last.behind(*_modern_layers(checkpoint))
    names, spec = _FAMILIES.get(family, _ROBERTA), from_config(checkpoint.config, architecture=form)
    matrix = names.masked if checkpoint.has(names.masked) else words
    bias = next((name for name in names.biases if checkpoint.has(name)), names.biases[0])
    eps = 1e-12 if family == "DistilBert" else spec.norm_eps
    activation = spec.activation if family in _FAMILIES else "gelu"
    norm = _norm(checkpoint, names.masked_norm, eps)
    first = _biased(checkpoint, names.masked_dense)
    return _matrix(checkpoint, matrix, bias).behind(first.apply, gelu(activation), norm)


def open_linear(checkpoint: Checkpoint, name: str) -> ModuleHead:
    """Return a single matrix, with its bias if there is one.  Raises StartError."""
    return _matrix(checkpoint, f"{name}.weight", _bias_of(checkpoint, name))


def gelu(name: str) -> Layer:
    """Return the activation that config.json names.  Raises StartError."""
    if name not in GELU:
        raise StartError(f"activation is {name!r}, expected one of {', '.join(GELU)}")
    if GELU[name]:
        factor = math.sqrt(2 / math.pi)
        return lambda x: 0.5 * x * (1 + np.tanh(factor * (x + 0.044715 * x**3)))
    return lambda x: (0.5 * x * (1 + _erf(x / math.sqrt(2)))).astype(np.float32)


def _family(checkpoint: Checkpoint) -> str:
    return split_architecture(checkpoint.config["architectures"][0])[0]


def _modern_layers(checkpoint: Checkpoint) -> tuple[Layer, ...]:
    """Return the layers of ModernBERT before the last matrix of every head."""
    config, dense = checkpoint.config, open_linear(checkpoint, "head.dense")
    activation = gelu(str(config.get("classifier_activation") or "gelu"))
    norm = _norm(checkpoint, "head.norm", float(config.get("norm_eps") or 1e-5))
    return dense.apply, activation, norm


def _chain(*layers: Layer) -> Layer:
    def apply(x: Vectors) -> Vectors:
        for layer in layers:
            x = layer(x)
        return x

    return apply


def _bias_of(checkpoint: Checkpoint, name: str) -> str | None:
    return f"{name}.bias" if checkpoint.has(f"{name}.bias") else None


def _biased(checkpoint: Checkpoint, name: str) -> ModuleHead:
    return _matrix(checkpoint, f"{name}.weight", f"{name}.bias")


def _matrix(checkpoint: Checkpoint, weight_name: str, bias_name: str | None) -> ModuleHead:
    """Return a matrix with its bias; None for no bias."""
    weight = checkpoint.f32(weight_name)
    bias = np.zeros(weight.shape[:1], np.float32)
    if bias_name is not None:
        bias = checkpoint.f32(bias_name)
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise StartError(
            f"tensor {weight_name!r} is {list(weight.shape)} and {bias_name!r} "
            f"{list(bias.shape)}, expected [outputs, inputs] and [outputs]"
        )
    return ModuleHead(lambda x: x @ weight.T + bias, len(weight))


def _norm(checkpoint: Checkpoint, name: str, eps: float) -> Layer:
    """Return a layer norm; that of ModernBERT may have no bias."""
    weight, shift = checkpoint.f32(f"{name}.weight"), f"{name}.bias"
    is_biased = checkpoint.has(shift) or _family(checkpoint) != _MODERN
    bias = checkpoint.f32(shift) if is_biased else np.zeros_like(weight)

    def apply(x: Vectors) -> Vectors:
        centred = x - x.mean(-1, keepdims=True)
        variance: Any = (centred**2).mean(-1, keepdims=True)
        normed: Vectors = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
        return normed

    return apply
