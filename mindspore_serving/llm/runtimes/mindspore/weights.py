"""Weights of a graph as parameters on the device, made one at a time.

Matrices that have the same input are one parameter, one below the other, so that one product
computes all of them.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.llm.checkpoint.quantized.parts import StaticInputs
from mindspore_serving.llm.checkpoint.weights import Checkpoint, from_bf16, to_bf16
from mindspore_serving.llm.runtimes.mindir.library import bfloat16, in_fractal_format, mindspore
from mindspore_serving.llm.runtimes.mindspore.integers import (
    IntegerForm,
    Integers,
    input_tensors,
    joined,
    read_integers,
    tensors_of,
)

F32: TypeAlias = npt.NDArray[np.float32]
Values: TypeAlias = npt.NDArray[Any]  # float32, float16, or uint16: bits of bfloat16

PIECE = 1 << 20  # numbers that are float32 at once


class GraphWeights:
    """Parameters by attribute of the cell; `load` makes those that graphs have named.

    `dtype` is the source of their dtype, "mindspore.float32" on a CPU.  With `keeps_integers`
    quantised matrices remain integers, and with `bits` those of floats are rounded to them.  With
    `is_fractal` matrices of floats that products read have the device's format of tiles.
    """

    def __init__(
        self, checkpoint: Checkpoint, dtype: str = "mindspore.float32", *,
        keeps_integers: bool = False, bits: int = 0, is_fractal: bool = False,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.keeps_integers = keeps_integers
        self._bits = bits
        self._is_fractal = is_fractal
        self._tables: set[str] = set()
        self._factors: set[str] = set()
        self._forms: dict[str, IntegerForm | None] = {}
        self.parameters: dict[str, Any] = {}
        self._checkpoint = checkpoint
        self._attributes: dict[str, str] = {}
        self._waiting: list[tuple[list[str], Callable[[], list[Any]]]] = []
        self._count = 0

    @property
    def element_type(self) -> Any:
        return getattr(mindspore, self.dtype.removeprefix("mindspore."))

    def has(self, name: str) -> bool:
        return self._checkpoint.has(name)

    def check(self, name: str) -> None:
        """Raise StartError if the tensor is missing."""
        self._checkpoint.raw(name)

    def rows(self, name: str) -> int:
        """Return the output features of a matrix."""
        return self._checkpoint.shape(name)[0]

    def size(self, name: str) -> int:
        """Return the number of elements of a tensor."""
        return prod(self._checkpoint.shape(name))

    def matrix(
        self, names: tuple[str, ...], *, is_table: bool = False
    ) -> tuple[str, tuple[int, int]]:
        """Return the attribute and the shape of matrices, [out, in] each, below each other.

        Of a table, rows are read.
        """
        shapes = [self._checkpoint.shape(name) for name in names]
        height, width = sum(shape[0] for shape in shapes), shapes[0][1]
        attribute = self._made(" ".join(names), lambda: self._stacked(names))
        (self._tables if is_table else self._factors).add(attribute)
        return attribute, (height, width)

    def integer_form(self, name: str) -> IntegerForm | None:
        """Return the form of a matrix that is to be integers, None for floats."""
        if not self.keeps_integers:
            return None
        if name not in self._forms:
            # A table of embeddings may also be the matrix of the head.
            integers = None if name in self._attributes else self._integers(name)
            self._forms[name] = None if integers is None else integers.form
        return self._forms[name]

    def integer_parts(self, names: tuple[str, ...], *, stored_as_nibbles: bool) -> dict[str, str]:
        """Return the attributes of the tensors of matrices of one form, below each other."""
        form = self.integer_form(names[0])
        parts = () if form is None else form.parts

        def tensors() -> list[Any]:
            integers = joined([each for each in map(self._integers, names) if each is not None])
            dtype = self.dtype.removeprefix("mindspore.")
            made = tensors_of(integers, dtype, stored_as_nibbles=stored_as_nibbles)
            return [made[part] for part in parts]

        keys = [f"{' '.join(names)} {part}" for part in parts]
        return dict(zip(parts, self._parameters(keys, tensors), strict=True))

    def input_parts(self, name: str) -> dict[str, str]:
        """Return the attributes of the tensors by which the inputs of a matrix are changed."""
        form = self.integer_form(name)
        if form is None or not form.input_parts:
            return {}

        def tensors() -> list[Any]:
            rounding = self._checkpoint.input_rounding(name)
            static = rounding if isinstance(rounding, StaticInputs) else None
            made = input_tensors(form, static, self.dtype.removeprefix("mindspore."))
            return [made[part] for part in form.input_parts]

        # Once for all matrices of the form.
        keys = [f"{part} {form}" for part in form.input_parts]
        return dict(zip(form.input_parts, self._parameters(keys, tensors), strict=True))

    def _integers(self, name: str) -> Integers | None:
        return read_integers(self._checkpoint, name, self._bits)

    def load(self) -> None:
        """Make the parameters of the recorded graphs, one matrix at a time."""
        while self._waiting:
            attributes, make_tensors = self._waiting.pop(0)
            for attribute, tensor in zip(attributes, make_tensors(), strict=True):
                if self._has_tiles(attribute, tensor.shape):
                    tensor = in_fractal_format(tensor)
                self.parameters[attribute] = _parameter(attribute, tensor)
            self._checkpoint.release()

    def _has_tiles(self, attribute: str, shape: tuple[int, ...]) -> bool:
        """Return whether only products read a parameter, in a format of tiles."""
        is_factor = attribute in self._factors and attribute not in self._tables
        return self._is_fractal and is_factor and not any(size % 16 for size in shape)

    def drop(self, name: str) -> None:
        """Forget a matrix alone that no line of a graph names, unless it is loaded."""
        form = self.integer_form(name)
        key = name if form is None else f"{name} weight"
        attribute = self._attributes.get(key)
        waiting = [each for each in self._waiting if attribute in each[0]]
        for each in waiting:
            self._waiting.remove(each)
            gone = [key for key, made in self._attributes.items() if made in each[0]]
            for key in gone:
                del self._attributes[key]

    def biases(self, weights: Sequence[str], biases: Sequence[str | None]) -> str:
        """Return the attribute of the biases of `matrix(weights)`; zeros where there is none."""

        def stacked() -> F32:
            pieces = zip(weights, biases, strict=True)
            return np.concatenate([
                self._checkpoint.f32(bias).reshape(-1) if bias
                else np.zeros(self.rows(weight), np.float32)
                for weight, bias in pieces
            ])  # fmt: skip

        return self._made(f"biases {' '.join(map(str, biases))}", stacked)

    def vector(self, name: str, *, plus_one: bool = False) -> str:
        """Return the attribute of a tensor, with 1 added if `plus_one`."""
        added = np.float32(1 if plus_one else 0)
        return self._made(f"{name} {plus_one}", lambda: self._checkpoint.f32(name) + added)

    def experts(self, names: Sequence[tuple[str, ...]]) -> str:
        """Return the attribute of the experts' matrices, [experts, in, out].

        The matrices of an expert are beside each other.
        """

        def stacked() -> Values:
            return np.stack([self._stacked(each).T for each in names])

        return self._made(f"experts {names[0]}", stacked)

    def expert_biases(self, names: Sequence[tuple[str, ...]]) -> str:
        """Return the attribute of the experts' biases, [experts, out]."""

        def stacked() -> F32:
            return np.stack([
                np.concatenate([self._checkpoint.f32(name).reshape(-1) for name in each])
                for each in names
            ])  # fmt: skip

        return self._made(f"biases of experts {names[0]}", stacked)

    def head_rows(self, name: str, heads: int, sizes: Sequence[int], piece: int) -> str:
        """Return the attribute of a matrix's rows of one piece of each head, [heads, rows, in].

        `sizes` are the rows of the pieces.
        """

        def rows() -> Values:
            matrix, begin = self._read(name), sum(sizes[:piece])
            parts = matrix.reshape(heads, sum(sizes), matrix.shape[1])
            return parts[:, begin : begin + sizes[piece]]

        return self._made(f"{name} piece {piece}", rows)

    def constant(self, key: str, make_array: Callable[[], F32], *, exact: bool = False) -> str:
        """Return the attribute of an array that is in no checkpoint; float32 if it is `exact`."""
        return self._made(key, make_array, exact=exact)

    def clear(self) -> None:
        self.parameters.clear()

    def _stacked(self, names: Sequence[str]) -> Values:
        matrices = [self._read(name) for name in names]
        return matrices[0] if len(matrices) == 1 else np.concatenate(matrices)

    def _read(self, name: str) -> Values:
        """Return a tensor in the dtype of weights, as bits if that is bfloat16."""
        if self.element_type == mindspore.float32:
            return self._checkpoint.f32(name)
        dtype, _, bits = self._checkpoint.raw(name)
        if self.element_type == mindspore.bfloat16:
            return bits if dtype == "BF16" else to_bf16(self._checkpoint.f32(name))
        if dtype == "F16":
            return bits.view(np.float16)
        if dtype != "BF16":
            return self._checkpoint.f32(name).astype(np.float16)
        halves = np.empty(bits.shape, np.float16)
        flat, source = halves.reshape(-1), bits.reshape(-1)
        for begin in range(0, source.size, PIECE):
            flat[begin : begin + PIECE] = from_bf16(source[begin : begin + PIECE])
        return halves

    def _made(self, key: str, make_array: Callable[[], Values], *, exact: bool = False) -> str:
        def tensors() -> list[Any]:
            return [self._tensor(make_array(), exact=exact)]

        return self._parameters([key], tensors)[0]

    def _parameters(self, keys: Sequence[str], make_tensors: Callable[[], list[Any]]) -> list[str]:
        """Return the attributes of parameters that `load` makes, or has made before."""
        if keys[0] not in self._attributes:
            for key in keys:
                self._attributes[key] = f"w{self._count}"
                self._count += 1
            self._waiting.append(([self._attributes[key] for key in keys], make_tensors))
        return [self._attributes[key] for key in keys]

    def _tensor(self, array: Values, *, exact: bool) -> Any:
        """Return a tensor of memory of its own, that of `array` if it is no view of a file."""
        array = np.require(array, requirements=("C", "W"))  # files are mapped read-only
        is_bits = array.dtype == np.uint16
        value = mindspore.Tensor.from_numpy(array.view(bfloat16) if is_bits else array)
        return value if exact else value.astype(self.element_type)


def _parameter(name: str, tensor: Any) -> Any:
    """Return a parameter that shares the memory of `tensor`; its constructor would copy it."""
    shape = (1,) * tensor.ndim
    empty = mindspore.Tensor(np.zeros(shape, np.int8), dtype=tensor.dtype)
    parameter = mindspore.Parameter(empty, name=name, requires_grad=False)
    return parameter.set_data(tensor, slice_shape=True)
