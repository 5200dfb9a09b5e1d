"""Parts of the graphs of vision towers: products, norms, attention and layers."""

from collections.abc import Callable, Mapping
from itertools import dropwhile
from math import prod

import numpy as np
from openvino import opset13 as opset

from mindspore_serving.errors import StartError
from mindspore_serving.llm.images.layer_settings import LayerSettings, matrices
from mindspore_serving.llm.runtimes.openvino.nodes import Node, f32, features, i64, swish
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights

PROJECTORS = ("multi_modal_projector", "connector", "embed_vision", "merger")
SWAPPED = np.array([0, 2, 1, 3])  # [B, L, heads, d] <-> [B, heads, L, d]
ACTIVATIONS: Mapping[str, Callable[[Node], Node]] = {
    "gelu": lambda x: opset.gelu(x, "ERF"),
    "gelu_pytorch_tanh": lambda x: opset.gelu(x, "TANH"),
    "quick_gelu": lambda x: opset.multiply(x, opset.sigmoid(opset.multiply(x, f32(1.702)))),
    "silu": swish,
}
QKV = tuple[Node, Node, Node]  # queries, keys and values, [B, L, heads, d] each


class TowerBlocks:
    """Builder of the parts of a tower's graph.

    `weights` has tensors with Hugging Face's names, of which `names` are all; `patches` ends the
    name of the tensor that embeds patches, by which the beginning of all of them is known.

    Raises StartError, as its methods do: a tensor is missing or does not fit.
    """

    def __init__(
        self, weights: OpenVINOWeights, names: list[str], patches: str, layers: LayerSettings
    ) -> None:
        self._weights, self._layers = weights, layers
        self.stem = _stem_of(names, patches)
        self.projector = next(
            (
                name[: name.index(part) + len(part)]
                for name in names
                for part in PROJECTORS
                if f".{part}." in f".{name}"
            ),
            PROJECTORS[0],
        )

    def layer(self, x: Node, number: int, attend: Callable[[QKV], Node]) -> Node:
        """Return the output of a layer; `attend` returns that of attention, [B, L, features]."""
        stem = f"{self.stem}.{self._layers.path.format(number)}"
        x = self.attended(x, stem, attend)
        y = self.norm(x, f"{stem}.{self._layers.norms[1]}")
        return opset.add(x, self._behind(self._mlp(y, stem, features(x)), stem, 1))

    def attended(self, x: Node, stem: str, attend: Callable[[QKV], Node]) -> Node:
        """Return `x` after the attention of the layer `stem`, as `layer` has it."""
        layers = self._layers
        rows = attend(self._inputs(self.norm(x, f"{stem}.{layers.norms[0]}"), stem))
        y = self._clipped(rows, f"{stem}.{layers.output}", features(x))
        return opset.add(x, self._behind(y, stem, 0))

    def attention(self, heads: QKV, mask: Node | None = None) -> Node:
        """Return the output of attention in [B, L, features]; `mask` is added to scores."""
        q, k, v = (opset.transpose(x, SWAPPED) for x in heads)
        scale = f32(1.0) if self._layers.is_unscaled else None
        out = opset.scaled_dot_product_attention(q, k, v, mask, scale)
        width = features(heads[0]) * self._layers.heads
        return opset.reshape(opset.transpose(out, SWAPPED), i64(0, 0, width), True)

    def norm(self, x: Node, name: str, *, is_rms: bool | None = None, epsilon: float = 0.0) -> Node:
        """Return `x` after the norm `name`; "" has no weights."""
        is_rms = self._layers.is_rms if is_rms is None else is_rms
        epsilon = epsilon or self._layers.epsilon
        if is_rms:
            mean = opset.reduce_mean(opset.multiply(x, x), i64(-1), True)
            y = opset.divide(x, opset.sqrt(opset.add(mean, f32(epsilon))))
        else:
            y = opset.mvn(x, i64(-1), True, epsilon, "INSIDE_SQRT")
        if name:
            y = opset.multiply(y, self.vector(f"{name}.weight", features(x)))
        return y if is_rms else opset.add(y, self.vector(f"{name}.bias", features(x)))

    def linear(self, x: Node, name: str, outputs: int = 0) -> Node:
        """Return the product with the matrix `name`, which has `outputs` rows if that is not 0."""
        matrix, bias = f"{name}.weight", f"{name}.bias"
        outputs = outputs or self._weights.shape(matrix)[0]
        self.expect(matrix, outputs, features(x))
        y = self._weights.product(x, matrix)
        return opset.add(y, self.vector(bias, outputs)) if self._weights.has(bias) else y

    def flattened(self, x: Node, name: str) -> Node:
        """Return the product with a kernel [outputs, ...] whose other axes are those of `x`."""
        matrix, bias = f"{name}.weight", f"{name}.bias"
        outputs, *shape = self._weights.shape(matrix)
        if prod(shape) != features(x):
            expected = f"[*] and {features(x)} numbers"
            raise StartError(f"tensor {matrix!r} is {[outputs, *shape]}, expected {expected}")
        kernel = opset.reshape(self._weights.vector(matrix), i64(outputs, -1), False)
        y = opset.matmul(x, kernel, False, True)
        return opset.add(y, self.vector(bias, outputs)) if self._weights.has(bias) else y

    def projected(self, x: Node, activation: str) -> Node:
        """Return the outputs of a projection of two matrices."""
        y = activate(activation, self.linear(x, f"{self.projector}.linear_1"))
        return self.linear(y, f"{self.projector}.linear_2")

    def gated(self, x: Node, gate: Node, stem: str) -> Node:
        """Return the product of `x` with `gate` after the activation, times the matrix `stem`."""
        return self._clipped(opset.multiply(activate(self._layers.activation, gate), x), stem)

    def vector(self, name: str, size: int) -> Node:
        """Return a vector of `size`."""
        self.expect(name, size)
        return opset.reshape(self._weights.vector(name), i64(-1), False)

    def table(self, name: str, *shape: int) -> Node:
        """Return a float32 tensor of `shape`."""
        self.expect(name, *shape)
        return opset.reshape(self._weights.vector(name), i64(*shape), False)

    def expect(self, name: str, *shape: int) -> None:
        """Raise StartError unless a tensor has `shape`, but for axes of 1 at the beginning."""
        actual = self._weights.shape(name)
        if _trimmed(actual) != _trimmed(shape):
            raise StartError(f"tensor {name!r} is {list(actual)}, expected {list(shape)}")

    def _inputs(self, x: Node, stem: str) -> QKV:
        layers, names = self._layers, self._layers.inputs
        if len(names) == 1 and not self._weights.has(f"{stem}.{names[0]}.weight"):
            names = matrices(names[0].rpartition(".")[0])  # as llama.cpp's converter cuts them
        if len(names) == 1:
            width = features(x)
            joint = self.linear(x, f"{stem}.{names[0]}", 3 * width)
            parts = opset.split(joint, opset.constant(np.int64(-1)), 3).outputs()
        else:
            parts = [self._clipped(x, f"{stem}.{name}") for name in names]
            for index, name in enumerate(layers.normed):
                parts[index] = self.norm(parts[index], f"{stem}.{name}", is_rms=True, epsilon=1e-6)
        q, k, v = (opset.reshape(x, i64(0, 0, layers.heads, -1), True) for x in parts)
        if layers.head_normed:
            q, k = (
                self.norm(y, f"{stem}.{name}")
                for y, name in zip((q, k), layers.head_normed, strict=True)
            )
            v = self.norm(v, "")
        return q, k, v

    def _mlp(self, x: Node, stem: str, width: int) -> Node:
        *gates, up, down = (f"{stem}.{name}" for name in self._layers.mlp)
        y = self._clipped(x, up)
        if gates:
            return self.gated(y, self._clipped(x, gates[0]), down)
        return self.linear(activate(self._layers.activation, y), down, width)

    def _behind(self, x: Node, stem: str, index: int) -> Node:
        """Return `x` after the norm or the scales that stand behind a part of a layer."""
        layers = self._layers
        if layers.after:
            x = self.norm(x, f"{stem}.{layers.after[index]}")
        if layers.scales:
            x = opset.multiply(x, self.vector(f"{stem}.{layers.scales[index]}", features(x)))
        return x

    def _clipped(self, x: Node, name: str, outputs: int = 0) -> Node:
        """Return `linear`, whose input and output are clipped if those of the tower are."""
        if not self._layers.is_clipped:
            return self.linear(x, name, outputs)
        above = name.removesuffix(".linear")
        y = self.linear(self._clip(x, f"{above}.input"), name, outputs)
        return self._clip(y, f"{above}.output")

    def _clip(self, x: Node, name: str) -> Node:
        low, high = (self.table(f"{name}_{bound}", 1) for bound in ("min", "max"))
        return opset.maximum(opset.minimum(x, high), low)


def activate(name: str, x: Node) -> Node:
    """Return `x` after an activation.  Raises StartError for an unknown one."""
    activation = ACTIVATIONS.get(name)
    if activation is None:
        accepted = ", ".join(ACTIVATIONS)
        raise StartError(f"config.json has activation {name!r} of images, expected {accepted}")
    return activation(x)


def _stem_of(names: list[str], patches: str) -> str:
    """Return the beginning of the names of the vision transformer's tensors."""
    for name in names:
        if name.endswith(f".{patches}"):
            return name.removesuffix(f".{patches}")
    raise StartError(f"the model has no tensor '*.{patches}', which its vision tower needs")


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape` without axes of 1 at the beginning."""
    return tuple(dropwhile(lambda size: size == 1, shape))
