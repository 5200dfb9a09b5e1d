"""The parameter `config` of a load: Triton's ModelConfig as JSON.

Some of its fields are options of a servable here.  Other fields are refused by name, unless their
values are the present ones.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec

from mindspore_serving.core.params import OptionRow
from mindspore_serving.core.servable_options import SERVABLE
from mindspore_serving.core.service import Changes
from mindspore_serving.core.traffic import ROUTING, check_traffic
from mindspore_serving.errors import InvalidInputs

_SETTINGS = {name: row for row in SERVABLE.values() if (name := row.aliases.get("load"))}
_MAX_WORKERS = int(SERVABLE["num_parallel_workers"].high)
_MAX_SIZE = int(SERVABLE["preferred_batch_size"].high)
_MAX_NUMBERS = {int: 1e9, float: 1e6}  # of requests, of seconds
_KINDS = ("KIND_AUTO", "KIND_CPU", "KIND_MODEL")


def to_changes(text: object, shown: Mapping[str, Any]) -> Changes:
    """Return the options of a deployment that `text` changes.

    `shown` is the present configuration, whose fields can be repeated.  Raises InvalidInputs.
    """
    try:
        config = msgspec.json.decode(text) if isinstance(text, str | bytes) else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputs(f"parameter 'config' is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InvalidInputs("parameter 'config' is not a JSON object")
    changes: dict[str, Any] = {}
    for name, value in config.items():
        if name in _FIELDS:
            changes |= _FIELDS[name](value)
        elif name not in shown or value != shown[name]:
            raise InvalidInputs(
                f"config: '{name[:64]}' cannot be changed; fields that can: {', '.join(_FIELDS)}"
            )
    return changes


def _batching(value: Any) -> Changes:
    fields = _object("dynamic_batching", value)
    delay = fields.pop("max_queue_delay_microseconds", 0)
    sizes = fields.pop("preferred_batch_size", [])
    _refuse_rest("dynamic_batching", fields)
    if not isinstance(sizes, list) or not all(map(_is_size, sizes)):
        accepted = f"a list of numbers of 1 to {_MAX_SIZE}"
        raise InvalidInputs(f"config: preferred_batch_size is not {accepted}")
    # Clients send 64-bit numbers as texts, as the JSON of protobuf has them.
    delay_ms = _number("max_queue_delay_microseconds", delay, 1e12) / 1000
    return {"max_batch_delay_ms": delay_ms, "preferred_batch_size": max(sizes, default=0)}


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value <= _MAX_SIZE


def _workers(value: Any) -> Changes:
    if not isinstance(value, list) or len(value) != 1:
        raise InvalidInputs("config: instance_group is not a list of one group")
    fields = _object("instance_group", value[0])
    fields.pop("name", None)
    kind, count = fields.pop("kind", _KINDS[0]), fields.pop("count", 1)
    if kind not in _KINDS:
        raise InvalidInputs(
            f"config: kind of instance_group is {str(kind)[:32]}, expected {' or '.join(_KINDS)}: "
            "the operator says which devices a servable has"
        )
    _refuse_rest("instance_group", fields)
    if type(count) is not int or not 1 <= count <= _MAX_WORKERS:
        raise InvalidInputs(f"config: count is {count!r:.32}, expected 1 to {_MAX_WORKERS}")
    return {"num_parallel_workers": count, "max_workers": 0}


def _parameters(value: Any) -> Changes:
    changes: dict[str, Any] = {}
    for name, row in _object("parameters", value).items():
        if name not in _SETTINGS:
            known = ", ".join(_SETTINGS)
            raise InvalidInputs(
                f"config: parameter '{name[:64]}' is unknown, expected one of {known}"
            )
        text = row.get("string_value") if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise InvalidInputs(f'config: parameter {name} is no {{"string_value": "..."}}')
        changes[_SETTINGS[name].name] = _value(_SETTINGS[name], text)
    return {**changes, **_routing(changes)}


def _routing(changes: Changes) -> Changes:
    """Return the checked options of traffic among `changes`."""
    options = {name: changes.get(name, SERVABLE[name].default) for name in ROUTING}
    try:
        checked = check_traffic(SimpleNamespace(**options))
    except InvalidInputs as error:
        raise InvalidInputs(f"config: {error}") from None
    return {name: checked[name] for name in ROUTING if name in changes}


def _value(row: OptionRow, text: str) -> object:
    if row.kind is str:
        return text
    if row.parse is not None:
        try:
            return row.parse(text) if text else {}
        except InvalidInputs as error:
            raise InvalidInputs(f"config: parameter {row.name} is {error}") from None
    if row.kind is not bool:
        return row.kind(_number(row.name, text, _MAX_NUMBERS[row.kind]))
    if text not in ("true", "false"):
        raise InvalidInputs(
            f"config: parameter {row.name} is {text[:32]!r}, expected true or false"
        )
    return text == "true"


def _number(name: str, value: object, limit: float) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= limit:
        raise InvalidInputs(f"config: {name} is {value!r:.32}, expected 0 to {limit:g}")
    return number


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInputs(f"config: {name} is not an object")
    return dict(value)


def _refuse_rest(name: str, fields: Mapping[str, Any]) -> None:
    if fields:
        raise InvalidInputs(f"config: '{next(iter(fields))[:64]}' of {name} cannot be changed")


_FIELDS: dict[str, Callable[[Any], Changes]] = {
    "dynamic_batching": _batching,
    "instance_group": _workers,
    "parameters": _parameters,
}
