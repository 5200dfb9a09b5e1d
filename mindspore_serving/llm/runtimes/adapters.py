"""Matching of LoRA adapters with the weights of a model.  Knows no runtime.

A `WeightUse` is a use of a weight: a table from which rows are gathered, or a matrix to multiply
by.  If a model's head is its embedding, both have the same name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.lora import Adapter, LowRank, Matrix, read_adapter
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec
from mindspore_serving.llm.parallel.shards import Cut, ShardedCheckpoint

TABLE, MATRIX = "table", "matrix"
NORMALISED = ("BaichuanForCausalLM",)  # architectures whose head is rescaled when it is loaded
LINEAR = ".linear.weight"  # ending of matrices that are [in, out] in checkpoints

WeightUse: TypeAlias = tuple[str, str]  # TABLE or MATRIX, and the name of the tensor
Changes: TypeAlias = dict[WeightUse, LowRank]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """Base model of adapters.

    `shapes` are those of the weights that can be adapted, [out, in], or [vocabulary, features] of a
    table.  A rank has its part of each, and so has its `checkpoint`.
    """

    spec: ModelSpec
    shapes: Mapping[WeightUse, tuple[int, ...]]
    checkpoint: Checkpoint

    @property
    def head(self) -> str:
        """Name of the head's own tensor, also if the embedding is used in its place."""
        return f"{self.spec.architecture.names.head}.weight"

    def cut_of(self, name: str, shape: tuple[int, ...]) -> Cut | None:
        """Return the cut of a matrix of that whole shape, None if all of it is here."""
        if not isinstance(self.checkpoint, ShardedCheckpoint):
            return None
        return self.checkpoint.cut_of(name, shape)


def read_changes(config: EngineConfig, base: BaseModel | None) -> dict[int, Changes]:
    """Return the changes of the adapters in `config`, by their numbers in rows: 1, 2 and so on.

    Raises StartError.
    """
    changes = {}
    for number, (name, path) in enumerate(config.adapters.items(), 1):
        assert base is not None
        changes[number] = match_adapter(
            read_adapter(path, config.max_lora_rank), base, f"adapter {name!r}"
        )
    return changes


def match_adapter(adapter: Adapter, base: BaseModel, where: str) -> Changes:
    """Return what the adapter adds to each weight; a replaced matrix is a change of full rank.

    Raises StartError, which begins with `where`, for a tensor that does not fit `base`.
    """
    changes: Changes = {}
    for name, change in adapter.added.items():
        if _is_elsewhere(name, base, where):
            continue
        use = _find(name, base, where)
        shape = change.up.shape[0], change.down.shape[1]
        cut = base.cut_of(use[1], shape)
        _check_shape(use, name, shape if cut is None else cut.shape_of(shape), base, where)
        changes[use] = change if cut is None else _part_of(change, cut)
    for name, matrix in adapter.replaced.items():
        if _is_elsewhere(name, base, where):
            continue
        use = _find(name, base, where)
        if use[1].endswith(LINEAR):
            matrix = matrix.T
        cut = base.cut_of(use[1], matrix.shape)
        matrix = matrix if cut is None else cut.part_of(matrix)
        _check_shape(use, name, matrix.shape, base, where)
        difference = matrix - base.checkpoint.f32(use[1])
        if difference.any():  # PEFT writes embeddings even if they are unchanged
            changes[use] = _joined(_of_full_rank(difference), changes.get(use))
    return changes


def _find(name: str, base: BaseModel, where: str) -> WeightUse:
    for candidate in _names(name):
        for use in (MATRIX, TABLE):
            is_shared = use == MATRIX and (TABLE, candidate) in base.shapes
            if (use, candidate) in base.shapes and not is_shared:
                return _checked((use, candidate), base, where)
    if name == base.head:
        for use, candidate in base.shapes:
            if use == MATRIX and (TABLE, candidate) in base.shapes:
                return _checked((use, candidate), base, where)
    raise StartError(f"{where} changes {name!r}, which cannot be adapted in this architecture")


def _is_elsewhere(name: str, base: BaseModel, where: str) -> bool:
    """Return whether a tensor is of a layer that another stage has.

    Raises StartError for one outside of the layers, if this is a stage.
    """
    spec = base.spec
    if len(spec.layers) == spec.num_layers:
        return False
    prefix = f"{spec.architecture.names.layers}."
    for candidate in _names(name):
        number = candidate.removeprefix(prefix).partition(".")[0]
        if candidate.startswith(prefix) and number.isdecimal():
            return int(number) not in spec.layers and int(number) < spec.num_layers
    raise StartError(
        f"{where} changes {name!r}, which stages do not adapt: merge the adapter into the "
        "checkpoint, or leave pipeline_parallel out"
    )


def _names(name: str) -> Iterator[str]:
    """Iterate over the names here of a tensor that PEFT calls `name`; see `models.layouts`."""
    yield name
    yield name.removesuffix(".weight") + LINEAR
    yield name.replace("model.language_model.", "model.", 1)
    yield name.replace("language_model.", "", 1)


def _checked(use: WeightUse, base: BaseModel, where: str) -> WeightUse:
    if use[1] == base.head and base.spec.architecture_name in NORMALISED:
        raise StartError(f"{where} changes {use[1]!r}, whose rows this architecture scales")
    return use


def _check_shape(
    use: WeightUse, name: str, shape: tuple[int, ...], base: BaseModel, where: str
) -> None:  # fmt: skip
    expected = base.shapes[use]
    if tuple(shape) != tuple(expected):
        raise StartError(
            f"{where} changes {name!r} as {list(shape)}, but it is {list(expected)} here: it is an "
            "adapter of another model"
        )


def _part_of(change: LowRank, cut: Cut) -> LowRank:
    """Return a rank's part: of the outputs, or of the inputs, over which the ranks' results add."""
    if cut.axis == 0:
        return replace(change, up=cut.part_of(change.up))
    return replace(change, down=cut.part_of(change.down))


def _of_full_rank(difference: Matrix) -> LowRank:
    """Factor a matrix with the smaller of its sides as the rank."""
    out, into = difference.shape
    if into <= out:
        return LowRank(np.eye(into, dtype=np.float32), difference)
    return LowRank(difference, np.eye(out, dtype=np.float32))


def _joined(change: LowRank, other: LowRank | None) -> LowRank:
    if other is None:
        return change
    return LowRank(
        np.concatenate([change.down, other.down]), np.concatenate([change.up, other.up], 1)
    )
