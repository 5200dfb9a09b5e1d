"""Values that are changed in place, and the visibility of the changes.

In a program that writes, the result of each operator is kept in a new `Variable`, which later
readers share; a view shows a part of it.  MindSpore orders writes and the reads between them by
monads: a read or write whose order the file leaves open is refused.  No operators are known here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import openvino as ov

from mindspore_serving.mindir.tensors import (
    Operator,
    UnsupportedTensor,
    apply,
    cast,
    tensor,
    with_part,
)
from mindspore_serving.mindir.values import (
    BranchChoice,
    GraphFunction,
    Lost,
    Monad,
    Value,
    Variable,
    View,
    mapped,
    moment,
    read,
)

_OPEN = "the file does not say in which order"


def stored(value: Value) -> Value:
    """Return `value` with each output replaced by a variable."""
    return mapped(lambda leaf: Variable("", leaf) if isinstance(leaf, ov.Output) else leaf, value)


def holder(value: Value) -> Variable | None:
    """Return the variable that `value` is, or is a view of."""
    return value.base if isinstance(value, View) else value if isinstance(value, Variable) else None


def holders(value: Value) -> list[Variable]:
    """Return all variables in `value`, without duplicates."""
    variables = filter(None, map(holder, flat(value)))
    return list(dict.fromkeys(variables))


def order_of(inputs: Sequence[Value]) -> int | None:
    """Return the moment up to which a call with `inputs` sees effects; None if it has no order."""
    moments = [value.moment for value in inputs if isinstance(value, Monad)]
    return max(moments, default=None)


def seen(value: Value, order: int | None) -> Value:
    """Return `value` with the contents of its variables, for a reader at moment `order`.

    Raises Unsupported if a variable changed, and the file does not say whether before the read.
    """

    def look(leaf: Value) -> Value:
        variable = holder(leaf)
        if variable is None:
            return leaf
        since = leaf.since if isinstance(leaf, View) else 0
        if variable.changed > max(order or 0, since):
            raise UnsupportedTensor(f"it reads a value that is changed in place, and {_OPEN}")
        if order is None:
            variable.is_seen_apart = True
        else:
            variable.seen = moment()
        return read(leaf)

    return mapped(look, value)


def claim(target: Value, order: int | None) -> None:
    """Check that `target` may be written at `order`.

    Raises Unsupported if it is no variable, or if the order of the write and a read is not known.
    """
    variable = holder(target)
    if variable is None:
        raise UnsupportedTensor("it changes a constant in place, which MindSpore leaves undefined")
    if order is None or variable.is_seen_apart or max(variable.changed, variable.seen) > order:
        raise UnsupportedTensor(
            f"it changes a value in place that another operator reads, and {_OPEN}"
        )


def write(target: Value, content: Any) -> Value:
    """Write `content` into `target`, visible to all that share its storage.

    Returns `target` as a view that depends on the write.
    """
    variable = holder(target)
    assert variable is not None
    content = _fitting(content, tensor(target))
    target = bare(target)
    if isinstance(target, View):
        content = _with_part(target, content)
    variable.current = content
    variable.changed = moment()
    for other in variable.shared:
        other.current = Lost("whether it was changed in place depends on a branch or a loop")
        other.changed = variable.changed
    known = target if isinstance(target, View) else View(variable, _whole, True)
    return replace(known, since=variable.changed)


def bare(value: Value) -> Value:
    """Return the variable of a view of all of it, any other value unchanged."""
    return value.base if isinstance(value, View) and value.part is _whole else value


def _whole(content: Any) -> Any:
    return content


def view(
    operator: Operator, inputs: Sequence[Value], attributes: Mapping[str, Value], repeats: bool
) -> Value:
    """Return the results of `operator` as views of the variable behind its first input.

    `operator` may only move elements; `repeats` if it returns some of them more than once.
    """
    base = inputs[0]
    variable = holder(base)
    rest = [seen(value, order_of(inputs)) for value in inputs[1:]]
    if variable is None:
        return stored(apply(operator, [base, *rest], attributes))
    before = base if isinstance(base, View) else View(variable, _whole, True)
    is_movable = before.is_movable and not any(
        isinstance(leaf, ov.Output) for leaf in flat(tuple(rest))
    )

    def parts(whole: Any) -> Value:
        return apply(operator, [before.part(whole), *rest], attributes)

    def view_of(part: Callable[[Any], Any]) -> View:
        return View(variable, part, is_movable, before.repeats or repeats)

    now = parts(tensor(variable))
    if not isinstance(now, tuple):
        return view_of(parts)
    return tuple(view_of(partial(_nth, parts, number)) for number in range(len(now)))


def _nth(parts: Callable[[Any], Value], number: int, whole: Any) -> Any:
    return parts(whole)[number]


def flat(value: Value) -> Iterator[Value]:
    """Iterate over the leaves of `value`, also those of the arguments of functions."""
    if isinstance(value, tuple):
        for part in value:
            yield from flat(part)
    elif isinstance(value, GraphFunction):
        yield from flat(value.bound)
    elif isinstance(value, BranchChoice):
        yield from flat((value.condition, value.then, value.otherwise))
    else:
        yield value


def _fitting(content: Any, before: Any) -> Any:
    """Cast `content` to the type of `before`, whose shape it must have."""
    kind, new = before.get_element_type(), content.get_element_type()
    if new.is_real() and not kind.is_real():
        raise UnsupportedTensor(f"it writes {new.to_string()} into {kind.to_string()}")
    shape, target = content.get_partial_shape(), before.get_partial_shape()
    if not target.compatible(shape):
        raise UnsupportedTensor(f"it writes shape {shape.to_string()} into {target.to_string()}")
    return cast(content, kind)


def _with_part(view: View, content: Any) -> Any:
    """Return the whole of which `view` is a part, with `content` at the positions of the view."""
    if view.repeats:
        raise UnsupportedTensor("it changes a view in which elements are repeated")
    return with_part(tensor(view.base), view.part, content)
