"""The body of a classic RESTful request and its reply.

The master may pass a body on whole, or `split` it for several replicas; it never reads a value.
`decode` and `encode` are the worker's.  Of equal keys the last counts.  Knows nothing of HTTP.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import Instance
from mindspore_serving.errors import InvalidField, InvalidInputs, StageFailed, TooLarge, printable
from mindspore_serving.wire import json_literals, json_values, status, tensor
from mindspore_serving.wire.json_shape import Shape, check_shape
from mindspore_serving.wire.ms_path import Route, parse_path
from mindspore_serving.wire.status import Failure

__all__ = [
    "Route",
    "assemble",
    "assemble_error",
    "decode",
    "decode_items",
    "decode_whole",
    "encode",
    "parse_path",
    "split",
]

MOST_OBJECTS = 1 << 20  # of a body: instances, and their values that are bytes
_PREFIX = "Parser request failed, "
_NO_KEYS = (
    "instances no key mode is not supported; an instance is an object of inputs, as "
    '{"instances": [{"INPUT": VALUE}]}'
)


class _Body(msgspec.Struct):
    instances: Any = msgspec.UNSET


class _RawBody(msgspec.Struct):
    instances: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Object(msgspec.Struct, gc=False):
    """Any JSON object, of which nothing is kept."""


_body = json_literals.Decoder[_Body](_Body)
_raw_body = json_literals.RawDecoder[_RawBody](_RawBody)
_raw_list = json_literals.RawDecoder[list[msgspec.Raw]](list[msgspec.Raw])
_objects = json_literals.RawDecoder[list[_Object]](list[_Object])
_any = json_literals.Decoder[Any]()
_encoder = msgspec.json.Encoder(order="deterministic")


# --------------------------------------------------------------------- master


def can_be_cut(body: bytes | bytearray) -> bool:
    """Whether `split` takes little time and memory, however hostile the body is."""
    return len(body) <= tensor.MOST_CUT and body.count(b"{") <= tensor.MOST_PIECES


def split(body: bytes) -> list[memoryview]:
    """The JSON text of every instance, not copied.

    Raises InvalidInputs for no JSON, no instances, or instances that are no objects.
    """
    instances = _parse(_raw_body, body).instances
    if instances is msgspec.UNSET:
        raise _no_instances()
    text = memoryview(instances)
    if text[0] == ord("{"):
        return [text]
    if text[0] != ord("["):
        raise _bad(_NO_KEYS)
    if bytes(text).count(b",") > tensor.MOST_PIECES:
        _check_objects(text)  # else there are few
    items = [memoryview(item) for item in _parse(_raw_list, text)]
    _check_items([item[0] == ord("{") for item in items])
    return items


def assemble(
    instances: Sequence[bytes | memoryview], errors: Sequence[Failure] | None = None
) -> bytes:
    """The body of a reply; `errors`, if any, has one entry per instance.

    If all of them failed alike, the reply holds that error alone.
    """
    common = status.common_failure(errors) if errors else None
    if common is not None:
        return assemble_error(common[1])
    if errors and any(errors):
        instances = [
            assemble_error(failure[1]) if failure else instance
            for instance, failure in zip(instances, status.numbered(errors), strict=True)
        ]
    return b'{"instances":[' + b",".join(instances) + b"]}"


def assemble_error(text: str) -> bytes:
    """The body of a request, or the item of an instance, that failed."""
    clean = printable(text or "Predict failed")
    return _encoder.encode({"error_msg": clean})


# --------------------------------------------------------------------- worker


def decode(body: bytes | memoryview, method: Method, servable_label: str) -> list[Instance]:
    """The inputs of `method` in every instance of a body; other items are ignored.

    Arrays are writable.  Raises InvalidInputs if the body or any instance cannot be used.
    """
    if len(body) > MOST_OBJECTS:
        _check_number(body)
    instances = _parse(_body, body).instances
    if type(instances) is dict:
        return [_to_instance(instances, method, servable_label, "json object, value is empty")]
    if instances is msgspec.UNSET:
        raise _no_instances()
    if type(instances) is not list:
        raise _bad(_NO_KEYS)
    _check_items([type(item) is dict for item in instances])
    return _to_instances(instances, method, servable_label)


def decode_whole(
    chunks: Sequence[bytes | memoryview], method: Method, servable_label: str
) -> list[Instance]:
    """As `decode`, of a list that holds just the body."""
    (body,) = chunks
    return decode(body, method, servable_label)


def decode_items(
    chunks: Sequence[bytes | memoryview], method: Method, servable_label: str
) -> list[Instance]:
    """As `decode`, of instances that `split` cut."""
    items = [_parse(_any, chunk) for chunk in chunks]
    _check_items([type(item) is dict for item in items])
    return _to_instances(items, method, servable_label)


def encode(outputs: Instance) -> bytes:
    """One JSON object, keys sorted; NaN and infinities are null, bytes are {"b64": ...}.

    Raises StageFailed for a value that cannot be sent.
    """
    try:
        return _encoder.encode({name: json_values.to_plain(outputs[name]) for name in outputs})
    except UnicodeEncodeError as error:
        raise StageFailed(f"Failed to construct the response: {error}") from None


def _to_instances(items: list[Any], method: Method, label: str) -> list[Instance]:
    empty = "json array, instance is object type, but no value"
    return [_to_instance(item, method, label, empty) for item in items]


def _to_instance(item: dict[str, Any], method: Method, label: str, if_empty: str) -> Instance:
    if not item:
        raise _bad(if_empty)
    if "" in item:
        raise _bad("string key is empty")
    instance: Instance = {}
    for name in method.inputs:
        if name not in item:
            if name not in method.defaults:
                raise tensor.missing_input(name, item, method, label)
            instance[name] = method.defaults[name]
            continue
        try:
            instance[name] = json_values.to_value(item[name], method.dtypes.get(name))
        except tensor.BadTensor as error:
            raise tensor.bad_input(name, error) from None
        except InvalidInputs as error:
            raise _bad(f"{error} (input {name})") from None
    return instance


# --------------------------------------------------------------------- both


def _parse(decoder: json_literals.Decoder[Any], text: bytes | memoryview) -> Any:
    if not text:
        raise InvalidInputs("http message invalid")
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse(text, error)


def _refuse(text: bytes | memoryview, error: Exception) -> NoReturn:
    """Say what is wrong: no JSON, JSON that is no object, or that is nested too deeply."""
    if isinstance(error, msgspec.ValidationError):
        try:
            _any.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as nearer:
            error = nearer
        else:
            raise _no_instances()
    if isinstance(error, RecursionError):
        raise InvalidInputs("Illegal JSON format. It is nested too deeply") from None
    raise InvalidInputs(f"Illegal JSON format. {error}") from None


def _check_objects(text: memoryview) -> None:
    """Ends at the first item that is no object."""
    try:
        _objects.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError):
            raise _bad("json array, instance is not object type") from None
        _refuse(text, error)


def _check_number(body: bytes | memoryview) -> None:
    """Before each object takes 64 bytes or more."""
    if bytes(body).count(b"{") <= MOST_OBJECTS:
        return
    try:
        check_shape(body, Shape(len(body), MOST_OBJECTS))  # which does not count what is in texts
    except InvalidField as error:
        raise TooLarge(str(error)) from None


def _check_items(are_objects: list[bool]) -> None:
    if not are_objects:
        raise _bad("instances value is array type, but no value")
    if len(are_objects) > tensor.MAX_INSTANCES:
        raise TooLarge(f"A request has at most {tensor.MAX_INSTANCES} instances")
    if not are_objects[0]:
        raise _bad(_NO_KEYS)
    if not all(are_objects):
        raise _bad("json array, instance is not object type")


def _no_instances() -> InvalidInputs:
    return _bad(
        "key 'instances' expects to exist once, but actually 0 times; a request is "
        '{"instances": [{"INPUT": VALUE}]}'
    )


def _bad(reason: str) -> InvalidInputs:
    return InvalidInputs(_PREFIX + reason)
