"""Vision towers for images of any shape and their projections, as OpenVINO graphs."""

import numpy as np
import openvino as ov
from openvino import opset13 as opset

from mindspore_serving.llm.images.blocks import QKV, TowerBlocks, activate
from mindspore_serving.llm.images.patch_settings import PatchSettings
from mindspore_serving.llm.runtimes.openvino.nodes import (
    Node,
    built,
    f32,
    features,
    i64,
    parameter,
)
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights

OUTPUT = "vectors"


class PatchGraph:
    """Builder of a tower's graph, from patches [N, L, numbers] to vectors [N, L / merge**2, width].

    N are frames or images of as many patches, each of which attends to those of its frame alone.
    Inputs are `patches`, `cos` and `sin` [N, L, head_size] if positions are rotary, `positions`
    [N, L, hidden_size] if there is a table of them, and `members`, `mask` and `slots` of
    `joined_windows`.

    Raises StartError: a tensor is missing or does not fit.
    """

    def __init__(self, weights: OpenVINOWeights, names: list[str], settings: PatchSettings) -> None:
        self._weights, self._settings = weights, settings
        self._blocks = TowerBlocks(weights, names, f"{settings.patches}.weight", settings.layers)
        self._inputs: dict[str, Node] = {}

    @property
    def table_name(self) -> str:
        """Name of the table of positions; "" if there is none."""
        return f"{self._blocks.stem}.{self._settings.table}" if self._settings.table else ""

    def build(self) -> ov.Model:
        """Return the graph."""
        settings, blocks = self._settings, self._blocks
        patches = self._input("patches", -1, -1, -1)
        x = blocks.flattened(self._sized(patches), f"{blocks.stem}.{settings.patches}")
        if settings.first_norm:
            x = blocks.norm(x, f"{blocks.stem}.{settings.first_norm}")
        if settings.table:
            x = opset.add(x, self._input("positions", -1, -1, features(x)))
        for name in ("cos", "sin") if settings.theta else ():
            self._input(name, -1, -1, settings.head_size)
        if settings.window:
            self._input("members", -1, -1, kind=ov.Type.i64)
            self._input("mask", -1, 1, 1, -1)
            self._input("slots", -1, kind=ov.Type.i64)
        states, deeper = [x], []
        for number in range(max(settings.outputs)):
            is_windowed = settings.window and number not in settings.whole
            attend = self._attend_in_windows if is_windowed else self._attend
            x = blocks.layer(states[-1], number, attend)
            states.append(self._joined(x) if number == settings.joining else x)
            if number in settings.deep:
                stem = f"{blocks.stem}.deepstack_merger_list.{settings.deep.index(number)}"
                deeper.append((settings.deep.index(number), self._merged(states[-1], stem)))
        outputs = [states[number] for number in settings.outputs]
        y = self._projected(outputs[0] if len(outputs) == 1 else opset.concat(outputs, 2))
        if deeper:
            y = opset.concat([y, *(node for _, node in sorted(deeper, key=lambda row: row[0]))], 2)
        return built({OUTPUT: y}, list(self._inputs.values()), "vision tower")

    def _input(self, name: str, *shape: int, kind: ov.Type = ov.Type.f32) -> Node:
        self._inputs[name] = parameter(name, kind, shape)
        return self._inputs[name]

    def _sized(self, patches: Node) -> Node:
        """Return `patches` with the number of numbers that the tensor of the tower has."""
        name = f"{self._blocks.stem}.{self._settings.patches}.weight"
        _, *shape = self._weights.shape(name)
        patches.set_partial_shape(ov.PartialShape([-1, -1, int(np.prod(shape))]))
        patches.validate_and_infer_types()
        return patches

    def _attend(self, heads: QKV) -> Node:
        q, k, v = heads
        if self._settings.theta:
            q, k = self._rotated(q), self._rotated(k)
        return self._blocks.attention((q, k, v))

    def _attend_in_windows(self, heads: QKV) -> Node:
        q, k, v = heads
        size, count = features(v), self._settings.layers.heads
        axis, width = opset.constant(0), size * count

        def gathered(x: Node) -> Node:
            rows = opset.reshape(x, i64(-1, width), False)
            members = opset.gather(rows, self._inputs["members"], axis)
            return opset.reshape(members, i64(0, 0, count, size), True)

        inside = (gathered(self._rotated(q)), gathered(self._rotated(k)), gathered(v))
        rows = opset.reshape(
            self._blocks.attention(inside, self._inputs["mask"]), i64(-1, width), False
        )
        shape = opset.slice(opset.shape_of(v), i64(0), i64(2), i64(1))
        return opset.reshape(
            opset.gather(rows, self._inputs["slots"], axis),
            opset.concat([shape, i64(width)], 0),
            False,
        )

    def _rotated(self, x: Node) -> Node:
        """Return queries or keys [N, L, heads, head_size], rotated by the angles of their patch."""
        parts = 2 if self._settings.rope_layout == "parts" else 1
        size = features(x) // parts
        count = self._settings.layers.heads
        if parts > 1:
            x = opset.reshape(x, i64(0, 0, count * parts, size), True)
        halves = opset.split(x, opset.constant(np.int64(-1)), 2).outputs()
        turned = opset.concat([opset.negative(halves[1]), halves[0]], -1)
        cos, sin = (self._angles(self._inputs[name], parts, size, count) for name in ("cos", "sin"))
        y = opset.add(opset.multiply(x, cos), opset.multiply(turned, sin))
        return opset.reshape(y, i64(0, 0, count, parts * size), True) if parts > 1 else y

    def _angles(self, table: Node, parts: int, size: int, count: int) -> Node:
        """Return `table` as it is multiplied with the heads, or with their parts."""
        y = opset.reshape(table, i64(0, 0, parts, size), True)
        return opset.tile(y, i64(1, 1, count, 1)) if parts > 1 else y

    def _projected(self, x: Node) -> Node:
        settings, blocks = self._settings, self._blocks
        projector = settings.projector
        if projector == "mlp":
            return blocks.projected(x, settings.last_activation)
        if projector == "mistral3":
            y = blocks.norm(x, f"{blocks.projector}.norm", epsilon=settings.last_epsilon)
            y = self._by_feature(y)
            y = blocks.linear(y, f"{blocks.projector}.patch_merger.merging_layer")
            return blocks.projected(y, settings.last_activation)
        if projector == "gemma4":
            return self._pooled(x)
        if projector == "glm":
            return self._reduced(x)
        if projector == "minicpm":
            x = blocks.norm(x, f"{blocks.stem}.post_layernorm")
            return self._merged(x, f"{blocks.projector}.mlp.0")
        return self._merged(x, f"{blocks.stem}.merger")

    def _joined(self, x: Node) -> Node:
        """Return a vector for each square of 2 x 2 patches, which attend to each other (MiniCPM-V).

        It is their mean, and what two matrices add to it.
        """
        blocks, width = self._blocks, features(x)
        stem = f"{blocks.stem}.vit_merger"
        squares = opset.reshape(x, i64(-1, 4, width), False)
        squares = blocks.attended(squares, stem, blocks.attention)
        y = opset.reshape(squares, i64(-1, 4 * width), False)
        y = blocks.linear(blocks.norm(y, f"{stem}.pre_norm"), f"{stem}.linear_1")
        y = blocks.linear(activate("gelu_pytorch_tanh", y), f"{stem}.linear_2", width)
        y = opset.add(y, opset.reduce_mean(squares, i64(1), False))
        count = opset.slice(opset.shape_of(x), i64(0), i64(1), i64(1))
        return opset.reshape(y, opset.concat([count, i64(-1, width)], 0), False)

    def _merged(self, x: Node, stem: str) -> Node:
        """Return the projection of Qwen-VL and MiniCPM-V.

        Its norm is before joining squares or behind it.
        """
        blocks, settings, width = self._blocks, self._settings, features(x)
        norm, up, down = _MERGERS[settings.projector]
        is_behind = "deepstack" in stem or settings.projector == "minicpm"
        if not is_behind:
            x = blocks.norm(x, f"{stem}.{norm}", epsilon=1e-6)
        y = opset.reshape(x, i64(0, -1, settings.last_merge**2 * width), True)
        if is_behind:
            y = blocks.norm(y, f"{stem}.{norm}", epsilon=1e-6)
        return blocks.linear(activate("gelu", blocks.linear(y, f"{stem}.{up}")), f"{stem}.{down}")

    def _by_feature(self, x: Node) -> Node:
        """Return the patches of each square joined, each feature of all of them together."""
        squares = opset.reshape(x, i64(0, -1, self._settings.merge**2, features(x)), True)
        y = opset.transpose(squares, np.array([0, 1, 3, 2]))
        return opset.reshape(y, i64(0, 0, features(x) * self._settings.merge**2), True)

    def _reduced(self, x: Node) -> Node:
        """Return the projection of GLM-V."""
        blocks, stem = self._blocks, self._blocks.stem
        x = blocks.norm(x, f"{stem}.post_layernorm")
        x = blocks.flattened(self._by_feature(x), f"{stem}.downsample")
        stem = f"{stem}.merger"
        y = blocks.linear(x, f"{stem}.proj")
        epsilon = self._settings.last_epsilon
        y = blocks.norm(y, f"{stem}.post_projection_norm", is_rms=False, epsilon=epsilon)
        y = activate("gelu", y)
        up, gate = (blocks.linear(y, f"{stem}.{name}_proj") for name in ("up", "gate"))
        return blocks.gated(up, gate, f"{stem}.down_proj")

    def _pooled(self, x: Node) -> Node:
        """Return the projection of Gemma 4: of the means of squares."""
        settings, blocks, width = self._settings, self._blocks, features(x)
        squares = opset.reshape(x, i64(0, -1, settings.merge**2, width), True)
        y = opset.multiply(opset.reduce_mean(squares, i64(2), False), f32(width**0.5))
        if settings.is_standardized:
            y = opset.subtract(y, blocks.vector(f"{blocks.stem}.std_bias", width))
            y = opset.multiply(y, blocks.vector(f"{blocks.stem}.std_scale", width))
        y = blocks.norm(y, "", epsilon=settings.last_epsilon)
        return blocks.linear(y, f"{blocks.projector}.embedding_projection")


_MERGERS = {  # the norm and the matrices, by the kind of projection
    "qwen2": ("ln_q", "mlp.0", "mlp.2"),
    "qwen3": ("norm", "linear_fc1", "linear_fc2"),
    "minicpm": ("pre_norm", "linear_1", "linear_2"),
}
