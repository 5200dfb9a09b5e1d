"""Body of a classic RESTful request and of its reply.

The master can pass a body on unchanged, or `split` it for several replicas; it decodes no value.
`decode` and `encode` are the worker's.  Of equal keys the last counts.  It knows no HTTP.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import Instance
from mindspore_serving.errors import (
    InvalidField,
    InvalidInputs,
    NoInstances,
    StageFailed,
    TooLarge,
    printable,
)
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
    "decode_body",
    "encode",
    "parse_path",
    "split",
]

MAX_OBJECTS = 1 << 20  # per body: instances, and their values that are bytes
_INPUTS = "an instance has the inputs of the method"
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
    """JSON object of any content, which is not kept."""


_body = json_literals.Decoder[_Body](_Body)
_raw_body = json_literals.RawDecoder[_RawBody](_RawBody)
_raw_list = json_literals.RawDecoder[list[msgspec.Raw]](list[msgspec.Raw])
_objects = json_literals.RawDecoder[list[_Object]](list[_Object])
_any = json_literals.Decoder[Any]()
_encoder = msgspec.json.Encoder(order="deterministic")


# --------------------------------------------------------------------- master


def is_cheap_to_split(body: bytes | bytearray) -> bool:
    """Return whether `split` takes little time and memory, even if the body is hostile."""
    return len(body) <= tensor.MAX_SPLIT_BYTES and body.count(b"{") <= tensor.MAX_SPLIT_ITEMS


def split(body: bytes) -> list[memoryview]:
    """Return the JSON text of every instance, without a copy.

    Raises InvalidInputs for invalid JSON, no instances, or instances that are not objects.
    """
    instances = _parse(_raw_body, body).instances
    if instances is msgspec.UNSET:
        raise _no_instances()
    text = memoryview(instances)
    if text[0] == ord("{"):
        return [text]
    if text[0] != ord("["):
        raise _bad(_NO_KEYS)
    if bytes(text).count(b",") > tensor.MAX_SPLIT_ITEMS:
        _check_objects(text)  # else there are few items
    items = [memoryview(item) for item in _parse(_raw_list, text)]
    _check_items([item[0] == ord("{") for item in items])
    return items


def assemble(
    instances: Sequence[bytes | memoryview], errors: Sequence[Failure] | None = None
) -> bytes:
    """Return the body of a reply; `errors`, if any, has one entry per instance.

    If all instances failed alike, the reply is that error alone.
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
    """Return the body of a failed request, or the item of a failed instance."""
    clean = printable(text or "Predict failed")
    return _encoder.encode({"error_msg": clean})


# --------------------------------------------------------------------- worker


def decode(body: bytes | memoryview, method: Method, servable_label: str) -> list[Instance]:
    """Decode the inputs of `method` in every instance of a body; other items are ignored.

    Arrays are writable.  Raises InvalidInputs if the body or any instance is wrong.
    """
    if len(body) > MAX_OBJECTS:
        _check_num_objects(body)
    instances = _parse(_body, body).instances
    if type(instances) is dict:
        return [
            _to_instance(
                instances,
                method,
                servable_label,
                f"json object, value is empty; {_INPUTS}",
            )
        ]
    if instances is msgspec.UNSET:
        raise _no_instances()
    if type(instances) is not list:
        raise _bad(_NO_KEYS)
    _check_items([type(item) is dict for item in instances])
    return _to_instances(instances, method, servable_label)


def decode_body(
    chunks: Sequence[bytes | memoryview], method: Method, servable_label: str
) -> list[Instance]:
    """Decode a body like `decode`; it is the only chunk."""
    (body,) = chunks
    return decode(body, method, servable_label)


def decode_items(
    chunks: Sequence[bytes | memoryview], method: Method, servable_label: str
) -> list[Instance]:
    """Decode instances like `decode`, after `split` has split them."""
    items = [_parse(_any, chunk) for chunk in chunks]
    _check_items([type(item) is dict for item in items])
    return _to_instances(items, method, servable_label)


def encode(outputs: Instance) -> bytes:
    """Encode one JSON object with sorted keys; NaN and infinities are null, bytes are {"b64": ...}.

    Raises StageFailed for a value that cannot be sent.
    """
    try:
        body = _encoder.encode({name: json_values.to_plain(outputs[name]) for name in outputs})
        if b"null" in body:
            json_values.warn_of_null(outputs)
        return body
    except UnicodeEncodeError as error:
        raise StageFailed(f"Failed to construct the response: {error}") from None


def _to_instances(items: list[Any], method: Method, label: str) -> list[Instance]:
    empty = f"json array, instance is object type, but no value; {_INPUTS}"
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
    """Raise the error of a text that is no JSON, no object, or nested too deeply."""
    if isinstance(error, msgspec.ValidationError):
        try:
            _any.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as syntax_error:
            error = syntax_error
        else:
            raise _no_instances()
    if isinstance(error, RecursionError):
        raise InvalidInputs("Illegal JSON format. It is nested too deeply") from None
    raise InvalidInputs(f"Illegal JSON format. {error}") from None


def _check_objects(text: memoryview) -> None:
    """Raise InvalidInputs if an item is not an object; parsing stops there."""
    try:
        _objects.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError):
            raise _bad("json array, instance is not object type") from None
        _refuse(text, error)


def _check_num_objects(body: bytes | memoryview) -> None:
    """Check the number of objects before each of them takes 64 bytes or more."""
    if bytes(body).count(b"{") <= MAX_OBJECTS:
        return
    try:
        check_shape(body, Shape(len(body), MAX_OBJECTS))  # which ignores braces in strings
    except InvalidField as error:
        raise TooLarge(str(error)) from None


def _check_items(are_objects: list[bool]) -> None:
    if not are_objects:
        reason = "instances value is array type, but no value; send at least one instance"
        raise NoInstances(_PREFIX + reason)
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
