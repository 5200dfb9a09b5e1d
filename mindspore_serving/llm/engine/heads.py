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
from mindspore_serving.llm.models.bert import BERT, DISTILBERT, FAMILIES, WORDS, from_config
from mindspore_serving.llm.models.layer import GELU
from mindspore_serving.llm.models.modernbert import WORDS as MODERN_WORDS
from mindspore_serving.llm.step import Vectors

Layer = Callable[[Vectors], Vectors]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_CLS = "cls.predictions"
# family -> (dense layer, norm, matrix, where the bias may be) of the masked-language head
MASKED = {
    "Bert": (
        f"{_CLS}.transform.dense",
        f"{_CLS}.transform.LayerNorm",
        f"{_CLS}.decoder.weight",
        (f"{_CLS}.bias", f"{_CLS}.decoder.bias"),
    ),
    "DistilBert": (
        "vocab_transform",
        "vocab_layer_norm",
        "vocab_projector.weight",
        ("vocab_projector.bias",),
    ),
    "Roberta": (
        "lm_head.dense",
        "lm_head.layer_norm",
        "lm_head.decoder.weight",
        ("lm_head.bias", "lm_head.decoder.bias"),
    ),
}


@dataclass(frozen=True, slots=True)
class Head:
    """`num_outputs` logits of each state that `apply` is given: of all that it wants."""

    apply: Layer
    num_outputs: int


def sequence_head(checkpoint: Checkpoint) -> Head:
    """Of the pooled states of texts.  Raises StartError for a wrong tensor."""
    read = _Reader(checkpoint)
    if _is_modern(checkpoint):
        last = read.linear("classifier")
        return Head(_chain(*_modern_layers(checkpoint), last.apply), last.num_outputs)
    names = _family(checkpoint)
    if names is BERT:
        prefix = "bert." if checkpoint.has("bert.pooler.dense.weight") else ""
        first, last = read.linear(f"{prefix}pooler.dense"), read.linear("classifier")
        return Head(_chain(first.apply, np.tanh, last.apply), last.num_outputs)
    if names is DISTILBERT:
        first, last = read.linear("pre_classifier"), read.linear("classifier")
        return Head(_chain(first.apply, _relu, last.apply), last.num_outputs)
    first, last = read.linear("classifier.dense"), read.linear("classifier.out_proj")
    return Head(_chain(first.apply, np.tanh, last.apply), last.num_outputs)


def token_head(checkpoint: Checkpoint) -> Head:
    """Of every state [tokens, hidden size]."""
    last = _Reader(checkpoint).linear("classifier")
    if not _is_modern(checkpoint):
        return last
    return Head(_chain(*_modern_layers(checkpoint), last.apply), last.num_outputs)


def open_linear(checkpoint: Checkpoint, name: str) -> Head:
    """A single matrix, with its bias if there is one.  Raises StartError."""
    return _Reader(checkpoint).matrix(f"{name}.weight", _bias_of(checkpoint, name))


def _bias_of(checkpoint: Checkpoint, name: str) -> str | None:
    return f"{name}.bias" if checkpoint.has(f"{name}.bias") else None


def _is_modern(checkpoint: Checkpoint) -> bool:
    return str(checkpoint.config["architectures"][0]).startswith("ModernBert")


def _modern_layers(checkpoint: Checkpoint) -> tuple[Layer, ...]:
    """What ModernBERT has before the last matrix of every head."""
    config, dense = checkpoint.config, open_linear(checkpoint, "head.dense")
    activation = gelu(str(config.get("classifier_activation") or "gelu"))
    norm = _Reader(checkpoint).norm("head.norm", float(config.get("norm_eps") or 1e-5))
    return dense.apply, activation, norm


def _modern_masked_head(checkpoint: Checkpoint) -> Head:
    matrix = "decoder.weight"
    if not checkpoint.has(matrix):
        matrix = f"model.{MODERN_WORDS}"
    last = _Reader(checkpoint).matrix(matrix, _bias_of(checkpoint, "decoder"))
    return Head(_chain(*_modern_layers(checkpoint), last.apply), last.num_outputs)


def masked_head(checkpoint: Checkpoint) -> Head:
    """Of the states of masks [masks, hidden size]; an output is a token of the vocabulary."""
    if _is_modern(checkpoint):
        return _modern_masked_head(checkpoint)
    spec = from_config(checkpoint.config)
    names, read = _family(checkpoint), _Reader(checkpoint)
    kind = "Bert" if names is BERT else "DistilBert" if names is DISTILBERT else "Roberta"
    dense, norm, matrix, biases = MASKED[kind]
    if not checkpoint.has(matrix):  # it is the table of words, as in most checkpoints
        matrix = next(p + WORDS for p in spec.names.prefixes if checkpoint.has(p + WORDS))
    bias = next((name for name in biases if checkpoint.has(name)), biases[0])
    eps = 1e-12 if names is DISTILBERT else spec.norm_eps
    activation = spec.activation if names in (BERT, DISTILBERT) else "gelu"
    first, last = read.linear(dense), read.matrix(matrix, bias)
    steps = (first.apply, gelu(activation), read.norm(norm, eps), last.apply)
    return Head(_chain(*steps), last.num_outputs)


def gelu(name: str) -> Layer:
    """The activation that config.json names.  Raises StartError."""
    if name not in GELU:
        raise StartError(f"activation is {name!r}, expected one of {', '.join(GELU)}")
    if GELU[name]:
        factor = math.sqrt(2 / math.pi)
        return lambda x: 0.5 * x * (1 + np.tanh(factor * (x + 0.044715 * x**3)))
    return lambda x: (0.5 * x * (1 + _erf(x / math.sqrt(2)))).astype(np.float32)


def _relu(x: Vectors) -> Vectors:
    return np.maximum(x, 0)


def _family(checkpoint: Checkpoint) -> Any:
    return FAMILIES[split_architecture(checkpoint.config["architectures"][0])[0]]


def _chain(*layers: Layer) -> Layer:
    def apply(x: Vectors) -> Vectors:
        for layer in layers:
            x = layer(x)
        return x

    return apply


class _Reader:
    """Layers out of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def linear(self, name: str) -> Head:
        return self.matrix(f"{name}.weight", f"{name}.bias")

    def matrix(self, weight_name: str, bias_name: str | None) -> Head:
        """Without a bias if `bias_name` is None."""
        weight = self._checkpoint.f32(weight_name)
        bias = np.zeros(weight.shape[:1], np.float32)
        if bias_name is not None:
            bias = self._checkpoint.f32(bias_name)
        if weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise StartError(
                f"tensor {weight_name!r} is {list(weight.shape)} and {bias_name!r} "
                f"{list(bias.shape)}, expected [outputs, inputs] and [outputs]"
            )
        return Head(lambda x: x @ weight.T + bias, len(weight))

    def norm(self, name: str, eps: float) -> Layer:
        """Checkpoints from TensorFlow call the two tensors gamma and beta.  ModernBERT has no
        bias."""
        has, read = self._checkpoint.has, self._checkpoint.f32
        is_old = has(f"{name}.gamma")
        gain, shift = ("gamma", "beta") if is_old else ("weight", "bias")
        weight = read(f"{name}.{gain}")
        is_biased = has(f"{name}.{shift}") or not _is_modern(self._checkpoint)
        bias = read(f"{name}.{shift}") if is_biased else np.zeros_like(weight)

        def apply(x: Vectors) -> Vectors:
            centred = x - x.mean(-1, keepdims=True)
            variance: Any = (centred**2).mean(-1, keepdims=True)
            found: Vectors = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
            return found

        return apply
