"""Arguments of a network's function: tensors and scalars, which are the inputs of a model.

They are read from its signature, its type hints, and what the operator described.
"""

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from mindspore_serving.backends.base import Array
from mindspore_serving.core.network import parse_spec
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import InvalidInputs, StartError, did_you_mean

SCALARS = {bool: "?", int: "<i8", float: "<f8"}  # types of arguments, and those of their inputs


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument that an input of the model fills; `kind` is bool, int or float, None of a tensor."""

    spec: TensorSpec
    kind: type | None = None
    is_positional: bool = True

    def value_of(self, array: Array, to_tensor: Callable[[Array], Any]) -> Any:
        """Return the argument for the input `array`: a tensor, a number, or None."""
        if self.spec.is_optional and self.spec.default is None and not array.size:
            return None
        return to_tensor(array) if self.kind is None else self.kind(array.item())


def scalar(name: str, kind: type, *, is_optional: bool = False, default: Any = None) -> Argument:
    """Return the argument of a scalar input; one whose default is None has no fixed shape."""
    shape = None if is_optional and default is None else ()
    dtype = np.dtype(SCALARS[kind])
    spec = TensorSpec(
        name, dtype, shape, is_argument=True, is_optional=is_optional, default=default
    )
    return Argument(spec, kind)


def read_arguments(
    function: Callable[..., Any], described: Sequence[TensorSpec]
) -> tuple[Argument, ...]:
    """Return the arguments of `function` that requests fill, without those left at a default.

    `described` are specs of the operator, by name; they come before type hints. An optional tensor
    is an input only if it is described. Raises StartError with the parameter that has no meaning.
    """
    by_name = {spec.name: spec for spec in described}
    hints = _hints(function)
    arguments: list[Argument] = []
    is_positional = True
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        is_positional = is_positional and parameter.kind is not parameter.KEYWORD_ONLY
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise StartError(
                f"parameter '*{name}' has no fixed number of inputs: write a class whose function "
                "names each"
            )
        argument = _argument(parameter, hints.get(name), by_name.get(name))
        if argument is None:
            is_positional = False  # it is left at its default
        else:
            arguments.append(replace(argument, is_positional=is_positional))
    for name in by_name.keys() - {argument.spec.name for argument in arguments}:
        near = did_you_mean(name, parameters) or f": it has {', '.join(parameters) or 'none'}"
        raise StartError(f"input '{name}' is described, but is no parameter{near}")
    if not arguments:
        raise StartError("it has no parameter that a request could fill")
    return tuple(arguments)


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # a hint may be any expression
        return {}


def _argument(
    parameter: inspect.Parameter, hint: Any, declared: TensorSpec | None
) -> Argument | None:
    """Return the argument for a parameter; None if it is left at its default."""
    name, default = parameter.name, parameter.default
    is_optional = default is not parameter.empty
    if declared is not None:
        return Argument(replace(declared, is_optional=is_optional))
    kind, text = _kind(hint)
    if kind is None and type(default) in SCALARS:
        kind = type(default)
    if kind in SCALARS and (not is_optional or default is None or type(default) in SCALARS):
        return scalar(name, kind, is_optional=is_optional, default=default if is_optional else None)
    if is_optional:
        return None
    if text:
        return Argument(_parsed(name, text))
    if kind is None or kind.__name__ == "Tensor":
        return Argument(TensorSpec(name, None, None))
    raise StartError(
        f"parameter '{name}' is of type {kind.__name__}, expected a Tensor, int, float or bool: a "
        "request carries no other argument"
    )


def _parsed(name: str, text: str) -> TensorSpec:
    try:
        return parse_spec(name, text)
    except InvalidInputs as error:
        raise StartError(str(error)) from None


def _kind(hint: Any) -> tuple[Any, str]:
    """Return the class of a type hint, and the text of Annotated[Tensor, "float32[-1,4]"]."""
    text = ""
    if metadata := getattr(hint, "__metadata__", ()):
        text = next((item for item in metadata if isinstance(item, str)), "")
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [arg for arg in get_args(hint) if arg is not types.NoneType]
        hint = kinds[0] if len(kinds) == 1 else None
    hint = get_origin(hint) or hint
    return (hint if isinstance(hint, type) and hint is not object else None), text


def call(function: Callable[..., Any], arguments: Sequence[Argument], values: Sequence[Any]) -> Any:
    """Call `function` with a value for each argument."""
    pairs = list(zip(arguments, values, strict=True))
    return function(
        *(value for argument, value in pairs if argument.is_positional),
        **{arg.spec.name: value for arg, value in pairs if not arg.is_positional},
    )


def named_leaves(result: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the tensors of a result with their names.

    A dictionary and a named tuple name theirs; others are named output0, output1 by `output_names`.
    """
    if isinstance(result, Mapping):
        pairs = [(str(key), value) for key, value in result.items()]
    elif hasattr(result, "_fields"):
        pairs = list(zip(result._fields, result, strict=True))
    elif isinstance(result, tuple | list):
        pairs = [("", value) for value in result]
    else:
        if result is not None:
            yield name, result
        return
    for key, value in pairs:
        yield from named_leaves(value, f"{name}.{key}".strip(".") if key else name)


def output_names(leaves: Sequence[tuple[str, Any]]) -> tuple[str, ...]:
    """Return distinct names of the outputs."""
    names = [name for name, _ in leaves]
    distinct = len(set(names)) == len(names) and "" not in names
    return tuple(names) if distinct else tuple(f"output{i}" for i in range(len(names)))


def hinted_outputs(function: Callable[..., Any]) -> tuple[TensorSpec, ...]:
    """Return the outputs by the type hint of the result; () if it does not show their number."""
    hint = _hints(function).get("return")
    kind = getattr(hint, "__name__", "")
    names: Sequence[str] = getattr(hint, "_fields", ())
    if get_origin(hint) is tuple and Ellipsis not in get_args(hint):
        names = [f"output{i}" for i in range(len(get_args(hint)))]
    elif kind == "Tensor":
        names = ["output0"]
    return tuple(TensorSpec(name, None, None) for name in names)
