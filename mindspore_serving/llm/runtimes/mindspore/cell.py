"""A recorded graph as a cell that MindSpore compiles once, for steps of every shape.

The compiler reads the source of `construct`, which is made of the recorded lines.  Its arguments
have the names by which Ascend's attention kernels find the lengths of the sequences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops
from mindspore_serving.llm.runtimes.mindspore.lora import ADAPTER_ARGUMENTS, adapter_specs
from mindspore_serving.llm.runtimes.mindspore.nodes import HIDDEN_STATES, INCREMENT, PREFILL
from mindspore_serving.llm.runtimes.mindspore.recording import RecordedGraph
from mindspore_serving.llm.runtimes.mindspore.source_file import source_file

ARGUMENTS = (
    "input_ids", "positions", "key_caches", "value_caches", "slot_mapping", "attn_mask",
    "batch_valid_length", "q_seq_lens", "block_tables", "logit_rows", "uses_long_rope",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Shapes of one layer's cache: block_size tokens of kv_heads with head_dim features.

    `value_dim` are those of values, if they have others.  If it `is_flat`, the features of all
    heads are one axis.
    """

    block_size: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    is_flat: bool = False

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of a block of keys and of one of values."""
        keys, values = self.head_dim, self.value_dim or self.head_dim
        if self.is_flat:
            flat = [(self.block_size, self.kv_heads * size) for size in (keys, values)]
            return flat[0], flat[1]
        tokens = self.block_size, self.kv_heads
        return (*tokens, keys), (*tokens, values)


class GraphCell(mindspore.nn.Cell):  # type: ignore[misc]
    """A graph over the parameters that it shares with the graphs of other phases."""

    def __init__(self, graph: RecordedGraph, parameters: Mapping[str, Any], phase: str) -> None:
        super().__init__(auto_prefix=False)
        for attribute, parameter in parameters.items():
            setattr(self, attribute, parameter)
        for attribute, operator in graph.operators.items():
            setattr(self, attribute, operator)
        self.set_train(False)
        self.phase = phase


def compile_graph(
    graph: RecordedGraph, parameters: Mapping[str, Any], phase: str, caches: Sequence[CacheShape]
) -> GraphCell:
    """Return the compiled cell of `graph`; numbers of tokens, sequences and blocks are free.

    Raises what MindSpore's compiler does: TypeError, ValueError, RuntimeError and others.
    """
    arguments = ARGUMENTS if graph.uses is None else ARGUMENTS + ADAPTER_ARGUMENTS
    if graph.hidden_width:
        arguments = (HIDDEN_STATES, *arguments[1:])
    lines = [f"def construct(self, {', '.join(arguments)}):", *graph.lines]
    source = "\n    ".join([*lines, f"return {', '.join(graph.outputs)}\n"])
    with source_file(source) as name:  # the compiler reads it, also for its errors
        scope: dict[str, Any] = {"__name__": __name__, "ops": ops, "mindspore": mindspore}
        exec(compile(source, name, "exec"), scope)
        made = type("GraphCell", (GraphCell,), {"construct": scope["construct"]})
        cell: GraphCell = made(graph, parameters, PREFILL if phase == PREFILL else INCREMENT)
        inputs = _input_specs(caches, graph.dtype)
        if graph.hidden_width:
            inputs[0] = mindspore.Tensor(shape=[None, graph.hidden_width], dtype=graph.dtype)
        if graph.uses is not None:
            inputs += adapter_specs(graph.uses, graph.dtype)
        cell.set_inputs(*inputs)
        cell.compile(*inputs)
    return cell


def _input_specs(caches: Sequence[CacheShape], dtype: Any) -> list[Any]:
    """Return tensors without data in the order of `ARGUMENTS`."""
    int32 = mindspore.int32

    def spec(*shape: int | None, dtype: Any = int32) -> Any:
        return mindspore.Tensor(shape=list(shape), dtype=dtype)

    def layers(part: int) -> Any:
        return mindspore.mutable([spec(None, *each.sizes[part], dtype=dtype) for each in caches])

    return [
        spec(None), spec(None), layers(0), layers(1), spec(None), spec(None, None, dtype=dtype),
        spec(None), spec(None), spec(None, None), spec(None), spec(None),
    ]  # fmt: skip
