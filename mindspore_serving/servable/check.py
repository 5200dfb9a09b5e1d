"""Checks of arguments of users: a wrong type or value raises InvalidInputs (a RuntimeError).

Every message has the parameter, the value and what is accepted.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from mindspore_serving import log
from mindspore_serving.core.params import OptionRow
from mindspore_serving.errors import InvalidInputs, did_you_mean

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_INFINITE = float("inf")
_BITS = 64  # of ints in messages between processes; those of Python are unbounded
_LISTS: tuple[Any, ...] = (tuple, list)
_T = TypeVar("_T")


def warn_deprecated(name: str, version: str, substitute: str) -> None:
    """Log that `name` is deprecated since `version`."""
    log.warning(
        "'%s' is deprecated from version %s and will be removed in a future version, use '%s' "
        "instead.",
        name,
        version,
        substitute,
    )


def check_str(name: str, value: object) -> str:
    """Return `value` if it is a str that is not empty."""
    return _not_empty(f"Parameter '{name}'", value, str)


def check_bytes(name: str, value: object) -> bytes:
    """Return `value` if it is bytes and not empty."""
    return _not_empty(f"Parameter '{name}'", value, bytes)


def check_bool(name: str, value: object) -> bool:
    """Return `value` if it is True or False."""
    return _typed(f"Parameter '{name}'", value, bool, "bool")


def check_int(
    name: str, value: object, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return `value` if it is an int (not a bool) within the bounds, both inclusive."""
    return _check_int(f"Parameter '{name}'", value, minimum, maximum)


def check_number(name: str, value: object, minimum: float = 0) -> float:
    """Return `value` as a float if it is an int or float, finite and at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = type(value)
        raise InvalidInputs(f"Parameter '{name}' should be int or float, but actually {kind}")
    if isinstance(value, int):
        value = _check_int(f"Parameter '{name}'", value, None, None)
    if not minimum <= value < float("inf"):
        raise InvalidInputs(
            f"Parameter '{name}' should be >= {minimum:g} and finite, but actually {value}"
        )
    return float(value)


def check_port(name: str, value: object) -> int:
    """Return `value` if it is a port number."""
    return check_int(name, value, 1, 65535)


def check_int_tuple(name: str, value: object, minimum: int | None = None) -> tuple[int, ...]:
    """Return a tuple or list of distinct ints, each at least `minimum`, as a tuple."""
    items = _typed(f"Parameter '{name}'", value, _LISTS, "tuple/list of int")
    for item in items:
        prefix = f"The item value '{item}' in parameter '{name}'"
        _check_int(prefix, item, minimum, None)
    return _distinct(name, tuple(items))


def as_int_tuple(name: str, value: object, minimum: int | None = None) -> tuple[int, ...]:
    """Convert an int, or a tuple or list of distinct ints, to a tuple."""
    if not isinstance(value, _LISTS):
        value = (_typed(f"Parameter '{name}'", value, int, "int or tuple/list of int"),)
    return check_int_tuple(name, value, minimum)


def as_instances(name: str, value: object, kind: type[_T]) -> tuple[_T, ...]:
    """Convert a `kind`, or a non-empty tuple or list of them, to a tuple."""
    items = tuple(value) if isinstance(value, _LISTS) else (value,)
    wrong = [item for item in items if not isinstance(item, kind)]
    if wrong or not items:
        raise InvalidInputs(
            f"Parameter '{name}' should be {kind.__name__}, list or tuple of {kind.__name__}, but "
            f"actually {type(wrong[0] if wrong else value)}"
        )
    return items


def as_str_tuple(name: str, value: object) -> tuple[str, ...]:
    """Convert a str, or a non-empty tuple or list of distinct non-empty strs, to a tuple."""
    if isinstance(value, str):
        return (check_str(name, value),)
    items = _typed(f"Parameter '{name}'", value, _LISTS, "str or tuple/list of str")
    if not items:
        raise InvalidInputs(f"Parameter '{name}' should not be an empty tuple or list")
    for item in items:
        _not_empty(f"The item of parameter '{name}'", item, str)
    return _distinct(name, tuple(items))


def as_nested_str_tuple(name: str, value: object) -> tuple[tuple[str, ...], ...]:
    """Convert a str, or a tuple or list of strs or of tuples/lists of strs, to nested tuples."""
    if not isinstance(value, _LISTS) or not value:
        return (as_str_tuple(name, value),)
    return tuple(
        as_str_tuple(name, item if isinstance(item, _LISTS) else (item,)) for item in value
    )


def check_servable_name(name: str, value: object) -> str:
    """Return `value` if it can name a servable: a directory, part of URLs, file and log names."""
    text = check_str(name, value)
    if not _NAME.fullmatch(text):
        raise InvalidInputs(
            f"Parameter '{name}' should be 1 to 128 letters, digits, '_', '-' or '.' and not begin "
            f"with '.', but actually {text[:160]!r}"
        )
    return text


def check_dec(dec_key: object, dec_mode: object) -> None:
    """Check the key of an encrypted model, None or bytes, and the mode of its cipher."""
    if dec_key is not None and (length := len(check_bytes("dec_key", dec_key))) not in (16, 24, 32):
        raise InvalidInputs(f"Parameter 'dec_key' length {length} expected to be 16, 24 or 32")
    if check_str("dec_mode", dec_mode) not in ("AES-GCM", "AES-CBC"):
        raise InvalidInputs(
            f"Parameter 'dec_mode' expected to be 'AES-GCM' or 'AES-CBC', but actually '{dec_mode}'"
        )


def check_option(row: OptionRow, value: object) -> Any:
    """Return `value` if it has the type and range of an option; {} for None."""
    kind, name = row.kind, row.name
    if row.choices and value != row.default and value not in row.choices:
        raise InvalidInputs(
            f"Parameter '{name}' should be one of {row.choices}, but actually {value!r}"
            f"{did_you_mean(str(value), row.choices)}"
        )
    if kind is bool:
        return None if value is None and row.is_nullable else check_bool(name, value)
    if kind is int:
        high = None if row.high == _INFINITE else int(row.high)
        return check_int(name, value, int(row.low), high)
    if kind is float:
        return check_number(name, value, row.low)
    if get_origin(kind) is list:
        return as_str_tuple(name, value) if value else ()
    if get_origin(kind) is dict:
        return _check_dict(name, {} if value is None else value, get_args(kind)[1])
    return value if value == row.default else check_str(name, value)


def _check_dict(name: str, value: object, kind: Any) -> dict[str, Any]:
    if kind is int:
        return check_axes(name, value)
    is_text = kind is str
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and (isinstance(item, str) or not is_text)
        for key, item in value.items()
    ):
        accepted = "a dict of str" if is_text else "a dict with str keys"
        raise InvalidInputs(f"Parameter '{name}' should be {accepted}, but actually {value!r}")
    return dict(value)


def check_axes(name: str, value: object) -> dict[str, int]:
    """Return a mapping of names to ints of at least -1."""
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and type(axis) is int and axis >= -1 for key, axis in value.items()
    ):
        text = f"Parameter '{name}' should be a dict of axes by name, each -1 or more"
        raise InvalidInputs(f"{text}, but actually {value!r:.200}")
    return dict(value)


def check_states(name: str, value: object) -> dict[str, str]:
    """Return a mapping of names to names."""
    if not isinstance(value, Mapping) or not all(
        isinstance(text, str) and text for pair in value.items() for text in pair
    ):
        text = f"Parameter '{name}' should be a dict of outputs by input"
        raise InvalidInputs(f"{text}, but actually {value!r:.200}")
    return dict(value)


def _typed(what: str, value: object, kind: "type[_T] | tuple[type[_T], ...]", expected: str) -> _T:
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise InvalidInputs(f"{what} should be {expected}, but actually {type(value)}")
    return value


def _not_empty(what: str, value: object, kind: type[_T]) -> _T:
    typed = _typed(what, value, kind, kind.__name__)
    if not typed:
        raise InvalidInputs(f"{what} should not be empty {kind.__name__}")
    return typed


def _check_int(prefix: str, argument: object, minimum: int | None, maximum: int | None) -> int:
    value = _typed(prefix, argument, int, "int")
    if value.bit_length() >= _BITS:
        shown = f"an int of {value.bit_length()} bits"
        raise InvalidInputs(f"{prefix} should be {_range(minimum, maximum)}, but actually {shown}")
    if minimum is not None and value < minimum or maximum is not None and value > maximum:
        raise InvalidInputs(f"{prefix} should be {_range(minimum, maximum)}, but actually {value}")
    return value


def _range(minimum: int | None, maximum: int | None) -> str:
    if minimum is None and maximum is None:
        return f"of {_BITS} bits"
    if minimum is None:
        return f"<= {maximum}"
    return f">= {minimum}" if maximum is None else f"in range [{minimum},{maximum}]"


def _distinct(name: str, items: tuple[_T, ...]) -> tuple[_T, ...]:
    for index, item in enumerate(items):
        if item in items[:index]:
            raise InvalidInputs(
                f"The item value '{item}' in parameter '{name}' should not be repeated"
            )
    return items
