"""Mixture-of-experts feed-forward block: a router chooses some experts for each token."""

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import SILU, Experts, ParallelMixture
from mindspore_serving.llm.models.expert_block import Expert, ExpertBlock, HeldExperts
from mindspore_serving.llm.models.layer import Layer
from mindspore_serving.llm.models.ops import Tensor
from mindspore_serving.llm.models.spec_parts import Mixture

GELU = "gelu_pytorch_tanh"  # the activation of experts beside a dense block


def feed_forward(layer: Layer, h: Tensor, x: Tensor) -> Tensor:
    """Return the output of the layer's dense block or experts, [T, H], summed over ranks.

    `h` is the normalised `x`.
    """
    mixture, names = layer.spec.mixture, layer.architecture.experts
    if mixture and names and layer.index in mixture.layers:
        if names.parallel:
            return _dense_and_experts(layer, h, x, mixture, names.parallel)
        return layer.ops.all_reduce(_mixture(layer, h, mixture, names))
    return layer.ops.all_reduce(layer.mlp(h))


def _mixture(layer: Layer, h: Tensor, mixture: Mixture, names: Experts) -> Tensor:
    ops, spec = layer.ops, layer.spec
    known = SILU if names.gate else ("relu2",)
    if spec.activation not in known:
        raise StartError(f"experts have the activation {spec.activation!r}, expected {known[0]}")
    scores = layer.linear(h, names.router, names.router_bias)
    correction = None
    if names.correction:
        correction = ops.weight(
            f"{layer.architecture.names.layers}.{layer.index}.{names.correction}"
        )
    held, experts = _held_experts(layer, mixture, names)
    latent = names.latent if mixture.is_latent else None
    x = layer.linear(h, latent[0], spec.mlp_bias) if latent else h
    block = ExpertBlock(experts, mixture.routing, correction, clamp=mixture.clamp, held=held)
    out = ops.moe(x, scores, block)
    out = layer.linear(out, latent[1], spec.mlp_bias) if latent else out
    return ops.add(out, _shared(layer, names, h)) if mixture.has_shared else out


def _dense_and_experts(
    layer: Layer, h: Tensor, x: Tensor, mixture: Mixture, names: ParallelMixture
) -> Tensor:
    """Return the sum of the dense block and the experts, each with its norm of its sum."""
    ops, spec, experts = layer.ops, layer.spec, layer.architecture.experts
    assert experts is not None
    if spec.activation != GELU:
        raise StartError(f"experts have the activation {spec.activation!r}, expected {GELU}")
    prefix = f"{layer.architecture.names.layers}.{layer.index}."
    gain, gains = ops.weight(prefix + names.router_gain), ops.weight(prefix + names.gains)
    router_input = ops.scale(ops.rms_norm(x, gain, spec.norm_eps), spec.hidden_size**-0.5)
    scores = layer.linear(router_input, experts.router, experts.router_bias)
    held, held_experts = _held_experts(layer, mixture, experts)
    expert_input = layer.norm(x, names.input_norm)
    block = ExpertBlock(held_experts, mixture.routing, gains=gains, is_gelu=True, held=held)
    dense = ops.all_reduce(layer.mlp(h))
    out = ops.all_reduce(ops.moe(expert_input, scores, block))
    return ops.add(layer.norm(dense, names.dense_norm), layer.norm(out, names.output_norm))


def _held_experts(
    layer: Layer, mixture: Mixture, names: Experts
) -> tuple[HeldExperts | None, list[Expert]]:
    """Return the whole experts that this rank holds, and those that it computes with."""
    held = layer.ops.held_experts(layer.index)
    indices = range(mixture.num_experts) if held is None else held.numbers
    return held, [_expert(layer, names, index) for index in indices]


def _expert(layer: Layer, names: Experts, index: int) -> Expert:
    leaves = [leaf for leaf in (names.gate, names.up, names.down) if leaf]
    stems = [f"{names.prefix}.{index}.{leaf}" for leaf in leaves]
    *gate, up, down = (layer.weight(stem) for stem in stems)
    if not names.bias:
        return Expert(gate[0] if gate else None, up, down)
    first, second, third = (layer.weight(stem, "bias") for stem in stems)
    return Expert(gate[0], up, down, (first, second, third))


def _shared(layer: Layer, names: Experts, h: Tensor) -> Tensor:
    ops = layer.ops
    out = layer.mlp(h, names.shared)  # without a name, the dense block is the shared expert
    if not names.shared_gate:
        return out
    return ops.mul(out, ops.sigmoid(layer.linear(h, names.shared_gate, bias=False)))
