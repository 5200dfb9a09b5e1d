"""A model's operations as a list of calls: its definition is run once with placeholder tensors.

The list tells which operations read another's result, and which weights.  Nothing is computed;
knows no runtime.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.ops import DecoderInputs, Ops
from mindspore_serving.llm.models.spec import ModelSpec

LINEAR = "linear"


@dataclass(eq=False, slots=True)
class TracedCall:
    """An operation: its name, the tensors and weights that it reads, and the users of its result.

    `arguments` and `named` are its arguments; `rows` (begin, end) the features of a piece of a
    split.
    """

    operation: str
    inputs: tuple["TracedCall", ...] = ()
    weights: tuple[str, ...] = ()
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    rows: tuple[int, int] | None = None
    users: list["TracedCall"] = field(default_factory=list)


class TracingOps:
    """An `Ops` that records calls, also those of operations that it does not know."""

    def __init__(self, has_weight: Callable[[str], bool]) -> None:
        self.calls: list[TracedCall] = []
        self.names: set[str] = set()  # weights, and other strings among the arguments
        self._has_weight = has_weight

    def weight(self, name: str) -> "Name":
        self.names.add(name)
        return Name(name)

    def has_weight(self, name: str) -> bool:
        return self._has_weight(name)

    def held_experts(self, layer: int) -> None:
        return None

    def all_reduce(self, x: TracedCall) -> TracedCall:
        return x

    def hidden(self, x: TracedCall) -> TracedCall:
        self._note("hidden", (x,), {})
        return x

    def dense(self, x: TracedCall, block: Callable[[TracedCall], TracedCall]) -> TracedCall:
        return block(x)

    def linears(
        self, x: TracedCall, weights: Sequence["Name"], biases: Sequence["Name | None"]
    ) -> list[TracedCall]:
        return [self.linear(x, *each) for each in zip(weights, biases, strict=True)]

    def split(self, x: TracedCall, sizes: Sequence[int]) -> list[TracedCall]:
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        pieces = [self._note("split", (x,), {}) for _ in sizes]
        for piece, size, end in zip(pieces, sizes, ends, strict=True):
            piece.rows = (end - size, end)
        return pieces

    def split_heads(self, x: TracedCall, num_heads: int, sizes: Sequence[int]) -> list[TracedCall]:
        return [self._note("split_heads", (x,), {}) for _ in sizes]

    latent_attention = Ops.latent_attention  # the operations that it is composed of

    def __getattr__(self, operation: str) -> Callable[..., TracedCall]:
        return lambda *arguments, **named: self._note(operation, arguments, named)

    def _note(
        self, operation: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> TracedCall:
        values = list(_flat((*arguments, *named.values())))
        self.names.update(value for value in values if isinstance(value, str))
        inputs = tuple(value for value in values if isinstance(value, TracedCall))
        weights = tuple(str(value) for value in values if isinstance(value, Name))
        call = TracedCall(operation, inputs, weights, arguments, named)
        for value in inputs:
            value.users.append(call)
        self.calls.append(call)
        return call


class Name(str):
    """Name of a weight."""

    __slots__ = ()


def trace(spec: ModelSpec, decoder: Decoder, has_weight: Callable[[str], bool]) -> list[TracedCall]:
    """Return the calls of one pass, in order."""
    return _traced(spec, decoder, has_weight).calls


def read_names(
    spec: ModelSpec, decoder: Decoder, has_weight: Callable[[str], bool]
) -> frozenset[str]:
    """Return the names of the tensors that a pass reads, among other strings."""
    return frozenset(_traced(spec, decoder, has_weight).names)


def _traced(spec: ModelSpec, decoder: Decoder, has_weight: Callable[[str], bool]) -> TracingOps:
    ops: Any = TracingOps(has_weight)
    uses_long_rope = TracedCall("input") if spec.rope.switch else None
    inputs = DecoderInputs(
        TracedCall("input"), TracedCall("input"), TracedCall("input"), uses_long_rope=uses_long_rope
    )
    decoder(ops, spec, inputs)
    traced: TracingOps = ops
    return traced


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Iterate over `values`, and over what tuples, lists and dataclasses among them contain."""
    for value in values:
        fields = getattr(value, "__dataclass_fields__", None)
        if isinstance(value, tuple | list):
            yield from _flat(value)
        elif fields and not isinstance(value, TracedCall):
            yield from _flat(getattr(value, name) for name in fields)
        else:
            yield value
