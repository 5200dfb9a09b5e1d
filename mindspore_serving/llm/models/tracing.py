"""What a model computes as a list of calls: its definition is run once with names for tensors.

Which operations read what another gives, and with which weights.  Nothing is computed; knows no
runtime.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.llm.models import Decoder
from mindspore_serving.llm.models.ops import DecoderInputs
from mindspore_serving.llm.models.spec import ModelSpec

LINEAR = "linear"


@dataclass(eq=False, slots=True)
class TracedCall:
    """The result of an operation: its name, the tensors and the weights that it had, and which
    calls read it.  `others` are all arguments as they were given; `rows` (begin, end) of a piece
    of a split.
    """

    operation: str
    inputs: tuple["TracedCall", ...] = ()
    weights: tuple[str, ...] = ()
    others: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    rows: tuple[int, int] | None = None
    users: list["TracedCall"] = field(default_factory=list)


class TracingOps:
    """An `Ops` that notes calls; those of operations that it does not know as well."""

    def __init__(self, has_weight: Callable[[str], bool]) -> None:
        self.calls: list[TracedCall] = []
        self.names: set[str] = set()  # of weights, and other texts in arguments
        self._has_weight = has_weight

    def weight(self, name: str) -> "Name":
        self.names.add(name)
        return Name(name)

    def has_weight(self, name: str) -> bool:
        return self._has_weight(name)

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

    def __getattr__(self, operation: str) -> Callable[..., TracedCall]:
        return lambda *given, **named: self._note(operation, given, named)

    def _note(self, operation: str, given: tuple[Any, ...], named: dict[str, Any]) -> TracedCall:
        found = list(_flat((*given, *named.values())))
        self.names.update(each for each in found if isinstance(each, str))
        inputs = tuple(each for each in found if isinstance(each, TracedCall))
        weights = tuple(str(each) for each in found if isinstance(each, Name))
        call = TracedCall(operation, inputs, weights, given, named)
        for each in inputs:
            each.users.append(call)
        self.calls.append(call)
        return call


class Name(str):
    """The name of a weight."""

    __slots__ = ()


def trace(spec: ModelSpec, decoder: Decoder, has_weight: Callable[[str], bool]) -> list[TracedCall]:
    """The calls of one pass, in order."""
    return _traced(spec, decoder, has_weight).calls


def read_names(
    spec: ModelSpec, decoder: Decoder, has_weight: Callable[[str], bool]
) -> frozenset[str]:
    """What a pass reads: the names of its tensors, among other texts."""
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


def _flat(given: Iterable[Any]) -> Iterator[Any]:
    """With what is in tuples, lists and descriptions (an expert's weights)."""
    for each in given:
        fields = getattr(each, "__dataclass_fields__", None)
        if isinstance(each, tuple | list):
            yield from _flat(each)
        elif fields and not isinstance(each, TracedCall):
            yield from _flat(getattr(each, name) for name in fields)
        else:
            yield each
