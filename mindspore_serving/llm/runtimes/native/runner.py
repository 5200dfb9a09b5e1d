"""Runner of the native runtime: a step is computed in passes of some tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import finalize

import numpy as np

from mindspore_serving.errors import ServingError
from mindspore_serving.llm.checkpoint.weights import Gather
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.runtimes.adapters import BaseModel, Changes
from mindspore_serving.llm.runtimes.layout import (
    Indices,
    Layout,
    LimitedRunner,
    RunnerLimits,
    lay_out,
)
from mindspore_serving.llm.runtimes.native.attention import Memory
from mindspore_serving.llm.runtimes.native.attention_tasks import AttentionTasks
from mindspore_serving.llm.runtimes.native.cache import PagedCache
from mindspore_serving.llm.runtimes.native.codes import (
    MAX_LOGITS,
    MAX_ROWS,
    CacheType,
    StepColumn,
    max_rows,
)
from mindspore_serving.llm.runtimes.native.interpreter import PlanArrays, execute
from mindspore_serving.llm.runtimes.native.lora import AdapterTable
from mindspore_serving.llm.runtimes.native.ops import Lookup, NativeOps, TokenIds
from mindspore_serving.llm.runtimes.native.plan import ArenaTensor, NativePlan
from mindspore_serving.llm.runtimes.native.products import Products, Team
from mindspore_serving.llm.runtimes.native.states import StateTables
from mindspore_serving.llm.runtimes.native.threads import KernelThreads
from mindspore_serving.llm.runtimes.native.weights import NativeWeights
from mindspore_serving.llm.step import Features, Logits, Step, Vectors


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model's plan with its weights, its inputs that Python fills, and its outputs."""

    spec: ModelSpec
    plan: NativePlan
    ops: NativeOps
    weights: NativeWeights
    adapters: AdapterTable
    gathers: tuple[tuple[Lookup, Gather], ...]
    logits: ArenaTensor
    hidden: ArenaTensor


class NativeRunner(LimitedRunner):
    """A `StoringRunner` that also embeds; an `AdaptedRunner` if there is a `base`."""

    def __init__(self, model: PlannedModel, limits: RunnerLimits, cache_type: CacheType,
        num_threads: int | None = None, base: BaseModel | None = None,
    ) -> None:  # fmt: skip
        super().__init__(replace(limits, adapters=model.adapters.loaded))
        self.base = base
        self._model: PlannedModel | None = model
        layers, block_size = model.ops.layers, limits.block_size
        self._cache = PagedCache(layers, cache_type, block_size, limits.num_blocks)
        self.arrays = self._cache.arrays
        self._products = Products(model.plan, model.weights.matrices)
        self._threads = KernelThreads(num_threads)
        self._end_threads = finalize(self, self._threads.close)  # their memory outlives them
        self._states = StateTables(model.ops.states, limits.num_slots)
        team = Team(self._threads.run_address, self._threads.arguments.ctypes.data)
        operations, numbers = model.plan.operations, model.plan.numbers
        tables = (self._cache.table, self._states.addresses)
        attention = AttentionTasks.of(limits.max_model_len, self._threads.num_threads)
        self._planned = PlanArrays(operations, numbers, *tables, team, attention)
        self.block_bytes, self.state_bytes = self._cache.block_bytes, self._states.state_bytes
        self.block_format = f"native 1 {cache_type.name} {block_size} {layers}"
        self.cache_memory = replace(limits.memory, can_release=True)
        self.hidden_size = model.spec.hidden_size
        self.rope_switch = model.spec.rope.switch

    def run(self, step: Step) -> Logits:
        """Run a step as `Runner.run` does."""
        model = self._open()
        return self._compute(model, step, model.logits)

    def embed(self, step: Step) -> Vectors:
        """Run a step as `EmbeddingRunner.embed` does."""
        model = self._open()
        return self._compute(model, step, model.hidden)

    def read_block(self, block: int) -> memoryview:
        return self._cache.read(block)

    def write_block(self, block: int, content: memoryview) -> None:
        self._cache.replace(block, content)

    def read_state(self, slot: int) -> memoryview:
        return self._states.read(slot)

    def write_state(self, slot: int, content: memoryview) -> None:
        self._states.replace(slot, content)

    def release_blocks(self, blocks: Sequence[int]) -> None:
        self._cache.release(blocks)

    def load_adapter(self, adapter: int, changes: Changes) -> None:
        self._open().adapters.load(adapter, changes)

    def unload_adapter(self, adapter: int) -> None:
        self._open().adapters.unload(adapter)

    def close(self) -> None:
        """Drop cache and weights.  A closed runner refuses every step."""
        if self._model is not None:
            self._end_threads()
            self._products.clear()
            self._model.weights.clear()
            self._model.adapters.clear()
        self._model = None
        self._cache.clear()
        self._states.clear()

    def _open(self) -> PlannedModel:
        if self._model is None:
            raise ServingError("the runner is closed")
        return self._model

    def _compute(self, model: PlannedModel, step: Step, output: ArenaTensor) -> Vectors:
        """Return the rows of `output` of all passes."""
        layout = lay_out(step, self._limits)
        if step.copies:
            source, target = np.array(step.copies, np.int64).T
            self._cache.copy(source, target)
        rows, blocks = _step_rows(layout, self.block_size, model.adapters)
        if self.num_slots:
            slots = self._states.columns(layout)
            rows[:, StepColumn.STATE_READ], rows[:, StepColumn.STATE_WRITE] = slots
        passes = list(_passes(layout))
        parts = []
        for begin, end, gathered in passes:
            _write_features(model, layout.features, begin, end)
            self._pass(model, layout.token_ids[begin:end], rows[begin:end], (blocks, gathered))
            part = _view(model.plan, output, len(gathered))
            parts.append(part if len(passes) == 1 else part.copy())
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros((0, output.width), np.float32)

    def _pass(
        self, model: PlannedModel, ids: Indices, rows: Indices, rest: tuple[Indices, Indices]
    ) -> None:
        plan = model.plan
        for lookup, gather in model.gathers:
            indices = rows[:, StepColumn.POSITION]
            if isinstance(lookup.ids, TokenIds):
                indices = np.where(ids < lookup.ids.limit, ids, 0)
            target = _view(plan, lookup.target, len(ids))
            target[:] = gather(indices.astype(np.int32))
            model.adapters.add_rows(target, lookup.table, indices, rows[:, StepColumn.ADAPTER])
        memory = Memory(plan.arena.ctypes.data, rows, *rest, model.adapters.table)
        execute(self._planned, memory, len(ids))
        self._threads.adapt()


def _write_features(model: PlannedModel, features: Features | None, begin: int, end: int) -> None:
    """Write the image features of a pass's tokens, in a model that takes them."""
    planned = model.ops.image_features
    if planned is None:
        return
    vectors, kept = (_view(model.plan, x, end - begin) for x in (planned.vectors, planned.kept))
    vectors[:], kept[:] = 0, 1
    if features is not None:
        chosen = (begin <= features.positions) & (features.positions < end)
        rows = features.positions[chosen] - begin
        vectors[rows], kept[rows] = features.vectors[chosen], 0


def _view(plan: NativePlan, tensor: ArenaTensor, count: int) -> Vectors:
    begin = tensor.storage.offset + tensor.begin
    count_all = max_rows(tensor.per_token)
    rows = plan.arena[begin : begin + count_all * tensor.stride].reshape(count_all, -1)
    return rows[:count, : tensor.width]


def _passes(layout: Layout) -> Iterator[tuple[int, int, Indices]]:
    """Iterate over the tokens of each pass, and its tokens with logits counted from its first."""
    begin = 0
    while begin < len(layout.token_ids):
        end = min(begin + MAX_ROWS, len(layout.token_ids))
        first, last = np.searchsorted(layout.rows, (begin, end)).tolist()
        if last - first > MAX_LOGITS:
            last = first + MAX_LOGITS
            end = int(layout.rows[last])
        yield begin, end, layout.rows[first:last] - begin
        begin = end


def _step_rows(layout: Layout, block_size: int, adapters: AdapterTable) -> tuple[Indices, Indices]:
    """Return the array of the step's tokens (`StepColumn`), and the blocks of its sequences."""
    rows = np.zeros((len(layout.token_ids), len(StepColumn)), np.int64)
    rows[:, StepColumn.POSITION] = layout.positions
    rows[:, StepColumn.BLOCK], rows[:, StepColumn.OFFSET] = np.divmod(layout.slots, block_size)
    rows[:, StepColumn.USES_LONG_ROPE] = layout.uses_long_rope
    positions = layout.rope_positions
    rows[:, StepColumn.TIME : StepColumn.WIDTH + 1] = (
        layout.positions[:, None] if positions is None else positions
    )
    counts = [len(span.blocks) for span in layout.spans]
    begins = np.cumsum([0, *counts])[:-1]
    lengths = [span.end - span.begin for span in layout.spans]
    rows[:, StepColumn.TABLE] = np.repeat(begins, lengths)
    numbers = [adapters.rows[span.adapter] for span in layout.spans]
    rows[:, StepColumn.ADAPTER] = np.repeat(numbers, lengths)
    blocks = [span.blocks for span in layout.spans]
    return rows, np.concatenate(blocks) if blocks else np.zeros(0, np.int64)
