"""Shards of a model for tensor parallelism: heads, intermediate features, rows of the vocabulary.

Queries, keys, values, gate and up are cut by outputs, so that a rank computes whole heads; the
matrices behind them are cut by inputs, so that the ranks' results add up (Shoeybi et al.,
"Megatron-LM", 2019).  A bias that is added after the sum stays on rank 0.  Uncut tensors (norms,
routers, what makes the vectors of latent attention) are on every rank.  Of recurrent states a rank
has some heads (`state_shards`).

Tensors stay views of the mapped file: a rank reads the pages of its part.  Knows no runtime and no
process.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.packing import Packed, is_packed
from mindspore_serving.llm.checkpoint.quantized.parts import StaticInputs
from mindspore_serving.llm.checkpoint.weights import FLOATS, Checkpoint
from mindspore_serving.llm.descriptions.architecture import OF_ALL, OF_EACH_HEAD, Experts
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.models.spec_parts import Mixture
from mindspore_serving.llm.parallel.state_shards import cut_state, state_outputs, state_rows

_EXPERT = re.compile(r"\.\d+\.")
SHARED = ("gate_proj", "up_proj", "down_proj")  # matrices of an expert that computes every token


@dataclass(frozen=True, slots=True)
class Range:
    """Indices `begin` to `end` - 1."""

    begin: int
    end: int

    @property
    def count(self) -> int:
        """Number of indices."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard number `rank` of `size`."""

    rank: int
    size: int

    def of(self, count: int) -> Range:
        """Return its part of `count` indices; parts are in rank order and differ by at most one."""
        return Range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def kv_heads(self, count: int) -> Range:
        """Return its part of `count` key-value heads.

        With fewer heads than ranks it is the one that it shares with other ranks.
        """
        if count >= self.size:
            return self.of(count)
        head = count * self.rank // self.size
        return Range(head, head + 1)


@dataclass(frozen=True, slots=True)
class Cut:
    """Part of a tensor: `ranges` of its rows, axis 0, or one range of its columns."""

    ranges: list[Range]
    axis: int

    @property
    def indices(self) -> "slice | npt.NDArray[np.intp]":
        if len(self.ranges) == 1:
            return slice(self.ranges[0].begin, self.ranges[0].end)
        indices: npt.NDArray[np.intp] = np.concatenate(
            [np.arange(each.begin, each.end) for each in self.ranges]
        )
        return indices

    def shape_of(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        count = sum(each.count for each in self.ranges)
        return whole[: self.axis] + (count,) + whole[self.axis + 1 :]

    def part_of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the part of an array, a view if it is one range."""
        part: npt.NDArray[Any] = array[self.indices] if self.axis == 0 else array[:, self.indices]
        return part


def cut_spec(spec: ModelSpec, size: int, rank: int = 0) -> ModelSpec:
    """Return the sizes of `rank`, one of `size` ranks; hidden size and vocabulary are the model's.

    Raises StartError for a size that does not divide the model.
    """
    if spec.state is not None:
        spec = replace(spec, state=cut_state(spec.state, size))
    if spec.attending:
        spec = _cut_attention(spec, Shard(rank, size))
    if any(map(spec.feeds, spec.layers)) and spec.intermediate_size % size:
        raise StartError(
            f"tensor_parallel is {size}, expected a divisor of the model's intermediate_size "
            f"{spec.intermediate_size}"
        )
    return replace(spec, intermediate_size=spec.intermediate_size // size)


def _cut_attention(spec: ModelSpec, shard: Shard) -> ModelSpec:
    heads, size = spec.num_heads, shard.size
    for kv_heads, _ in spec.heads:  # layers without a window may have fewer
        if heads % size or (kv_heads % size and size % kv_heads):
            raise StartError(
                f"tensor_parallel is {size}, expected a divisor of the model's {heads} attention "
                f"heads that divides its {kv_heads} key-value heads or is a multiple of them"
            )
    return replace(
        spec,
        num_heads=heads // size,
        slopes=(spec.alibi or ())[shard.of(heads).begin : shard.of(heads).end],
        num_kv_heads=max(1, spec.num_kv_heads // size),
        heads=tuple((max(1, kv_heads // size), dim) for kv_heads, dim in spec.heads),
    )


def check_experts(spec: ModelSpec, size: int) -> Mixture:
    """Return the model's mixture.  Raises StartError unless `size` ranks can have experts each."""
    if spec.mixture is None:
        raise StartError(
            f"expert_parallel is set, but {spec.architecture_name} has no experts: leave it out"
        )
    if size == 1:
        raise StartError(
            "expert_parallel is set, but tensor_parallel is 1: set it to the number of ranks that "
            "share the experts, or leave expert_parallel out"
        )
    if spec.mixture.num_experts < size:
        raise StartError(
            f"expert_parallel is set and tensor_parallel is {size}, expected at most "
            f"{spec.mixture.num_experts}, the number of the model's experts"
        )
    return spec.mixture


class ShardedCheckpoint(Checkpoint):
    """Part of a checkpoint that one rank holds, under the names of the uncut tensors.

    `spec` is the whole model's.  Quantised matrices are cut as integers or as floats.  Without
    `splits_experts` all experts remain whole, of which the rank reads some.
    """

    def __init__(
        self, whole: Checkpoint, spec: ModelSpec, shard: Shard, *, splits_experts: bool = True
    ) -> None:
        super().__init__(whole.directory, whole.config, whole._tensors)
        self._spec = spec
        self._shard = shard
        self._names = spec.architecture.names
        self._layer = re.compile(rf"{re.escape(self._names.layers)}\.(\d+)\.")
        experts = spec.architecture.experts or Experts()
        leaves = (experts.gate, experts.up, experts.down)
        gate, up, down = (f"{experts.prefix}.{leaf}" for leaf in leaves)
        shared = [f"{experts.shared}.{leaf}" for leaf in SHARED] if experts.shared else []
        separate = self._names.gate_up if len(self._names.gate_up) > 1 else ()
        self._even_outputs = (gate, up, *shared[:2], *separate)  # as wide as the layer has them
        self._whole = () if splits_experts else (gate, up, down)
        self._inputs = (self._names.output, self._names.down, down, *shared[2:])
        self._inputs += state_outputs(spec)
        self._added_once = self._inputs + (experts.latent or ())[1:]
        self._state_rows = state_rows(spec)
        has_norms = spec.architecture.qk_norm in (OF_ALL, OF_EACH_HEAD)
        self._normed = (self._names.q_norm, self._names.k_norm) if has_norms else ()

    def raw(self, name: str) -> tuple[str, tuple[int, ...], npt.NDArray[Any]]:
        dtype, shape, bits = super().raw(name)
        if dtype not in FLOATS:
            return dtype, shape, bits
        part = self._part(name, bits)
        return dtype, part.shape, part

    def f32(self, name: str) -> npt.NDArray[np.float32]:
        stored = self.stored(name)
        if stored.dtype in FLOATS:
            return super().f32(name)
        return self._part(name, Checkpoint.of(self).f32(name))

    def shape(self, name: str) -> tuple[int, ...]:
        stored = self.stored(name)
        if stored.dtype in FLOATS or is_packed(stored.dtype):
            return super().shape(name)
        cut = self.cut_of(name, stored.shape)
        return stored.shape if cut is None else cut.shape_of(stored.shape)

    def rounded(self, name: str, bits: int) -> Packed:
        """Return this rank's part of the whole matrix, rounded: scales are of whole rows of it."""
        cut = self.cut_of(name, self.stored(name).shape)
        if cut is None or cut.axis == 0:
            return super().rounded(name, bits)
        return _columns_of(Checkpoint.of(self).rounded(name, bits), cut.ranges[0], name)

    def packed(self, name: str) -> Packed | None:
        """Return the integers of this rank's part.  Raises StartError if it would split a group."""
        whole = super().packed(name)
        cut = None if whole is None else self.cut_of(name, whole.shape)
        if whole is None or cut is None:
            return whole
        if cut.axis == 0:
            return whole.rows(cut.indices)
        return _columns_of(whole, cut.ranges[0], name)

    def input_rounding(self, name: str) -> StaticInputs | str:
        """Return the rounding of this rank's inputs; the bias behind a sum is that of rank 0."""
        whole = super().input_rounding(name)
        cut = self.cut_of(name, whole.values.shape) if isinstance(whole, StaticInputs) else None
        if not isinstance(whole, StaticInputs) or cut is None:
            return whole
        if cut.axis == 0:
            return whole.rows(cut.indices)
        return whole.columns(cut.indices, has_bias=self._shard.rank == 0)

    def _part(self, name: str, bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._is_bias_of_sum(name):
            return bits if self._shard.rank == 0 else np.zeros_like(bits)
        cut = self.cut_of(name, bits.shape)
        return bits if cut is None else cut.part_of(bits)

    def _module(self, name: str) -> str:
        stem = name.removesuffix(f".{self._names.matrix}")
        stem = name.rpartition(".")[0] if stem == name else stem
        return _EXPERT.sub(".", self._layer.sub("", stem))

    def _is_bias_of_sum(self, name: str) -> bool:
        module = self._module(name)
        is_summed = module in self._added_once and module not in self._whole
        return is_summed and not name.endswith(".weight")

    def cut_of(self, name: str, shape: tuple[int, ...]) -> Cut | None:
        """Return the cut of a tensor of that whole shape, None if the rank has all of it."""
        if name.rpartition(".")[0] in (self._names.embedding, self._names.head):
            count = self._spec.vocab_size
            return _rows(name, shape, [self._shard.of(count)], count)
        if name == f"{self._names.embedding}_per_layer.weight":
            count = self._spec.layer_vocab_size
            return _rows(name, shape, [self._layer_vocabulary(count)], count)
        if self._names.sinks and name.endswith(f".{self._names.sinks}"):
            heads = self._spec.num_heads
            return _rows(name, shape, [self._shard.of(heads)], heads)
        module = self._module(name)
        if module in self._normed:
            return self._norm_of_heads(name, shape)
        if module in self._whole:
            return None
        if module in self._inputs:
            return Cut([self._even(name, shape[-1])], axis=1)
        if module in self._even_outputs:
            return _rows(name, shape, [self._even(name, shape[0])], shape[0])
        units = self._state_rows.get(module) or self._state_rows.get(self._layer.sub("", name))
        if units:
            parts = [_scaled(self._shard.kv_heads(count), width) for count, width in units]
            sizes = [count * width for count, width in units]
            return _rows(name, shape, list(_joined(parts, sizes)), sum(sizes))
        ranges = self._outputs(module, self._heads_of(name))
        return _rows(name, shape, *ranges) if ranges else None

    def _norm_of_heads(self, name: str, shape: tuple[int, ...]) -> Cut:
        """Return the cut of a norm's weight that has features for each head."""
        (kv_heads, head_dim), num_heads = self._heads_of(name), self._spec.num_heads
        is_query = self._module(name) == self._names.q_norm
        heads = self._shard.of(num_heads) if is_query else self._shard.kv_heads(kv_heads)
        width = head_dim if self._spec.architecture.qk_norm == OF_ALL else 1
        return _rows(
            name, shape, [_scaled(heads, width)], width * (num_heads if is_query else kv_heads)
        )

    def _layer_vocabulary(self, count: int) -> Range:
        """Return the rows that this rank has of a table of the first `count` tokens.

        They are those of its tokens, and one in any case.
        """
        rows = self._shard.of(self._spec.vocab_size)
        begin = min(rows.begin, count - 1)
        return Range(begin, max(begin + 1, min(rows.end, count)))

    def _heads_of(self, name: str) -> tuple[int, int]:
        """Return (key-value heads, features of each) of a tensor's layer, uncut."""
        layer, spec = self._layer.match(name), self._spec
        return spec.heads[int(layer[1])] if layer else (spec.num_kv_heads, spec.head_dim)

    def _outputs(self, module: str, cached: tuple[int, int]) -> tuple[list[Range], int] | None:
        """Return the rows of a matrix that is cut by outputs, and its number of rows uncut.

        `cached` are the heads of the keys and values of the matrix's layer.
        """
        (kv_heads, head_dim), spec, names = cached, self._spec, self._names
        heads, kv = self._shard.of(spec.num_heads), self._shard.kv_heads(kv_heads)
        features = self._shard.of(spec.intermediate_size)
        query = head_dim * (2 if spec.architecture.output_gate else 1)
        parts = [_scaled(heads, query), *[_scaled(kv, head_dim)] * 2]
        num_wide = 2 if spec.architecture.gated else 1
        expanded = spec.latent.plain + spec.latent.value if spec.latent else 0
        for modules, ranges, sizes in (
            (names.qkv, parts, [spec.num_heads * query, *[kv_heads * head_dim] * 2]),
            (names.gate_up, [features] * num_wide, [spec.intermediate_size] * num_wide),
            (("self_attn.q_b_proj",), parts[:1], [spec.q_size]),
            (("self_attn.kv_b_proj",), [_scaled(heads, expanded)], [spec.num_heads * expanded]),
        ):
            if module not in modules:
                continue
            if len(modules) > 1:
                index = modules.index(module)
                return [ranges[index]], sizes[index]
            return list(_joined(ranges, sizes)), sum(sizes)
        return None

    def _even(self, name: str, count: int) -> Range:
        if count % self._shard.size:
            raise StartError(
                f"tensor_parallel is {self._shard.size}, expected a divisor of the {count} "
                f"features of tensor {name!r}"
            )
        return self._shard.of(count)


def _rows(name: str, shape: tuple[int, ...], ranges: list[Range], expected: int) -> Cut:
    if shape[0] != expected:
        raise StartError(f"tensor {name!r} has {shape[0]} rows, expected {expected}")
    return Cut(ranges, axis=0)


def _columns_of(packed: Packed, columns: Range, name: str) -> Packed:
    """Return some of the inputs of a matrix of integers, whole groups of them."""
    begin, end, group = columns.begin, columns.end, packed.group
    if packed.order is not None:
        raise StartError(
            f"the inputs of tensor {name!r} are in another order (act-order), which is not cut by "
            "inputs: leave tensor_parallel out, or use pipeline_parallel"
        )
    if packed.is_grouped and (begin % group or end % group):
        raise StartError(
            f"tensor {name!r} has groups of {group} inputs, which do not divide the "
            f"{columns.count} inputs of a rank: lower tensor_parallel, or use pipeline_parallel"
        )
    per_value = packed.shape[1] // packed.values.shape[1]
    if columns.count % per_value:
        raise StartError(f"a rank has {columns.count} inputs of tensor {name!r}: an odd number")
    groups = slice(begin // group, end // group) if packed.is_grouped else slice(None)
    return replace(
        packed,
        values=packed.values[:, begin // per_value : end // per_value],
        scales=packed.scales[:, groups],
        shape=(packed.shape[0], columns.count),
        group=group if packed.is_grouped else columns.count,
        minimums=None if packed.minimums is None else packed.minimums[:, groups],
        zeros=None if packed.zeros is None else packed.zeros[:, groups],
    )


def _scaled(part: Range, factor: int) -> Range:
    return Range(part.begin * factor, part.end * factor)


def _joined(parts: list[Range], sizes: list[int]) -> Iterator[Range]:
    """Iterate over `parts` of tensors with `sizes` rows, which a fused tensor holds in a row."""
    begin = 0
    for part, size in zip(parts, sizes, strict=True):
        yield Range(begin + part.begin, begin + part.end)
        begin += size
