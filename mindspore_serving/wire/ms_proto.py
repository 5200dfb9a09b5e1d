"""PredictRequest and PredictReply, the gRPC messages of ms_service.proto.

The master decodes no tensors: `peek` and `split` parse only the top level of a request, `assemble`
joins encoded instances.  The worker's half is `ms_instance`.  Nothing here knows gRPC.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.core.value import Instance
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire import status
from mindspore_serving.wire.ms_instance import (
    decode,
    encode,
    field_end,
    from_varint,
    head,
    pieces,
    sized,
    to_varint,
)
from mindspore_serving.wire.status import Failure
from mindspore_serving.wire.tensor import MAX_INSTANCES

__all__ = [
    "Spec",
    "assemble",
    "assemble_error",
    "decode",
    "encode",
    "peek",
    "pieces_of_reply",
    "request",
    "split",
]

_SPEC, _INSTANCES = 0x0A, 0x12  # tags in PredictRequest: field << 3 | wire type, 2 = sized
_REPLY_INSTANCES, _REPLY_ERRORS = 0x1A, 0x22
_MAX_SPEC_BYTES = 4096
_MAX_SPECS = 1024

_specs: dict[bytes, "Spec"] = {}


class Spec(NamedTuple):
    """Target of a request: servable, method and version.

    `raw` is the ServableSpec message, which is returned with the reply.
    """

    name: str
    method: str
    version: int
    raw: bytes


def peek(body: Buffer) -> Spec:
    """Return the spec of a PredictRequest; the bytes after it are not parsed.

    Raises InvalidInputs if the bytes before are no PredictRequest.
    """
    if len(body) > 1 and body[0] == _SPEC and body[1] <= 0x7F:  # as clients send it: no search
        spec = _specs.get(bytes(body[2 : 2 + body[1]]))
        if spec is not None and len(spec.raw) == body[1]:
            return spec
    raw = next((bytes(body[start:stop]) for tag, start, stop in _fields(body) if tag == _SPEC), b"")
    spec = _specs.get(raw)
    return spec if spec is not None else _parse_spec(raw)


def split(body: Buffer) -> list[memoryview]:
    """Return the Instance messages of a PredictRequest, without copying or parsing them.

    Raises InvalidInputs if there is none, or if the top level is no PredictRequest.
    """
    view = memoryview(body)
    chunks: list[memoryview] = []
    num_specs = 0
    for tag, start, stop in _fields(body):
        if tag == _INSTANCES:
            chunks.append(view[start:stop])
        else:
            num_specs += 1
    if num_specs > 1:  # protobuf would merge them; no client sends that
        raise _not_a_request("it has several servable_spec")
    if not chunks:
        raise InvalidInputs("Instances count of request cannot be 0")
    return chunks


def request(spec: pb.ServableSpec, instances: Sequence[Instance]) -> bytes:
    """Encode a PredictRequest.  Raises StageFailed for a value that cannot be sent."""
    parts: list[Any] = [sized(_SPEC, spec.SerializeToString())]
    for instance in instances:
        buffers = pieces(instance)
        parts += head(_INSTANCES, sum(memoryview(data).nbytes for data in buffers)), *buffers
    return b"".join(parts)


def assemble(
    spec_raw: bytes,
    instances: Sequence[bytes | memoryview],
    errors: Sequence[Failure] | None = None,
) -> bytes:
    """Return a PredictReply, see `pieces_of_reply`."""
    return b"".join(pieces_of_reply(spec_raw, instances, errors))


def pieces_of_reply(
    spec_raw: bytes,
    instances: Sequence[bytes | memoryview],
    errors: Sequence[Failure] | None = None,
) -> list[Buffer]:
    """Return a PredictReply of encoded instances in parts.

    `errors`, if any, has one entry per instance.  If all instances failed alike, the reply is that
    error alone.  The bytes of failed instances are not used.
    """
    common = status.common_failure(errors) if errors else None
    if common is not None:
        return [assemble_error(spec_raw, *common)]
    parts: list[Buffer] = [head(_SPEC, len(spec_raw)), spec_raw] if spec_raw else []
    failures = status.numbered(errors) if errors and any(errors) else ()
    for index, instance in enumerate(instances):
        kept = b"" if failures and failures[index] else instance
        parts += head(_REPLY_INSTANCES, len(kept)), kept
    parts += [sized(_REPLY_ERRORS, _error_message(failure)) for failure in failures]
    return parts


def assemble_error(spec_raw: bytes, code: int, text: str) -> bytes:
    """Return the PredictReply of a request that failed as a whole."""
    spec = sized(_SPEC, spec_raw) if spec_raw else b""
    return spec + sized(_REPLY_ERRORS, _error_message((code, text)))


def _fields(body: Buffer) -> Iterator[tuple[int, int, int]]:
    """Iterate over (tag, start, stop) of every spec and instance in order.

    Other fields are skipped.
    """
    count = pos = 0
    end = len(body)
    try:
        while pos < end:
            tag, size, start = body[pos], body[pos + 1], pos + 2
            if (tag != _SPEC and tag != _INSTANCES) or size > 0x7F:  # else: no varint to read
                tag, start = from_varint(body, pos)
                if tag != _SPEC and tag != _INSTANCES:
                    pos = field_end(body, tag, start)
                    count += 1
                    _check_number(count)
                    continue
                size, start = from_varint(body, start)
            pos = start + size
            if pos > end:
                break
            count += 1
            if count > MAX_INSTANCES:
                _check_number(count)
            yield tag, start, pos
    except ValueError as error:
        raise _not_a_request(str(error)) from None
    except IndexError:
        pos = end + 1
    if pos > end:
        raise _not_a_request("it is truncated")


def _check_number(count: int) -> None:
    if count > MAX_INSTANCES:
        raise TooLarge(f"A request has at most {MAX_INSTANCES} instances")


def _not_a_request(reason: str) -> InvalidInputs:
    return InvalidInputs(f"The request is not a PredictRequest message: {reason}")


def _parse_spec(raw: bytes) -> Spec:
    if len(raw) > _MAX_SPEC_BYTES:
        raise TooLarge(f"servable_spec has {len(raw)} bytes, at most {_MAX_SPEC_BYTES} are taken")
    try:
        message = pb.ServableSpec.FromString(raw)
    except (DecodeError, UnicodeDecodeError):  # the latter from protobuf's Python implementation
        raise _not_a_request("servable_spec is not a ServableSpec") from None
    spec = Spec(message.name, message.method_name, message.version_number, raw)
    if len(_specs) >= _MAX_SPECS:  # only reached by requests for many unknown servables
        _specs.clear()
    _specs[raw] = spec
    return spec


def _error_message(failure: Failure) -> bytes:
    if failure is None:
        return b""
    code, text = failure
    message = (text or "Predict failed").encode("utf-8", "backslashreplace")
    return b"\x08" + to_varint(status.of(code).mindspore) + sized(0x12, message)
