"""Vision towers for tiles of one size and their projections, as OpenVINO graphs."""

from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as opset
from openvino.op import Parameter

from mindspore_serving.errors import StartError
from mindspore_serving.llm.images.blocks import TowerBlocks
from mindspore_serving.llm.images.tower_settings import TowerSettings
from mindspore_serving.llm.runtimes.openvino.nodes import Node, features, i64
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights


class TileGraph:
    """Builder of a tower's graph, from `pixel_values` [B, 3, size, size] to vectors [B, n, width].

    `weights` has tensors with Hugging Face's names, of which `names` are all.

    Raises StartError: a tensor is missing or does not fit.
    """

    def __init__(self, weights: OpenVINOWeights, names: list[str], settings: TowerSettings) -> None:
        self._weights, self._settings = weights, settings
        self._blocks = TowerBlocks(
            weights, names, f"{settings.names.patches}.weight", settings.layers
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
        settings, blocks, stem = self._settings, self._blocks, self._blocks.stem
        name = f"{stem}.{settings.names.patches}.weight"
        patch, shape = settings.patch_size, self._weights.shape(name)
        if len(shape) != 4 or shape[1:] != (3, patch, patch):
            expected = f"[*, 3, {patch}, {patch}]"
            raise StartError(f"tensor {name!r} is {list(shape)}, expected {expected}")
        kernel = opset.reshape(self._weights.vector(name), i64(*shape), False)
        x = opset.convolution(pixels, kernel, [patch] * 2, [0, 0], [0, 0], [1, 1])
        x = opset.transpose(opset.reshape(x, i64(0, 0, -1), True), np.array([0, 2, 1]))
        bias = f"{stem}.{settings.names.patches}.bias"
        if self._weights.has(bias):
            x = opset.add(x, blocks.vector(bias, shape[0]))
        count = settings.side**2 + settings.has_class
        table = blocks.table(f"{stem}.{settings.names.positions}", count, shape[0])
        positions = opset.unsqueeze(table, i64(0))
        if settings.has_parts:
            rows = opset.constant(_rows_of_patches(settings.side))
            positions = opset.gather(positions, rows, opset.constant(1))
        if settings.has_class:
            batch = opset.gather(opset.shape_of(pixels), i64(0), opset.constant(0))
            token = blocks.vector(f"{stem}.{settings.names.token}", shape[0])
            target = opset.concat([batch, i64(1, shape[0])], 0)
            x = opset.concat([opset.broadcast(token, target), x], 1)
        return opset.add(x, positions)

    def _outputs(self, x: Node) -> Node:
        """Return the outputs of layers that are used, [B, tokens, width]."""
        settings, blocks = self._settings, self._blocks
        if settings.names.norm_before:
            x = blocks.norm(x, f"{blocks.stem}.{settings.names.norm_before}", is_rms=False)
        states = [x]
        for number in range(max(settings.outputs)):
            states.append(blocks.layer(states[-1], number, blocks.attention))
        outputs = [states[number] for number in settings.outputs]
        if settings.is_normed:
            name = f"{blocks.stem}.{settings.names.norm_behind}"
            outputs = [blocks.norm(x, name, is_rms=False) for x in outputs]
        y = outputs[0] if len(outputs) == 1 else opset.concat(outputs, 2)
        if settings.has_class and not settings.keeps_class:
            y = opset.slice(y, i64(1), i64(settings.side**2 + 1), i64(1), i64(1))
        return y

    def _projected(self, x: Node) -> Node:
        settings, blocks = self._settings, self._blocks
        if settings.projector == "mlp":
            return blocks.projected(x, settings.projector_activation)
        side, scale, width = settings.side, settings.scale, features(x)
        parts = side // scale
        squares = opset.reshape(x, i64(0, parts, scale, parts, scale, width), True)
        if settings.projector == "pool":
            y = opset.reduce_mean(squares, i64(2, 4), False)
            return self._soft(opset.reshape(y, i64(0, -1, width), True))
        y = opset.transpose(squares, np.array([0, 1, 3, 2, 4, 5]))
        y = opset.reshape(y, i64(0, parts**2, scale**2 * width), True)
        if settings.projector == "shuffle":
            return blocks.linear(y, f"{blocks.projector}.modality_projection.proj")
        y = blocks.norm(y, f"{blocks.projector}.layer_norm", is_rms=False, epsilon=1e-5)
        return blocks.projected(y, settings.projector_activation)

    def _soft(self, x: Node) -> Node:
        """Return the projection of Gemma 3."""
        blocks, width = self._blocks, features(x)
        y = blocks.norm(x, "", is_rms=True)
        name = f"{blocks.projector}.mm_soft_emb_norm.weight"
        blocks.expect(name, width)
        y = opset.multiply(y, opset.reshape(self._weights.vector(name, 1.0), i64(-1), False))
        name = f"{blocks.projector}.mm_input_projection_weight"
        blocks.expect(name, width, self._weights.shape(name)[-1])
        return opset.matmul(y, self._weights.matrix(name), False, False)


def _rows_of_patches(side: int) -> Any:
    """Return the row of the table of positions for each patch of a full tile of Idefics3.

    The library computes rows as parts of a side, in float32, which rounds some to the patch before.
    """
    import torch

    bounds = torch.arange(1 / side, 1.0, 1 / side)
    parts = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor([side]))
    rows = torch.bucketize(parts.clamp(max=1.0 - 1e-6), bounds, right=True)
    return (rows[:, None] * side + rows).flatten().numpy()
