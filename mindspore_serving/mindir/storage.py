"""Values that are changed in place, and who sees it.

In a program that writes, what every operator gives is kept in a `Variable` of its own, which later
readers share; a view shows a part of it.  MindSpore orders writes and the reads between them by
monads: a read or write whose order the file leaves open is refused.  Knows no operators.
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
    """`value` with a variable in place of each output."""
    return mapped(lambda leaf: Variable("", leaf) if isinstance(leaf, ov.Output) else leaf, value)


def holder(value: Value) -> Variable | None:
    """The variable that `value` is, or is a view of."""
    return value.base if isinstance(value, View) else value if isinstance(value, Variable) else None


def holders(value: Value) -> list[Variable]:
    """All variables in `value`, each once."""
    return list(dict.fromkeys(one for one in map(holder, flat(value)) if one is not None))


def order_of(inputs: Sequence[Value]) -> int | None:
    """The moment up to which effects are seen by a call with `inputs`; None if it has no order."""
    moments = [value.moment for value in inputs if isinstance(value, Monad)]
    return max(moments, default=None)


def seen(value: Value, order: int | None) -> Value:
    """`value` with what its variables hold, for a reader that is at `order`.

    Raises Unsupported: a variable has changed, and the file does not say whether before.
    """

    def look(leaf: Value) -> Value:
        variable = holder(leaf)
        if variable is None:
            return leaf
        since = leaf.since if isinstance(leaf, View) else 0
        if variable.changed > max(order or 0, since):
            raise UnsupportedTensor(f"it reads what is changed in place, and {_OPEN}")
        if order is None:
            variable.is_seen_apart = True
        else:
            variable.seen = moment()
        return read(leaf)

    return mapped(look, value)


def claim(target: Value, order: int | None) -> None:
    """Check that `target` may be written at `order`.

    Raises Unsupported: it is no variable, or someone reads it, before or after is not said.
    """
    variable = holder(target)
    if variable is None:
        raise UnsupportedTensor("it changes a constant in place, which MindSpore leaves undefined")
    if order is None or variable.is_seen_apart or max(variable.changed, variable.seen) > order:
        raise UnsupportedTensor(f"it changes in place what others read, and {_OPEN}")


def write(target: Value, content: Any) -> Value:
    """Let `target` hold `content` from now on, and all that share it show that.  Gives `target`
    as one who depends on that knows it.
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
        other.current = Lost("it depends on a branch or a loop whether it was changed in place")
        other.changed = variable.changed
    known = target if isinstance(target, View) else View(variable, _whole, True)
    return replace(known, since=variable.changed)


def bare(value: Value) -> Value:
    """The variable in place of a view of all of it."""
    return value.base if isinstance(value, View) and value.part is _whole else value


def _whole(content: Any) -> Any:
    return content


def view(
    operator: Operator, inputs: Sequence[Value], attributes: Mapping[str, Value], repeats: bool
) -> Value:
    """What `operator` makes of its first input: views of it, or of what that is a view of.

    `operator` may only move elements; `repeats` says whether it gives some more than once.
    """
    base = inputs[0]
    variable = holder(base)
    rest = [seen(one, order_of(inputs)) for one in inputs[1:]]
    if variable is None:
        return stored(apply(operator, [base, *rest], attributes))
    before = base if isinstance(base, View) else View(variable, _whole, True)
    is_movable = before.is_movable and not any(
        isinstance(leaf, ov.Output) for leaf in flat(tuple(rest))
    )

    def parts(whole: Any) -> Value:
        return apply(operator, [before.part(whole), *rest], attributes)

    def one(part: Callable[[Any], Any]) -> View:
        return View(variable, part, is_movable, before.repeats or repeats)

    now = parts(tensor(variable))
    if not isinstance(now, tuple):
        return one(parts)
    return tuple(one(partial(_nth, parts, number)) for number in range(len(now)))


def _nth(parts: Callable[[Any], Value], number: int, whole: Any) -> Any:
    return parts(whole)[number]


def flat(value: Value) -> Iterator[Value]:
    """The leaves of `value`, those of the arguments of functions too."""
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
    """`content` in the type of `before`, whose shape it must have."""
    kind, new = before.get_element_type(), content.get_element_type()
    if new.is_real() and not kind.is_real():
        raise UnsupportedTensor(f"it writes {new.to_string()} into {kind.to_string()}")
    shape, target = content.get_partial_shape(), before.get_partial_shape()
    if not target.compatible(shape):
        raise UnsupportedTensor(f"it writes shape {shape.to_string()} into {target.to_string()}")
    return cast(content, kind)


def _with_part(view: View, content: Any) -> Any:
    """All of what `view` is a part of, with `content` at the places that it shows."""
    if view.repeats:
        raise UnsupportedTensor("it changes a view in which elements are repeated")
    return with_part(tensor(view.base), view.part, content)
