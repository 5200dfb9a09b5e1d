"""Positions in a recorded graph: queries and keys are rotated by one call of an operator."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.models.ops import Longer
from mindspore_serving.llm.runtimes.mindspore.elementwise import ElementwiseOps
from mindspore_serving.llm.runtimes.mindspore.nodes import Node


class RopeTables(NamedTuple):
    """Angles of the tokens, [tokens, half], and the factor of their cosines and sines."""

    angles: Node
    scale: float


class Rotation(NamedTuple):
    """A rotation: its operator and the variables of its tables."""

    operator: str
    cos: str
    sin: str

    def call(self, queries: str, keys: str) -> str:
        return f"{self.operator}({queries}, {keys}, {self.cos}, {self.sin}, batch_valid_length)"


class PendingRotation(NamedTuple):
    """Queries that are to be rotated with the keys that follow."""

    rotation: Rotation
    source: Node
    result: Node


class RotaryOps(ElementwiseOps):
    """The `Ops` of positions."""

    _pending: PendingRotation | None = None

    def record_pending(self, expression: str) -> None:
        if self._pending is not None and self._pending.result.name in expression:
            self._rotate_alone()

    def rope_tables(
        self, positions: Node, inv_freq: Sequence[float], scale: float = 1.0,
        longer: Longer | None = None, axes: Sequence[int] = (),
    ) -> RopeTables:  # fmt: skip
        """Record angles, float32 [tokens, len(inv_freq)]; their cosines follow in `rope`."""
        if axes:
            raise StartError("the mindspore runtime has no positions in height and width")
        frequencies = self._frequencies(inv_freq)
        if longer is not None:
            chosen = self.emit_once(
                f"ops.expand_dims({longer[0].name}.astype(mindspore.float32), 1)"
            )
            # A product, as the graph's condition may not depend on the step.
            frequencies = (
                f"({chosen.name} * {self._frequencies(longer[1])}"
                f" + (1.0 - {chosen.name}) * {frequencies})"
            )
        column = self.emit_once(f"ops.expand_dims({positions.name}.astype(mindspore.float32), 1)")
        return RopeTables(self.emit(f"{column.name} * {frequencies}", len(inv_freq)), scale)

    def _frequencies(self, values: Sequence[float]) -> str:
        return self.constant(
            f"frequencies {tuple(values)}", lambda: np.asarray(values, np.float32), exact=True
        )

    def rope(self, x: Node, tables: RopeTables, num_heads: int, *, pairs: bool = False) -> Node:
        """Record a rotation; with `pairs` the result stays interleaved, as scores do not differ."""
        rotated, dim = 2 * tables.angles.width, x.width // num_heads
        if dim > rotated:
            first, rest = self.split_heads(x, num_heads, (rotated, dim - rotated))
            first = self.rope(first, tables, num_heads, pairs=pairs)
            joined: Node = self.join_heads((first, rest), num_heads, dim)
            return joined
        angles = f"ops.concat(({tables.angles.name}, {tables.angles.name}), -1)"
        if pairs:
            angles = f"ops.reshape(ops.stack(({tables.angles.name}, {tables.angles.name}), -1), "
            angles += f"(-1, {rotated}))"
        angles = self.emit_once(angles).name
        factor = "" if tables.scale == 1.0 else f" * {tables.scale}"
        cast = f".astype({self.weights.dtype})"
        rotation = Rotation(
            self.operator("rope", cos_format=3 if pairs else 2),
            self.emit_once(f"(ops.cos({angles}){factor}){cast}").name,
            self.emit_once(f"(ops.sin({angles}){factor}){cast}").name,
        )
        return self._rotated(x, rotation)

    def _rotated(self, x: Node, rotation: "Rotation") -> Node:
        """Rotate queries and keys in one call: keys follow queries, or queries rotation alone."""
        pending = self._pending
        if pending is not None and pending.rotation == rotation:
            self._pending = None
            node = Node(f"x{len(self.lines)}", x.width)
            self.lines.append(
                f"{pending.result.name}, {node.name} = {rotation.call(pending.source.name, x.name)}"
            )
            return node
        self._rotate_alone()
        node = Node(f"x{len(self.lines)}_q", x.width)
        self._pending = PendingRotation(rotation, x, node)
        return node

    def _rotate_alone(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            name = pending.source.name
            self.lines.append(f"{pending.result.name} = {pending.rotation.call(name, name)}[0]")

    def query_scale(self, positions: Node, beta: float, length: int, first: int) -> Node:
        column = self.emit_once(f"ops.expand_dims({positions.name}.astype(mindspore.float32), 1)")
        steps = f"ops.floor(({column.name} + {float(first)}) / {float(length)})"
        scale = f"1.0 + {beta} * ops.log(1.0 + {steps})"
        return self.emit(f"({scale}).astype({self.weights.dtype})", 1)
