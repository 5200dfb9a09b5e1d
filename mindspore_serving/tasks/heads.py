"""What stands behind an encoder: the layers from hidden states to logits, computed by numpy.

They are a thousandth of the encoder's work.  A head takes the states of one text, [tokens, hidden
size].  Checkpoints of the families differ by the names of tensors and by a layer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_serving.core.tasks import split_architecture
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.models.bert import BERT, DISTILBERT, FAMILIES, WORDS, EncoderSpec
from mindspore_serving.llm.models.layer import GELU
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
    """Of the first token's state [1, hidden size].  Raises StartError for a wrong tensor."""
    names, read = _family(checkpoint), _Reader(checkpoint)
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
    return _Reader(checkpoint).linear("classifier")


def masked_head(checkpoint: Checkpoint, spec: EncoderSpec) -> Head:
    """Of the states of masks [masks, hidden size]; an output is a token of the vocabulary."""
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

    def matrix(self, weight_name: str, bias_name: str) -> Head:
        weight, bias = self._checkpoint.f32(weight_name), self._checkpoint.f32(bias_name)
        if weight.ndim != 2 or bias.shape != weight.shape[:1]:
            raise StartError(
                f"tensor {weight_name!r} is {list(weight.shape)} and {bias_name!r} "
                f"{list(bias.shape)}, expected [outputs, inputs] and [outputs]"
            )
        return Head(lambda x: x @ weight.T + bias, len(weight))

    def norm(self, name: str, eps: float) -> Layer:
        """Checkpoints from TensorFlow call the two tensors gamma and beta."""
        is_old = self._checkpoint.has(f"{name}.gamma")
        gain, shift = ("gamma", "beta") if is_old else ("weight", "bias")
        weight, bias = (self._checkpoint.f32(f"{name}.{one}") for one in (gain, shift))

        def apply(x: Vectors) -> Vectors:
            centred = x - x.mean(-1, keepdims=True)
            variance: Any = (centred**2).mean(-1, keepdims=True)
            found: Vectors = centred / np.sqrt(variance + np.float32(eps)) * weight + bias
            return found

        return apply
