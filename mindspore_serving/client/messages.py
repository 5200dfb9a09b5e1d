"""Conversion of values of users to and from the messages of ms_service.proto.  No I/O."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc
import numpy as np

from mindspore_serving.core import casting
from mindspore_serving.core import dtype as dtypes
from mindspore_serving.core.value import BoxedBytes, BoxedStr, Instance, Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire import ms_proto

# A dict {output: value} or {"error": text} per instance; {"error": text} if the request failed.
Result: TypeAlias = "list[dict[str, Any]] | dict[str, str]"


_HTTP = "this is an HTTP port: use the server's gRPC port (5500 by default)"
# What the user can do, by a part of the details, which are the gRPC library's.
_HINTS = {
    "http1.x server": _HTTP,
    "Failed parsing HTTP/2": _HTTP,
    "Connection refused": "does the server run, and is this its gRPC port?",
    "errors resolving": "is the host name right?",
    "WRONG_VERSION_NUMBER": "the server has no TLS: leave out ssl_config",
    "CERTIFICATE_VERIFY_FAILED": "custom_ca has not signed the server's certificate",
    "Deadline Exceeded": "the server did not answer within the timeout of this client",
}


def to_request(servable: str, method: str, version: int, instances: object) -> bytes:
    """Encode a PredictRequest for one dict {input: value}, or a list or tuple of them.

    Raises RuntimeError for a value that is no numpy array or number, bool, int, float, list of
    numbers, str or bytes.
    """
    spec = pb.ServableSpec(name=servable, method_name=method, version_number=version)
    instance_list = instances if isinstance(instances, tuple | list) else (instances,)
    return ms_proto.request(spec, list(map(_to_instance, instance_list)))


def from_reply(reply: pb.PredictReply) -> Result:
    """Return the values of a reply in the order of the request; arrays are read-only."""
    errors = reply.error_msg
    if len(errors) == 1 and not reply.instances:
        return {"error": _text_of(errors[0])}
    if errors and len(errors) != len(reply.instances):
        count = len(reply.instances)
        raise InvalidInputs(f"The reply has {count} instances and {len(errors)} errors")
    results: list[dict[str, Any]] = []
    for index, instance in enumerate(reply.instances):
        if errors and errors[index].error_code:
            results.append({"error": _text_of(errors[index])})
        else:
            results.append({name: _from_tensor(item) for name, item in instance.items.items()})
    return results


def to_piece(result: Result) -> dict[str, Any]:
    """Return the instance of a reply in a stream."""
    return result[0] if isinstance(result, list) else result


def from_rpc_error(error: grpc.RpcError | grpc.aio.AioRpcError) -> dict[str, str]:
    """Return the result of a request without a reply: status code, details and a hint."""
    details = str(error.details())
    hint = next((f"; {hint}" for sign, hint in _HINTS.items() if sign in details), "")
    if details.startswith("failed to connect") and details.endswith("Socket closed"):
        hint = "; does the server require TLS (ssl_config), or a certificate of the client?"
    return {"error": f"Grpc Error, {error.code().value}, {details}{hint}"}


def _to_instance(instance: object) -> Instance:
    if not isinstance(instance, dict):
        raise InvalidInputs(f"instance should be a map, but actually {type(instance)}")
    for name in instance:
        if not isinstance(name, str):
            raise InvalidInputs(f"The name of an input should be str, but actually {type(name)}")
    return {name: _to_value(value) for name, value in instance.items()}


def _to_value(value: object) -> Value:
    if isinstance(value, str):
        return BoxedStr(value)
    if isinstance(value, bytes):
        return BoxedBytes(value)
    array = _to_array(value)
    row = dtypes.BY_NUMPY.get(array.dtype.newbyteorder("="))
    if row is None or row.numpy is None:
        raise InvalidInputs(f"Unknown data type {array.dtype}")
    return array.astype(row.numpy, copy=False)


def _to_array(value: object) -> "np.ndarray[Any, Any]":
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.number):
        return np.asarray(value)
    if isinstance(value, bool | int | float):
        return _from_scalar(value)
    if isinstance(value, list | tuple):
        return _from_list(value)
    raise InvalidInputs(
        f"Not support value type {type(value)}; accepted are numpy arrays and numbers, bool, int, "
        "float, lists of numbers, str and bytes"
    )


def _from_list(value: Sequence[object]) -> "np.ndarray[Any, Any]":
    """Convert numbers in lists of equal lengths: ints to int64, floats or both to float64.

    The server casts them to the model's type. None among numbers is NaN, a missing value. Raises
    InvalidInputs.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise InvalidInputs("The lists of an array should have equal lengths") from None
    array = casting.with_missing(array)
    if array.dtype.kind not in "biuf":
        raise InvalidInputs(
            "A list should hold numbers, or lists of numbers; a str or bytes is sent by itself"
        )
    return array


def _from_scalar(value: bool | int | float) -> "np.ndarray[Any, Any]":
    """Return an array of shape (1,), as older versions did; an int is int64, a float float64."""
    try:
        return np.array([value], np.int64 if type(value) is int else None)
    except OverflowError:
        raise InvalidInputs(f"The value {value} is out of the range of int64") from None


def _from_tensor(item: pb.Tensor) -> Any:
    row = dtypes.BY_PROTO.get(item.dtype)
    if row is None:
        raise InvalidInputs(f"The reply has a tensor of unknown data type {item.dtype}")
    if row.numpy is not None:
        return np.ndarray(tuple(item.shape.dims), row.numpy, item.data)
    values = [text.decode() if row is dtypes.STR else text for text in item.bytes_val]
    return values[0] if len(values) == 1 else values


def _text_of(error: pb.ErrorMsg) -> str:
    return error.error_msg.decode("utf-8", "replace")
