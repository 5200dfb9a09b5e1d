"""Bodies of POST .../infer: a JSON object, followed by binary data of tensors or not."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from mindspore_serving.core.buffers import Buffer, StoredBytes
from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire import json_literals
from mindspore_serving.wire.json_shape import SMALL, Shape, check_shape
from mindspore_serving.wire.v2.chunks import Form
from mindspore_serving.wire.v2.datatypes import BY_DTYPE, BYTES
from mindspore_serving.wire.v2.outputs import OutputTensor
from mindspore_serving.wire.v2.request import (
    BATCHED,
    InferRequest,
    Parameter,
    ReadRegion,
    RequestedOutput,
    make_input,
    make_output,
    make_request,
    region_of,
)
from mindspore_serving.wire.v2.tensors import MAX_INPUTS, InputTensor

_CHUNK = 1 << 18  # bytes
MAX_OBJECTS = 8 * MAX_INPUTS  # in a body: inputs, outputs, their parameters
MAX_PART = 64 << 10  # bytes of a shape, or of parameters: decoded they use many times the memory
_NONE = msgspec.Raw(b"{}")
_Parameters: TypeAlias = dict[str, Parameter | None]
_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Input(msgspec.Struct):
    name: str
    shape: msgspec.Raw
    datatype: str
    parameters: msgspec.Raw = _NONE
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = _NONE


class _Body(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: msgspec.Raw = _NONE
    outputs: list[_Output] | None = None


class _OutputAnswer(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Answer(msgspec.Struct):
    model_name: str
    model_version: str
    id: str | msgspec.UnsetType
    outputs: list[_OutputAnswer]


_body = json_literals.RawDecoder[_Body](_Body)
_shape = msgspec.json.Decoder(list[_Int])
_parameters = msgspec.json.Decoder(_Parameters)
T = TypeVar("T")
_encoder = msgspec.json.Encoder()


def parse(
    body: Buffer,
    header_length: int | None,
    read_region: ReadRegion,
    *,
    signature: InstanceSignature = BATCHED,
) -> InferRequest:
    """Parse a body, whose first `header_length` bytes are JSON; None is all of them.

    `signature` is as in `make_request`.
    Raises InvalidInputs.
    """
    view = memoryview(body)
    if header_length is not None and not 0 <= header_length <= len(view):
        raise InvalidInputs(f"unexpected size for request JSON: {header_length} of {len(view)}")
    decoded = _decode(view if header_length is None else view[:header_length])
    tail = view[len(view) if header_length is None else header_length :]
    inputs, offset = [], 0
    for tensor in decoded.inputs:
        parameters = _decode_part(tensor.parameters, _parameters)
        size = parameters.get("binary_data_size")
        if size is None:
            form, data = _data_of(tensor, parameters, read_region)
        elif header_length is None:
            raise InvalidInputs(
                f"input '{tensor.name[:64]}' has binary_data_size, which needs the header "
                "Inference-Header-Content-Length"
            )
        else:
            form, data = "raw", _binary(tensor, tail, offset, size)
            offset += len(data)
        shape = _decode_part(tensor.shape, _shape)
        inputs.append(
            make_input(tensor.name, tensor.datatype, shape, parameters, form=form, data=data)
        )
    if offset != len(tail):
        raise InvalidInputs(f"unexpected additional input data: {len(tail) - offset} bytes")
    parameters = _decode_part(decoded.parameters, _parameters)
    is_binary = parameters.get("binary_data_output") is True
    outputs = [_output(output) for output in decoded.outputs or ()]
    return make_request(
        decoded.id, parameters, inputs, outputs, is_binary=is_binary, signature=signature
    )


def parse_raw(body: Buffer, inputs: Sequence[ValueSpec]) -> InferRequest:
    """Parse a body without JSON: one instance of the only input of a method.

    Raises InvalidInputs if there are several inputs, or its type or shape is unknown.
    """
    needed = [spec for spec in inputs if not spec.is_optional]
    spec = needed[0] if len(needed) == 1 else None
    row = None if spec is None or spec.dtype is None else BY_DTYPE.get(spec.dtype)
    if spec is None or row is None:
        raise InvalidInputs(
            "a body without JSON (Inference-Header-Content-Length: 0) is for models with one input "
            "of a known type"
        )
    if row is BYTES:
        data = len(body).to_bytes(4, "little") + bytes(body)
        tensor = InputTensor(spec.name, row, (1,), "raw", data, spec.dtype or "")
    else:
        shape = _infer_shape(spec, len(body) // row.size)
        tensor = InputTensor(spec.name, row, (1, *shape), "raw", body)
    return make_request("", {}, [tensor], (), is_binary=True)


def answer(
    model: str,
    version: int,
    request_id: str,
    selected: Sequence[tuple[OutputTensor, RequestedOutput]],
) -> tuple[bytes, list[memoryview]]:
    """Return the JSON of an answer, and the binary data of tensors that follow it."""
    outputs, tail = [], []
    for tensor, output in selected:
        shown = _OutputAnswer(tensor.name, tensor.datatype, tensor.shape)
        is_here = output.region is None  # clients treat any parameters as those of binary data
        if is_here and output.is_binary:
            shown.parameters = {"binary_data_size": tensor.num_bytes}
            tail += tensor.raw
        elif is_here:
            shown.data = msgspec.Raw(tensor.json_data)
        outputs.append(shown)
    return _encoder.encode(_Answer(model, str(version), request_id or msgspec.UNSET, outputs)), tail


def _decode(text: memoryview) -> _Body:
    if len(text) > SMALL and _count_braces(text) > MAX_OBJECTS:
        check_shape(text, Shape(len(text), MAX_OBJECTS))  # an exact count, without braces in texts
    return _checked(_body, text)


def _count_braces(text: memoryview) -> int:
    """Count in parts: allocating a copy of all the text takes longer than counting."""
    starts = range(0, len(text), _CHUNK)
    return sum(bytes(text[start : start + _CHUNK]).count(b"{") for start in starts)


def _decode_part(raw: msgspec.Raw, decoder: "msgspec.json.Decoder[T]") -> T:
    if len(memoryview(raw)) > MAX_PART:
        raise InvalidInputs(f"a shape or parameters of over {MAX_PART} bytes")
    return _checked(decoder, raw)


def _checked(
    decoder: "msgspec.json.Decoder[T] | json_literals.Decoder[T]", text: memoryview | msgspec.Raw
) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = str(error).replace("Object missing required field", "missing field")
        problem = problem.replace(" - at `$.", " - at `")
        raise InvalidInputs(f"failed to parse the request JSON: {problem}") from None
    except RecursionError:
        raise InvalidInputs("the request JSON is nested too deeply") from None


def _output(output: _Output) -> RequestedOutput:
    parameters = _decode_part(output.parameters, _parameters)
    is_binary = parameters.get("binary_data") is True
    return make_output(output.name, parameters, is_binary=is_binary)


def _data_of(
    tensor: _Input, parameters: _Parameters, read_region: ReadRegion
) -> tuple[Form, Buffer | StoredBytes]:
    region = region_of(tensor.name, parameters)
    if region is not None:
        if tensor.data is not msgspec.UNSET:
            raise InvalidInputs(f"input '{tensor.name[:64]}' has data and shared memory")
        return "raw", read_region(region)
    if tensor.data is msgspec.UNSET:
        raise InvalidInputs(f"input '{tensor.name[:64]}' has no data")
    return "json", memoryview(tensor.data)


def _binary(tensor: _Input, tail: memoryview, offset: int, size: object) -> memoryview:
    if type(size) is not int or size < 0:
        raise InvalidInputs(f"input '{tensor.name[:64]}' has binary_data_size {size!r}")
    if tensor.data is not msgspec.UNSET:
        raise InvalidInputs(f"input '{tensor.name[:64]}' has data and binary_data_size")
    if offset + size > len(tail):
        missing = offset + size - len(tail)
        raise InvalidInputs(
            f"unexpected size for input '{tensor.name[:64]}', expecting {missing} additional bytes"
        )
    return tail[offset : offset + size]


def _infer_shape(spec: ValueSpec, count: int) -> tuple[int, ...]:
    """Return the shape of `count` elements.  Raises InvalidInputs if several sizes are free."""
    known = 1
    for size in spec.shape or ():
        known *= 1 if size is None else size
    num_free = len([size for size in spec.shape or () if size is None])
    if spec.shape is None or num_free > 1:
        raise InvalidInputs(
            f"input '{spec.name}' has no shape that the size of a body without JSON determines"
        )
    return tuple(count // max(1, known) if size is None else size for size in spec.shape)
