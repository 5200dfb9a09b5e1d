"""A layer's weights, norms, projections and dense feed-forward block, by its description.

Per-layer input (Gemma 3n and 4): for every token, each layer has features from a table of its own
and from the token's embedding; the layer adds a projection of them to its result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import (
    LAYER_PLAIN,
    LAYER_PLUS_ONE,
    RMS,
    RMS_PLUS_ONE,
    SILU,
    Architecture,
)
from mindspore_serving.llm.models.ops import Ops, Tensor, Weight
from mindspore_serving.llm.models.spec import ModelSpec

GELU = {"gelu_new": True, "gelu_pytorch_tanh": True, "gelu_fast": True, "gelu": False}  # by tanh
ACTIVATIONS = (*SILU, *GELU, "relu", "relu2")


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer `index` of a model."""

    ops: Ops
    spec: ModelSpec
    index: int

    @property
    def architecture(self) -> Architecture:
        return self.spec.architecture

    def weight(self, name: str, kind: str = "weight") -> Weight:
        return self.ops.weight(f"{self.architecture.names.layers}.{self.index}.{name}.{kind}")

    def linear(self, x: Tensor, name: str, bias: bool) -> Tensor:
        (y,) = self.linears(x, (name,), bias)
        return y

    def linears(self, x: Tensor, names: Sequence[str], bias: bool) -> list[Tensor]:
        weights = [self.weight(name, self.architecture.names.matrix) for name in names]
        biases = [self.weight(name, "bias") if bias else None for name in names]
        return self.ops.linears(x, weights, biases)

    def projected(
        self, h: Tensor, names: tuple[str, ...], sizes: tuple[int, ...], bias: bool
    ) -> list[Tensor]:
        if len(names) == 1 and len(sizes) > 1:
            return self.ops.split(self.linear(h, names[0], bias), sizes)
        return self.linears(h, names, bias)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Apply the layer's norm `name`.

        Without a name the architecture has no norm there: return `x`.
        """
        return norm(self.ops, self.spec, x, f"{self._prefix}{name}") if name else x

    @property
    def _prefix(self) -> str:
        return f"{self.architecture.names.layers}.{self.index}."

    def mlp(self, h: Tensor, prefix: str = "") -> Tensor:
        """Compute the dense block; the caller sums the result over ranks.

        With `prefix` the matrices are those of a shared expert.
        """
        return self.ops.dense(h, lambda x: self._mlp(x, prefix))

    def _mlp(self, h: Tensor, prefix: str) -> Tensor:
        ops, spec, names = self.ops, self.spec, self.architecture.names
        gate_up, down = names.gate_up, names.down
        if prefix:
            leaves = ("gate_proj", "up_proj") if self.architecture.gated else ("up_proj",)
            gate_up, down = tuple(f"{prefix}.{leaf}" for leaf in leaves), f"{prefix}.down_proj"
        if not self.architecture.gated:
            (name,) = gate_up
            h = activate(ops, self.linear(h, name, spec.gate_bias), spec.activation)
            return self.linear(h, down, spec.mlp_bias)
        if len(gate_up) == 1:
            sizes = (spec.intermediate_size, spec.intermediate_size)
            gate, up = self.projected(h, gate_up, sizes, spec.gate_bias)
        else:  # not joined: copying slices of such a wide result would cost prompts 3 to 10 %
            gate, up = (self.linear(h, name, spec.gate_bias) for name in gate_up)
        gate = scaled(ops, gate, spec.scales.gate)
        cutoff = spec.cutoffs[self.index] if spec.cutoffs else None
        if cutoff is not None:
            gate = ops.gaussian_topk(gate, cutoff)
        if spec.activation in SILU:
            h = ops.silu_mul(gate, up)
        else:
            h = ops.mul(activate(ops, gate, spec.activation), up)
        return scaled(ops, self.linear(h, down, spec.mlp_bias), spec.scales.mlp)


def scaled(ops: Ops, x: Tensor, factor: float) -> Tensor:
    """Multiply `x` by `factor`, unless that is 1."""
    return x if factor == 1.0 else ops.scale(x, factor)


def activate(ops: Ops, x: Tensor, name: str) -> Tensor:
    """Apply the activation `name`.  Raises StartError for an unknown one."""
    if name in SILU:
        return ops.silu(x)
    if name in GELU:
        return ops.gelu(x, tanh=GELU[name])
    if name not in ACTIVATIONS:
        raise StartError(f"activation is {name!r}, expected one of {', '.join(ACTIVATIONS)}")
    x = ops.relu(x)
    return ops.mul(x, x) if name == "relu2" else x


def norm(ops: Ops, spec: ModelSpec, x: Tensor, name: str) -> Tensor:
    """Apply the architecture's norm with the weight `name`."""
    kind = spec.architecture.norm
    if kind == LAYER_PLAIN:
        return ops.layer_norm(x, None, None, spec.norm_eps)
    weight = ops.weight(f"{name}.weight")
    if kind in (RMS, RMS_PLUS_ONE):
        return ops.rms_norm(x, weight, spec.norm_eps, plus_one=kind == RMS_PLUS_ONE)
    bias = ops.weight(f"{name}.bias") if spec.architecture.norm_bias else None
    return ops.layer_norm(x, weight, bias, spec.norm_eps, plus_one=kind == LAYER_PLUS_ONE)


def layer_inputs(ops: Ops, spec: ModelSpec, x: Tensor, token_ids: Tensor) -> dict[int, Tensor]:
    """Return the extra input of each layer, [T, layer_inputs]; none if the model has none.

    `x` are the embeddings of the tokens as layers get them, [T, H].
    """
    width, count = spec.layer_inputs, spec.num_layers
    if not width:
        return {}
    names = spec.architecture.names
    if spec.layer_vocab_size < spec.vocab_size:
        token_ids = ops.below(token_ids, spec.layer_vocab_size)
    embedded = ops.embedding(token_ids, ops.weight(f"{names.embedding}_per_layer.weight"))
    stem = names.embedding.removesuffix("embed_tokens")
    projected = ops.linear(x, ops.weight(f"{stem}per_layer_model_projection.weight"))
    projected = ops.scale(projected, spec.hidden_size**-0.5)
    gain = ops.weight(f"{stem}per_layer_projection_norm.weight")
    projected = ops.head_rms_norm(projected, gain, count, spec.norm_eps)
    combined = ops.add(projected, ops.scale(embedded, width**0.5))
    return dict(enumerate(ops.split(ops.scale(combined, 2**-0.5), [width] * count)))


def layer_input_update(layer: Layer, x: Tensor, layer_input: Tensor) -> Tensor:
    """Return what the layer's extra input adds to `x`, the output of its blocks."""
    ops = layer.ops
    gate = activate(ops, layer.linear(x, "per_layer_input_gate", False), layer.spec.activation)
    out = layer.linear(ops.mul(gate, layer_input), "per_layer_projection", False)
    return layer.norm(out, "post_per_layer_input_norm")
