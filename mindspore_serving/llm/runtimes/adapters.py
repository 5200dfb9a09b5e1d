"""Where a LoRA adapter changes a model.  Knows no runtime.

A `Place` is a use of a weight: a table from which rows are chosen, or a matrix to multiply by.  Of
a model whose head is its embedding, both have the same name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.lora import Adapter, LowRank, Matrix, read_adapter
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.spec import ModelSpec

TABLE, MATRIX = "table", "matrix"
NORMALISED = ("BaichuanForCausalLM",)  # architectures whose head may not have the rows of the file
LINEAR = ".linear.weight"  # of matrices that are [in, out] in checkpoints

Place: TypeAlias = tuple[str, str]  # TABLE or MATRIX, and the name of the tensor
Changes: TypeAlias = dict[Place, LowRank]


@dataclass(frozen=True, slots=True)
class Base:
    """A model that is adapted: the shapes of what can be, [out, in], or [vocabulary, features] of
    a table; and what gives a tensor of it in float32.
    """

    spec: ModelSpec
    shapes: Mapping[Place, tuple[int, ...]]
    read: Callable[[str], Matrix]

    @property
    def head(self) -> str:
        """The head by its own name, also where it is the embedding."""
        return f"{self.spec.form.names.head}.weight"


def read_changes(config: EngineConfig, base: Base | None) -> dict[int, Changes]:
    """Those of the adapters in `config`, by the numbers that rows give: 1, 2 and so on.  Raises
    StartError.
    """
    found = {}
    for number, (name, path) in enumerate(config.adapters.items(), 1):
        assert base is not None
        found[number] = place(read_adapter(path, config.max_lora_rank), base, f"adapter {name!r}")
    return found


def place(adapter: Adapter, base: Base, where: str) -> Changes:
    """What is added at each place.  A matrix in the place of another is that at full rank.

    Raises StartError, which begins with `where`, for what does not fit `base`.
    """
    changes: Changes = {}
    for name, change in adapter.added.items():
        found = _find(name, base, where)
        _check_shape(found, name, (change.up.shape[0], change.down.shape[1]), base, where)
        changes[found] = change
    for name, matrix in adapter.replaced.items():
        found = _find(name, base, where)
        if found[1].endswith(LINEAR):
            matrix = matrix.T
        _check_shape(found, name, matrix.shape, base, where)
        difference = matrix - base.read(found[1])
        if difference.any():  # PEFT writes embeddings also if they are as they were
            changes[found] = _joined(_of_full_rank(difference), changes.get(found))
    return changes


def _find(name: str, base: Base, where: str) -> Place:
    for other in _names(name):
        for use in (MATRIX, TABLE):
            is_shared = use == MATRIX and (TABLE, other) in base.shapes
            if (use, other) in base.shapes and not is_shared:
                return _checked((use, other), base, where)
    if name == base.head:
        for use, other in base.shapes:
            if use == MATRIX and (TABLE, other) in base.shapes:
                return _checked((use, other), base, where)
    raise StartError(f"{where} changes {name!r}, which cannot be adapted in this architecture")


def _names(name: str) -> Iterator[str]:
    """What a tensor that PEFT calls `name` may be called here; see `models.layouts`."""
    yield name
    yield name.removesuffix(".weight") + LINEAR
    yield name.replace("model.language_model.", "model.", 1)
    yield name.replace("language_model.", "", 1)


def _checked(found: Place, base: Base, where: str) -> Place:
    if found[1] == base.head and base.spec.architecture in NORMALISED:
        raise StartError(f"{where} changes {found[1]!r}, whose rows this architecture scales")
    return found


def _check_shape(
    found: Place, name: str, shape: tuple[int, ...], base: Base, where: str
) -> None:  # fmt: skip
    expected = base.shapes[found]
    if tuple(shape) != tuple(expected):
        raise StartError(
            f"{where} changes {name!r} as {list(shape)}, but it is {list(expected)} here: it is an "
            "adapter of another model"
        )


def _of_full_rank(difference: Matrix) -> LowRank:
    """With the smaller of both sides as the rank."""
    out, into = difference.shape
    if into <= out:
        return LowRank(np.eye(into, dtype=np.float32), difference)
    return LowRank(difference, np.eye(out, dtype=np.float32))


def _joined(one: LowRank, other: LowRank | None) -> LowRank:
    if other is None:
        return one
    return LowRank(np.concatenate([one.down, other.down]), np.concatenate([one.up, other.up], 1))
