"""What stands behind an encoder: the layers from hidden states to logits, computed by numpy.

They are a thousandth of the encoder's work.  A head takes states, [any number, hidden size].
Checkpoints of the families differ by the names of tensors and by a layer.
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
    """Of a family: a dense layer with its activation and a matrix, of a text's label; a dense
    layer, a norm and a matrix, of which the latter may have one of several biases, of masks.
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
_ROBERTA = _Names()  # and all others but ModernBERT
_MODERN = "ModernBert"
# How tensors of heads begin: of labels, and of words.
LABELS = ("classifier.", "pre_classifier.", "score.", "head.")
MASKED = ("cls.predictions.", "lm_head.", "vocab_", "decoder.", "head.")


@dataclass(frozen=True, slots=True)
class ModuleHead:
    """`num_outputs` logits of each state that `apply` is given: of all that it wants."""

    apply: Layer
    num_outputs: int

    def behind(self, *layers: Layer) -> "ModuleHead":
        """It, behind `layers`."""
        return ModuleHead(_chain(*layers, self.apply), self.num_outputs)


def sequence_head(checkpoint: Checkpoint) -> ModuleHead:
    """Of the pooled states of texts.  Raises StartError for a wrong tensor."""
    return _whole(checkpoint, _sequence_head, LABELS)


def token_head(checkpoint: Checkpoint) -> ModuleHead:
    """Of every state [tokens, hidden size].  Raises StartError for a wrong tensor."""
    return _whole(checkpoint, _token_head, LABELS)


def masked_head(checkpoint: Checkpoint) -> ModuleHead:
    """Of the states of masks [masks, hidden size]; an output is a token of the vocabulary.  Raises
    StartError for a wrong tensor.
    """
    return _whole(checkpoint, _masked_head, MASKED)


def _whole(
    checkpoint: Checkpoint, build: Callable[[Checkpoint], ModuleHead], prefixes: tuple[str, ...]
) -> ModuleHead:
    """What `build` makes, of all tensors that begin with one of `prefixes`: StartError for one that
    is not read, unless it repeats another.
    """
    noting = checkpoint.tracked()
    head = build(noting)
    read = [checkpoint.stored(name).bits for name in noting.read]
    for name in set(checkpoint.names()) - noting.read:
        bits = checkpoint.stored(name).bits
        if name.startswith(prefixes) and not any(np.array_equal(bits, one) for one in read):
            raise StartError(
                f"{checkpoint.directory} has a tensor {name!r}, which the head of "
                f"{checkpoint.config['architectures'][0]} does not have: results would be wrong "
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
    """A single matrix, with its bias if there is one.  Raises StartError."""
    return _matrix(checkpoint, f"{name}.weight", _bias_of(checkpoint, name))


def gelu(name: str) -> Layer:
    """The activation that config.json names.  Raises StartError."""
    if name not in GELU:
        raise StartError(f"activation is {name!r}, expected one of {', '.join(GELU)}")
    if GELU[name]:
        factor = math.sqrt(2 / math.pi)
        return lambda x: 0.5 * x * (1 + np.tanh(factor * (x + 0.044715 * x**3)))
    return lambda x: (0.5 * x * (1 + _erf(x / math.sqrt(2)))).astype(np.float32)


def _family(checkpoint: Checkpoint) -> str:
    return split_architecture(checkpoint.config["architectures"][0])[0]


def _modern_layers(checkpoint: Checkpoint) -> tuple[Layer, ...]:
    """What ModernBERT has before the last matrix of every head."""
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
    """Without a bias if `bias_name` is None."""
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
    """A layer norm; that of ModernBERT may have no bias."""
    weight, shift = checkpoint.f32(f"{name}.weight"), f"{name}.bias"
    is_biased = checkpoint.has(shift) or _family(checkpoint) != _MODERN
    bias = checkpoint.f32(shift) if is_biased else np.zeros_like(weight)

    def apply(x: Vectors) -> Vectors:
        centred = x - x.mean(-1, keepdims=True)
        variance: Any = (centred**2).mean(-1, keepdims=True)
        found: Vectors = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
        return found

    return apply
