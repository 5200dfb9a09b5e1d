"""The comparison of a primitive with its golden, on the device of this process.

It runs the same examples for a device's filling and for the composed one, so that a check of a
device can say which operators to compose, and tests say on a CPU that composed cells are right.
Not verified on hardware.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from mindspore.common import np_dtype

from mindspore_serving.backends.source import error_text
from mindspore_serving.llm.runtimes.mindir.library import mindspore, ops
from mindspore_serving.llm.runtimes.mindspore.primitives.examples import PrimitiveExample, examples
from mindspore_serving.llm.runtimes.mindspore.primitives.goldens import Array
from mindspore_serving.llm.runtimes.mindspore.primitives.table import PRIMITIVES, make

Tensor: TypeAlias = Any  # a mindspore.Tensor
DTYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np_dtype.bfloat16,
}
# Largest difference, as a share of the golden's largest value.
TOLERANCES = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}
OPEN_SIZES = ("...", "T", "R", "B", "M", "L", "P", "NB")  # symbols of the contracts
PAGED = ("paged_attention", "mla")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A primitive's largest difference from its golden, as a share of the largest value.

    `error` is why it could not run, or "".
    """

    name: str
    difference: float
    tolerance: float
    error: str = ""

    @property
    def is_right(self) -> bool:
        """True if the primitive ran and is as near as its dtype allows."""
        return not self.error and self.difference <= self.tolerance


def compare_all(filling: str, dtype: str) -> Iterator[Comparison]:
    """Compare each example of each primitive, with floating arguments of `dtype`, a name."""
    for example in examples(DTYPES[dtype]):
        yield compare(example, filling, dtype)


def compare(example: PrimitiveExample, filling: str, dtype: str) -> Comparison:
    """Run `example` with the filling "ascend" or "composed", and compare with its golden."""
    tolerance = TOLERANCES[dtype]
    try:
        results = run(example, filling)
    except Exception as error:  # MindSpore raises any kind, and what fails is the answer
        return Comparison(example.name, float("inf"), tolerance, error_text(error))
    pairs = zip(results, expected(example), strict=True)
    difference = max(_difference(result, golden) for result, golden in pairs)
    return Comparison(example.name, difference, tolerance)


def _difference(result: Array, golden: Array) -> float:
    if result.shape != golden.shape:
        return float("inf")
    wide, reference = result.astype(np.float32), golden.astype(np.float32)
    largest = max(float(np.abs(reference).max()), 1e-6)
    difference = float(np.abs(wide - reference).max()) / largest
    if golden.dtype == np.int8:  # a value between two of them rounds to either
        difference = max(0.0, difference - 1 / largest)
    return difference if np.isfinite(difference) else float("inf")


def expected(example: PrimitiveExample) -> tuple[Array, ...]:
    """Return the golden's results; of a write to the cache, the caches."""
    arrays = {
        key: value.copy() if value is not None else None for key, value in example.arguments.items()
    }
    results = PRIMITIVES[example.name].golden(*arrays.values(), **example.options)
    if example.name == "reshape_and_cache":
        return arrays["key_cache"], arrays["value_cache"]
    return results if isinstance(results, tuple) else (results,)


def run(example: PrimitiveExample, filling: str) -> tuple[Array, ...]:
    """Return the results of a graph of the primitive alone."""
    tensors = {
        key: None if value is None else _tensor(key, value, example, filling)
        for key, value in example.arguments.items()
    }
    if example.name == "flash_attention":
        results = _run_flash(example, filling, tensors)
    elif example.name in PAGED:
        results = _run_paged(example, filling, tensors)
    else:
        graph = PlainGraph(make(example.name, filling, **example.options))
        results = graph.run(_specs(example.name, tensors), *tensors.values())
    if example.name == "reshape_and_cache":
        results = tensors["key_cache"], tensors["value_cache"]
    results = results if isinstance(results, tuple) else (results,)
    return tuple(result.asnumpy() for result in results)


def _tensor(key: str, value: Array, example: PrimitiveExample, filling: str) -> Tensor:
    is_packed = filling == "ascend" and example.options.get("bits") == 4 and key == "weight"
    if is_packed:
        return mindspore.Tensor(value, dtype=mindspore.qint4x2)
    return mindspore.Tensor(value)


def _run_flash(example: PrimitiveExample, filling: str, tensors: dict[str, Tensor]) -> Any:
    graph = FlashGraph(
        make("attention_mask", filling, **_heads(example), is_paged=False),
        make("flash_attention", filling, **example.options),
    )
    *inputs, lengths = tensors.values()
    *specs, sequences = _specs(example.name, tensors)
    rows = mindspore.Tensor(np.arange(len(inputs[0]), dtype=np.int32))
    specs = [*specs, sequences, sequences, sequences]
    return graph.run(specs, *inputs, rows, lengths, lengths)


def _run_paged(example: PrimitiveExample, filling: str, tensors: dict[str, Tensor]) -> Any:
    block_size = next(x.shape[1] for key, x in tensors.items() if key.endswith("_cache"))
    graph = PagedGraph(
        make("attention_mask", filling, **_heads(example), block_size=block_size),
        make(example.name, filling, **example.options),
    )
    if tensors["mask"] is None:
        tensors = tensors | {"mask": ops.zeros((1, 1), tensors["q"].dtype)}
    *query, tables, lengths, mask, counts = tensors.values()
    *specs, of_tables, of_lengths, of_mask, of_counts = _specs(example.name, tensors)
    rows = mindspore.Tensor(np.arange(len(query[0]), dtype=np.int32))
    specs = [of_mask, of_lengths, of_lengths, of_counts, of_tables, *specs]
    return graph.run(specs, mask, rows, lengths, counts, tables, *query)


def _specs(name: str, tensors: dict[str, Tensor]) -> list[Tensor]:
    """Return the tensors' specs, with the sizes open that differ from step to step."""
    accepted = PRIMITIVES[name].contract.arguments
    return [
        tensor if tensor is None else _spec(tensor, accepted[key].dims)
        for key, tensor in tensors.items()
    ]


def _spec(tensor: Tensor, dims: str) -> Tensor:
    names = next(
        shape.split() for shape in reversed(dims.split("|")) if len(shape.split()) == tensor.ndim
    )
    shape = [
        None if name in OPEN_SIZES else size for name, size in zip(names, tensor.shape, strict=True)
    ]
    return mindspore.Tensor(shape=shape, dtype=tensor.dtype) if None in shape else tensor


def _heads(example: PrimitiveExample) -> dict[str, int]:
    options = example.options
    return {"head_num": options["head_num"], "kv_head_num": options.get("kv_head_num", 1)}


class _Graph(mindspore.nn.Cell):  # type: ignore[misc]
    """A cell that is compiled, whatever the mode of the process."""

    def run(self, specs: list[Tensor], *arguments: Tensor) -> Any:
        """Return the results of `arguments`, of a graph compiled for `specs`."""
        self.set_inputs(*specs)
        return self.compile_and_run(*arguments)


class PlainGraph(_Graph):
    """A graph of a primitive that reads no lengths by name."""

    def __init__(self, primitive: Any) -> None:
        super().__init__()
        self.primitive = primitive

    def construct(self, *arguments: Tensor) -> Any:
        return self.primitive(*arguments)


class FlashGraph(_Graph):
    """A graph of attention among new tokens; the device finds its lengths by name."""

    def __init__(self, mask: Any, attention: Any) -> None:
        super().__init__()
        self.mask = mask
        self.attention = attention

    def construct(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor,
        slot_mapping: Tensor,
        batch_valid_length: Tensor,
        q_seq_lens: Tensor,
    ) -> Tensor:
        tables = ops.expand_dims(batch_valid_length, 1)  # not read
        mask = self.mask(attn_mask, slot_mapping, batch_valid_length, q_seq_lens, tables)
        return self.attention(q, k, v, mask, batch_valid_length)


class PagedGraph(_Graph):
    """A graph of attention to a paged cache; the device finds its lengths by name."""

    def __init__(self, mask: Any, attention: Any) -> None:
        super().__init__()
        self.mask = mask
        self.attention = attention

    def construct(
        self,
        attn_mask: Tensor,
        slot_mapping: Tensor,
        batch_valid_length: Tensor,
        q_seq_lens: Tensor,
        block_tables: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        mask = self.mask(attn_mask, slot_mapping, batch_valid_length, q_seq_lens, block_tables)
        return self.attention(*inputs, block_tables, batch_valid_length, mask, q_seq_lens)
