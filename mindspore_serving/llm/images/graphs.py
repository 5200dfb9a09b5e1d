"""Vision towers and their projections as OpenVINO graphs, from pixels to vectors."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.errors import StartError
from mindspore_serving.llm.images.tower_settings import TowerSettings
from mindspore_serving.llm.runtimes.openvino.nodes import Node, f32, features, i64
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights

PATCHES = "embeddings.patch_embedding.weight"
PROJECTORS = ("multi_modal_projector", "connector")
SWAPPED = np.array([0, 2, 1, 3])  # [B, L, heads, d] <-> [B, heads, L, d]
ACTIVATIONS: Mapping[str, Callable[[Node], Node]] = {
    "gelu": lambda x: opset.gelu(x, "ERF"),
    "gelu_pytorch_tanh": lambda x: opset.gelu(x, "TANH"),
    "quick_gelu": lambda x: opset.multiply(x, opset.sigmoid(opset.multiply(x, f32(1.702)))),
}


class TowerGraph:
    """Builder of a tower's graph, from `pixel_values` [B, 3, size, size] to vectors [B, n, width].

    `weights` has tensors with Hugging Face's names, of which `names` are all.

    Raises StartError: a tensor is missing or does not fit.
    """

    def __init__(self, weights: OpenVINOWeights, names: list[str], settings: TowerSettings) -> None:
        self._weights, self._settings = weights, settings
        self._stem = _stem_of(names)
        self._projector = next(
            (
                name[: name.index(part) + len(part)]
                for name in names
                for part in PROJECTORS
                if f".{part}." in f".{name}"
            ),
            PROJECTORS[0],
        )

    def build(self) -> ov.Model:
        """Return the graph."""
        size = self._settings.image_size
        pixels = Parameter(ov.Type.f32, ov.PartialShape([-1, 3, size, size]))
        pixels.output(0).get_tensor().set_names({"pixel_values"})
        x = self._projected(self._outputs(self._embedded(pixels)))
        return ov.Model([opset.result(x)], [pixels], "vision tower")

    def _embedded(self, pixels: Node) -> Node:
        """Return the vectors of patches with their positions, [B, patches, hidden_size]."""
        settings, name = self._settings, f"{self._stem}.{PATCHES}"
        patch, shape = settings.patch_size, self._weights.shape(f"{self._stem}.{PATCHES}")
        if len(shape) != 4 or shape[1:] != (3, patch, patch):
            expected = f"[*, 3, {patch}, {patch}]"
            raise StartError(f"tensor {name!r} is {list(shape)}, expected {expected}")
        kernel = opset.reshape(self._weights.vector(name), i64(*shape), False)
        x = opset.convolution(pixels, kernel, [patch] * 2, [0, 0], [0, 0], [1, 1])
        x = opset.transpose(opset.reshape(x, i64(0, 0, -1), True), np.array([0, 2, 1]))
        bias = f"{self._stem}.embeddings.patch_embedding.bias"
        if self._weights.has(bias):
            x = opset.add(x, self._vector(bias, shape[0]))
        table = f"{self._stem}.embeddings.position_embedding.weight"
        self._expect(table, settings.side**2 + settings.has_class, shape[0])
        positions = opset.reshape(self._weights.vector(table), i64(1, -1, shape[0]), False)
        if settings.projector == "shuffle":
            rows = opset.constant(_rows_of_patches(settings.side))
            positions = opset.gather(positions, rows, opset.constant(1))
        if settings.has_class:
            batch = opset.gather(opset.shape_of(pixels), i64(0), opset.constant(0))
            token = self._vector(f"{self._stem}.embeddings.class_embedding", shape[0])
            target = opset.concat([batch, i64(1, shape[0])], 0)
            x = opset.concat([opset.broadcast(token, target), x], 1)
        return opset.add(x, positions)

    def _outputs(self, x: Node) -> Node:
        """Return the outputs of layers that are used, [B, tokens, width]."""
        settings = self._settings
        if settings.has_class:
            x = self._norm(x, f"{self._stem}.pre_layrnorm")
        states = [x]
        for layer in range(max(settings.outputs)):
            states.append(self._layer(states[-1], f"{self._stem}.encoder.layers.{layer}"))
        outputs = [states[number] for number in settings.outputs]
        if settings.is_normed:
            outputs = [self._norm(x, f"{self._stem}.post_layernorm") for x in outputs]
        y = outputs[0] if len(outputs) == 1 else opset.concat(outputs, 2)
        if settings.has_class and not settings.keeps_class:
            y = opset.slice(y, i64(1), i64(settings.side**2 + 1), i64(1), i64(1))
        return y

    def _layer(self, x: Node, stem: str) -> Node:
        y, width = self._norm(x, f"{stem}.layer_norm1"), features(x)
        q, k, v = (self._linear(y, f"{stem}.self_attn.{name}_proj", width) for name in "qkv")
        heads = self._settings.heads
        q, k, v = (
            opset.transpose(opset.reshape(z, i64(0, 0, heads, -1), True), SWAPPED)
            for z in (q, k, v)
        )
        out = opset.transpose(opset.scaled_dot_product_attention(q, k, v), SWAPPED)
        rows = opset.reshape(out, i64(0, 0, width), True)
        x = opset.add(x, self._linear(rows, f"{stem}.self_attn.out_proj", width))
        y = self._linear(self._norm(x, f"{stem}.layer_norm2"), f"{stem}.mlp.fc1")
        y = _activation(self._settings.activation)(y)
        return opset.add(x, self._linear(y, f"{stem}.mlp.fc2", width))

    def _projected(self, x: Node) -> Node:
        stem, settings = self._projector, self._settings
        if settings.projector == "mlp":
            y = self._linear(x, f"{stem}.linear_1")
            return self._linear(_activation(settings.projector_activation)(y), f"{stem}.linear_2")
        side, scale, width = settings.side, settings.scale, features(x)
        parts = side // scale
        squares = opset.reshape(x, i64(0, parts, scale, parts, scale, width), True)
        if settings.projector == "shuffle":
            y = opset.transpose(squares, np.array([0, 1, 3, 2, 4, 5]))
            y = opset.reshape(y, i64(0, parts**2, scale**2 * width), True)
            return self._linear(y, f"{stem}.modality_projection.proj")
        y = opset.reshape(opset.reduce_mean(squares, i64(2, 4), False), i64(0, -1, width), True)
        mean = opset.reduce_mean(opset.multiply(y, y), i64(-1), True)
        y = opset.divide(y, opset.sqrt(opset.add(mean, f32(settings.epsilon))))
        name = f"{stem}.mm_soft_emb_norm.weight"
        self._expect(name, width)
        y = opset.multiply(y, opset.reshape(self._weights.vector(name, 1.0), i64(-1), False))
        name = f"{stem}.mm_input_projection_weight"
        self._expect(name, width, self._weights.shape(name)[-1])
        return opset.matmul(y, self._weights.matrix(name), False, False)

    def _norm(self, x: Node, name: str) -> Node:
        y = opset.mvn(x, i64(-1), True, self._settings.epsilon, "INSIDE_SQRT")
        y = opset.multiply(y, self._vector(f"{name}.weight", features(x)))
        return opset.add(y, self._vector(f"{name}.bias", features(x)))

    def _linear(self, x: Node, name: str, outputs: int = 0) -> Node:
        matrix, bias = f"{name}.weight", f"{name}.bias"
        outputs = outputs or self._weights.shape(matrix)[0]
        self._expect(matrix, outputs, features(x))
        y = self._weights.product(x, matrix)
        return opset.add(y, self._vector(bias, outputs)) if self._weights.has(bias) else y

    def _vector(self, name: str, size: int) -> Node:
        self._expect(name, size)
        return opset.reshape(self._weights.vector(name), i64(-1), False)

    def _expect(self, name: str, *shape: int) -> None:
        actual = self._weights.shape(name)
        if actual != shape:
            raise StartError(f"tensor {name!r} is {list(actual)}, expected {list(shape)}")


def _activation(name: str) -> Callable[[Node], Node]:
    activation = ACTIVATIONS.get(name)
    if activation is None:
        accepted = ", ".join(ACTIVATIONS)
        raise StartError(f"config.json has activation {name!r} of images, expected {accepted}")
    return activation


def _stem_of(names: list[str]) -> str:
    """Return the beginning of the names of the vision transformer's tensors."""
    for name in names:
        if name.endswith(f".{PATCHES}"):
            return name.removesuffix(f".{PATCHES}")
    raise StartError(f"the model has no tensor '*.{PATCHES}', which its vision tower needs")


def _rows_of_patches(side: int) -> Any:
    """Return the row of the table of positions for each patch of a full tile of Idefics3.

    The library computes rows as parts of a side, in float32, which rounds some to the patch before.
    """
    import torch

    bounds = torch.arange(1 / side, 1.0, 1 / side)
    parts = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor([side]))
    rows = torch.bucketize(parts.clamp(max=1.0 - 1e-6), bounds, right=True)
    return (rows[:, None] * side + rows).flatten().numpy()
