"""Values as OpenVINO outputs, shapes and numbers: the arguments of operators.

An operator is a function.  The annotation of a parameter says how its argument is read: `Tensor`,
`Shape`, `Ints`, `Int`, `Float`, `Bool`, `Text`, or `Value` for the value as it is.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeAlias

import numpy as np
import openvino as ov
from openvino import opset16 as op
from openvino.op import Constant as Node

from mindspore_serving.errors import StartError
from mindspore_serving.mindir.values import (
    Constant,
    Lost,
    Monad,
    Value,
    is_number,
    leaves,
    read,
)

END = (1 << 63) - 1
"""End of a slice that includes everything."""
_ALIGNED = 64  # bytes
_LARGE = 1 << 16
_BITS = {ov.Type.i8: 8, ov.Type.u8: 8, ov.Type.i16: 16, ov.Type.u16: 16}
_SIGNED = (ov.Type.i8, ov.Type.i16)
_MAX_WORDS = 400  # characters of an error of OpenVINO


class UnsupportedTensor(Exception):
    """Arguments of an operator that are not supported; the text says which."""


def tensor(value: Value) -> Any:
    """Return `value` as an output.

    Numbers become int64, float32 or boolean; tuples become 1-D tensors.
    """
    value = read(value)
    if isinstance(value, ov.Output):
        return value
    if isinstance(value, Constant):
        return _constant(value)
    if isinstance(value, bool):
        return scalar(value, ov.Type.boolean)
    if is_number(value):
        return scalar(value, ov.Type.f32 if isinstance(value, float) else ov.Type.i64)
    if isinstance(value, tuple) and value:
        return _stacked(value)
    raise UnsupportedTensor(
        value.why if isinstance(value, Lost) else f"{_shown(value)} in place of a tensor"
    )


def scalar(value: float, kind: Any) -> Any:
    """Return a tensor of rank 0 of OpenVINO type `kind`."""
    return Node(kind, ov.Shape([]), [value]).output(0)


def ints_of(values: Sequence[int]) -> Any:
    """Return a constant 1-D int64 tensor."""
    return Node(ov.Type.i64, ov.Shape([len(values)]), list(values)).output(0)


def known(value: Value) -> np.ndarray[Any, Any] | None:
    """Return the content of a constant tensor or number, None if it depends on the data."""
    value = read(value)
    if isinstance(value, Constant):
        return None if value.is_bfloat16 else value.array
    if isinstance(value, ov.Output):
        node = value.get_node()
        return node.get_data() if node.get_type_name() == "Constant" else None
    return np.array(value) if is_number(value) else None


def _to_shape(value: Value) -> Any:
    """Return sizes or axes as a 1-D int64 tensor; they may depend on the data."""
    if is_number(value):
        return ints_of([int(value)])
    value = read(value)
    if isinstance(value, tuple):
        if all(isinstance(part, int) for part in value):
            return ints_of(value)
        return _stacked(value)
    return op.reshape(cast(tensor(value), ov.Type.i64), ints_of([-1]), False).output(0)


def _to_ints(value: Value) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in leaves(read(value)):
        array = known(part)
        if array is None:
            raise UnsupportedTensor(
                f"{_shown(part)} in place of integers that are known at the start"
            )
        numbers.extend(int(number) for number in array.ravel())
    return tuple(numbers)


def _to_int(value: Value) -> int:
    numbers = _to_ints(value)
    if len(numbers) != 1:
        raise UnsupportedTensor(f"{len(numbers)} integers in place of one")
    return numbers[0]


def _to_float(value: Value) -> float:
    array = known(value)
    if array is None or array.size != 1:
        raise UnsupportedTensor(f"{_shown(value)} in place of a number that is known at the start")
    return float(array.ravel()[0])


def _to_text(value: Value) -> str:
    if not isinstance(value, str):
        raise UnsupportedTensor(f"{_shown(value)} in place of a text")
    return value


Tensor: TypeAlias = Annotated[Any, tensor]
Shape: TypeAlias = Annotated[Any, _to_shape]
Ints: TypeAlias = Annotated[tuple[int, ...], _to_ints]
Int: TypeAlias = Annotated[int, _to_int]
Float: TypeAlias = Annotated[float, _to_float]
Bool: TypeAlias = Annotated[bool, lambda value: bool(_to_int(value))]
Text: TypeAlias = Annotated[str, _to_text]

Operator: TypeAlias = Callable[..., Value]


def apply(operator: Operator, inputs: Sequence[Value], attributes: Mapping[str, Value]) -> Value:
    """Call `operator`: inputs by position, then attributes by name where it has such a parameter.

    Nodes that it returns become their outputs.
    """
    inputs = list(inputs)
    while inputs and isinstance(inputs[-1], Monad):
        inputs.pop()
    parameters, rest, ahead = _parameters(operator)
    if len(inputs) > len(parameters) and rest is None:
        raise UnsupportedTensor(f"{len(inputs)} inputs, at most {len(parameters)} are known")
    arguments = {
        name: _converted(convert, value)
        for (name, convert), value in zip(parameters.items(), inputs[:ahead], strict=False)
    }
    more = [_converted(rest, value) for value in inputs[ahead:]] if rest else []
    for name, convert in parameters.items():
        if name not in arguments and name in attributes:
            arguments[name] = _converted(convert, attributes[name])
    if more:
        first = [arguments.pop(name) for name in list(parameters)[:ahead]]
        return _outputs(operator(*first, *more, **arguments))
    try:
        inspect.signature(operator).bind(**arguments)
    except TypeError as error:
        raise UnsupportedTensor(str(error)) from error
    return _outputs(operator(**arguments))


def cast(value: Any, kind: Any) -> Any:
    """Cast `value` to OpenVINO type `kind`; integers that are too large are wrapped."""
    source = value.get_element_type()
    if source == kind:
        return value
    if kind in _BITS and not _holds(kind, source):
        value = _wrapped(op.convert(value, ov.Type.i32), kind)
    return op.convert(value, kind).output(0)


def _holds(kind: Any, source: Any) -> bool:
    """Return whether the small type `kind` has all values of `source`."""
    if source not in _BITS:
        return bool(source == ov.Type.boolean)
    is_signed, was_signed = kind in _SIGNED, source in _SIGNED
    return _BITS[source] < _BITS[kind] and (is_signed or not was_signed)


def _wrapped(value: Any, kind: Any) -> Any:
    """Wrap integers bit by bit: OpenVINO may drop a conversion that another one follows."""
    mask = (1 << _BITS[kind]) - 1
    low = op.bitwise_and(value, scalar(mask, ov.Type.i32))
    if kind not in _SIGNED:
        return low
    half = scalar(mask // 2 + 1, ov.Type.i32)
    return op.subtract(op.bitwise_xor(low, half), half)


def absolute(value: Any) -> Any:
    """Compute |value| without OpenVINO's Abs, which 2026.4 drops for values folded at the start."""
    is_unsigned = value.get_element_type().to_string().startswith("u")
    return value if is_unsigned else op.maximum(value, op.negative(value)).output(0)


def unsqueeze(value: Any, *axes: int) -> Any:
    """Insert `axes` of size 1."""
    return op.unsqueeze(value, ints_of(axes)).output(0)


def squeeze(value: Any, *axes: int) -> Any:
    """Remove `axes`, which are of size 1."""
    return op.squeeze(value, ints_of(axes)).output(0)


def slice_of(value: Any, axis: int, begin: int, end: int = END, step: int = 1) -> Any:
    """Take elements `begin` up to `end` of `axis`."""
    return op.slice(value, *(ints_of([number]) for number in (begin, end, step, axis))).output(0)


def counting(count: Any, kind: str = "i64") -> Any:
    """Count 0, 1, ... below `count`, a tensor of a single element."""
    return op.range(op.constant(0), reshape(count, ()), op.constant(1), kind).output(0)


def rank(value: Any) -> int:
    """Return the number of dimensions.  Raises Unsupported if it is open."""
    length = value.get_partial_shape().rank
    if length.is_dynamic:
        raise UnsupportedTensor("a tensor whose number of dimensions is open")
    return int(length.get_length())


def dims(value: Any) -> tuple[int, ...]:
    """Return the sizes, -1 for an open one."""
    rank(value)
    return tuple(-1 if d.is_dynamic else d.get_length() for d in value.get_partial_shape())


def known_dims(value: Any) -> tuple[int, ...]:
    """Return the sizes.  Raises Unsupported if a size is open."""
    if -1 in dims(value):
        raise UnsupportedTensor("an axis of open size")
    return dims(value)


def size_of(value: Any, axis: int) -> Any:
    """Return the size of an axis, open or not, as a 1-D tensor of one int64."""
    size = dims(value)[axis]
    if size >= 0:
        return ints_of([size])
    sizes = op.shape_of(value, ov.Type.i64)
    return op.gather(sizes, ints_of([axis % rank(value)]), ints_of([0])).output(0)


def sizes_of(value: Any) -> Any:
    """Return all sizes as a 1-D int64 tensor."""
    return op.shape_of(value, ov.Type.i64).output(0)


def reshape(value: Any, shape: Any) -> Any:
    """Reshape `value` to `shape`, a 1-D tensor or known sizes; 0 has no special meaning."""
    target = shape if isinstance(shape, ov.Output) else ints_of(shape)
    return op.reshape(value, target, False).output(0)


def with_part(whole: Any, part: Callable[[Any], Any], content: Any) -> Any:
    """Replace what `part` selects of `whole` with `content`; `part` only moves elements."""
    sizes = sizes_of(whole)
    count = op.reduce_prod(sizes, ints_of([0]), False).output(0)
    positions = part(reshape(counting(count), sizes))
    flat = [reshape(tensor, (-1,)) for tensor in (whole, positions, content)]
    return reshape(op.scatter_elements_update(*flat, op.constant(0)).output(0), sizes)


def like(number: float, value: Any) -> Any:
    """Return a number as a constant of the type of `value`."""
    return scalar(number, value.get_element_type())


@cache
def _parameters(
    operator: Operator,
) -> tuple[dict[str, Callable[[Value], Any] | None], Callable[[Value], Any] | None, int | None]:
    """Return the parameters, the converter of `*inputs`, and the number of parameters before it."""
    parameters: dict[str, Callable[[Value], Any] | None] = {}
    rest, ahead = None, None
    for name, parameter in inspect.signature(operator).parameters.items():
        convert = _converter(parameter.annotation)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            rest, ahead = convert or _unchanged, len(parameters)
        else:
            parameters[name] = convert
    return parameters, rest, ahead


def _converter(annotation: Any) -> Callable[[Value], Any] | None:
    """Return the converter of `Tensor` or `Tensor | None`; None for a value without one."""
    for part in (annotation, *getattr(annotation, "__args__", ())):
        metadata = getattr(part, "__metadata__", None)
        if metadata:
            convert: Callable[[Value], Any] = metadata[0]
            return convert
    return None


def _unchanged(value: Value) -> Value:
    return value


def _converted(convert: Callable[[Value], Any] | None, value: Value) -> Any:
    return value if convert is None or value is None else convert(value)


def _outputs(result: Value) -> Value:
    if isinstance(result, tuple | list):
        return tuple(_outputs(part) for part in result)
    if isinstance(result, ov.Node):
        outputs = result.outputs()
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
    return result


def _constant(value: Constant) -> Any:
    array = value.array
    kind = ov.Type.bf16 if value.is_bfloat16 else ov.Type(array.dtype)
    # Bytes of a file may be unaligned for vector instructions: OpenVINO copies those.
    is_shared = array.ctypes.data % _ALIGNED == 0 and array.nbytes >= _LARGE
    content = ov.Tensor(np.require(array, None, "A"), ov.Shape(list(array.shape)), kind)
    return Node(content, shared_memory=is_shared).output(0)


def _stacked(parts: tuple[Value, ...]) -> Any:
    """Stack numbers, some of which may depend on the data, into a 1-D tensor."""
    outputs = [tensor(part) for part in parts]
    kinds = {output.get_element_type() for output in outputs}
    if any(rank(output) for output in outputs) and len(outputs) > 1:
        outputs = [op.reshape(output, ints_of([-1]), False).output(0) for output in outputs]
    kind = outputs[0].get_element_type() if len(kinds) == 1 else ov.Type.i64
    rows = [reshape(cast(output, kind), (-1,)) for output in outputs]
    return rows[0] if len(rows) == 1 else op.concat(rows, 0).output(0)


def _shown(value: Value) -> str:
    if isinstance(value, ov.Output):
        return "a tensor that depends on the data"
    return f"{type(value).__name__} {value!r}"[:80]


def refused(location: str, operator: str, why: object) -> StartError:
    """Return the error of an operator at `location` that cannot be converted."""
    text = " ".join(str(why).split())[:_MAX_WORDS]  # OpenVINO's own errors have many lines
    return StartError(f"operator {operator} at '{location}' cannot be converted: {text}")
