"""ModelInferRequest and ModelInferResponse, the messages of GRPCInferenceService.

Contents of tensors are views of the request, and are not copied until an answer is joined.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mindspore_serving.core.buffers import Buffer, StoredBytes
from mindspore_serving.core.signature import InstanceSignature
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.proto import inference_pb2 as pb
from mindspore_serving.wire.ms_instance import head, sized
from mindspore_serving.wire.v2.chunks import Form
from mindspore_serving.wire.v2.contents import TensorContents, take_contents
from mindspore_serving.wire.v2.outputs import OutputTensor
from mindspore_serving.wire.v2.request import (
    BATCHED,
    InferRequest,
    ReadRegion,
    Region,
    RequestedOutput,
    make_input,
    make_output,
    make_request,
    region_of,
    region_parameters,
    to_version,
)

_ID, _OUTPUT, _RAW_OUTPUT = 0x1A, 0x2A, 0x32  # tags: field << 3 | 2
_ERROR, _RESPONSE = 0x0A, 0x12  # of ModelStreamInferResponse


class ModelTarget(NamedTuple):
    """The model of a request; version 0 is the newest."""

    model: str
    version: int


def read(body: Buffer) -> tuple[pb.ModelInferRequest, TensorContents]:
    """Parse a ModelInferRequest without contents; return it and the contents.

    Raises InvalidInputs.
    """
    try:
        rest, contents = take_contents(body)
        return pb.ModelInferRequest.FromString(rest), contents
    except (DecodeError, ValueError, IndexError):
        raise InvalidInputs("the request is not a valid ModelInferRequest") from None


def target_of(message: pb.ModelInferRequest) -> ModelTarget:
    """Return the model of a request.  Raises InvalidInputs."""
    return ModelTarget(message.model_name, to_version(message.model_version))


def parse(
    message: pb.ModelInferRequest,
    contents: TensorContents,
    read_region: ReadRegion,
    *,
    signature: InstanceSignature = BATCHED,
) -> InferRequest:
    """Make the request of a message and its contents, see `make_request`.  Raises InvalidInputs."""
    inputs, raw = [], iter(contents.raw)
    for tensor, typed in zip(message.inputs, contents.typed, strict=True):
        parameters = to_parameters(tensor.parameters)
        region = region_of(tensor.name, parameters)
        form: Form = "raw"
        data: Buffer | StoredBytes
        if region is not None:
            data = read_region(region)
        elif contents.raw:
            data = _next(raw, tensor.name, typed)
        else:
            form, data = "typed", b"" if typed is None else typed
        inputs.append(
            make_input(tensor.name, tensor.datatype, tensor.shape, parameters, form=form, data=data)
        )
    if next(raw, None) is not None:
        count = len(contents.raw)
        raise InvalidInputs(
            f"{count} raw_input_contents are more than the inputs without other contents"
        )
    outputs = [
        make_output(output.name, to_parameters(output.parameters), is_binary=True)
        for output in message.outputs
    ]
    parameters = to_parameters(message.parameters)
    return make_request(
        message.id, parameters, inputs, outputs, is_binary=True, signature=signature
    )


def to_parameters(parameters: Any) -> dict[str, Any]:
    """Return the values of a map of InferParameter or ModelRepositoryParameter."""
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "", None)
        for key, value in parameters.items()
    }


def answer(
    target: ModelTarget,
    request_id: str,
    selected: Sequence[tuple[OutputTensor, RequestedOutput]],
    parameters: dict[str, bool] | None = None,
) -> bytes:
    """Return an encoded ModelInferResponse."""
    parts: list[Any] = [_head(target, tuple((parameters or {}).items()))]
    parts.append(sized(_ID, request_id.encode()))
    tail: list[Any] = []
    for tensor, output in selected:
        if output.region is None:
            parts.append(_output(tensor.name, tensor.datatype, tensor.shape))
            tail += head(_RAW_OUTPUT, tensor.num_bytes), *tensor.raw
        else:
            parts.append(_in_region(tensor, output.region))
            tail.append(head(_RAW_OUTPUT, 0))
    return b"".join(parts + tail)


def chunk(response: bytes) -> bytes:
    """Return an encoded ModelStreamInferResponse."""
    return sized(_RESPONSE, response)


def failure(text: str, request_id: str) -> bytes:
    """Return the encoded ModelStreamInferResponse of a failed request."""
    clean = text.encode("utf-8", "backslashreplace")
    return sized(_ERROR, clean) + sized(_RESPONSE, sized(_ID, request_id.encode()))


def _next(raw: Iterator[memoryview], name: str, typed: "Buffer | None") -> memoryview:
    if typed is not None:
        raise InvalidInputs(
            f"input '{name[:64]}' has contents in a request with raw_input_contents"
        )
    contents = next(raw, None)
    if contents is None:
        raise InvalidInputs(f"input '{name[:64]}' has no raw_input_contents")
    return contents


@lru_cache(maxsize=1024)
def _head(target: ModelTarget, parameters: tuple[tuple[str, bool], ...]) -> bytes:
    response = pb.ModelInferResponse(model_name=target.model, model_version=str(target.version))
    for name, value in parameters:
        response.parameters[name].bool_param = value
    return bytes(response.SerializeToString())


@lru_cache(maxsize=4096)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    output = pb.ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
    return sized(_OUTPUT, output.SerializeToString())


def _in_region(tensor: OutputTensor, region: Region) -> bytes:
    output = pb.ModelInferResponse.InferOutputTensor(
        name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
    )
    for name, value in region_parameters(region, tensor.num_bytes).items():
        if isinstance(value, str):
            output.parameters[name].string_param = value
        else:
            output.parameters[name].int64_param = value
    return sized(_OUTPUT, output.SerializeToString())
