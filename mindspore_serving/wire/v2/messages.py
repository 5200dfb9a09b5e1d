"""ModelInferRequest and ModelInferResponse, the messages of GRPCInferenceService.

The contents of tensors are views of a request, and are not copied before an answer is joined.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mindspore_serving.core.buffers import Buffer, StoredBytes
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.proto import inference_pb2 as pb
from mindspore_serving.wire.ms_instance import head, sized
from mindspore_serving.wire.v2.chunks import Form
from mindspore_serving.wire.v2.contents import TensorContents, take_contents
from mindspore_serving.wire.v2.outputs import OutputTensor
from mindspore_serving.wire.v2.request import (
    InferRequest,
    ReadRegion,
    WantedOutput,
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
    """The model a request is for; version 0 is the newest."""

    model: str
    version: int


def read(body: bytes) -> tuple[pb.ModelInferRequest, TensorContents]:
    """A ModelInferRequest without contents of tensors, and those.  Raises InvalidInputs."""
    try:
        rest, contents = take_contents(body)
        return pb.ModelInferRequest.FromString(rest), contents
    except (DecodeError, ValueError, IndexError):
        raise InvalidInputs("the request is no ModelInferRequest") from None


def target_of(message: pb.ModelInferRequest) -> ModelTarget:
    """Raises InvalidInputs."""
    return ModelTarget(message.model_name, to_version(message.model_version))


def parse(
    message: pb.ModelInferRequest, contents: TensorContents, read_region: ReadRegion
) -> InferRequest:
    """Raises InvalidInputs naming what is wrong."""
    inputs, left = [], iter(contents.raw)
    for one, typed in zip(message.inputs, contents.typed, strict=True):
        parameters = to_parameters(one.parameters)
        region = region_of(one.name, parameters)
        form: Form = "raw"
        data: Buffer | StoredBytes
        if region is not None:
            data = read_region(region)
        elif contents.raw:
            data = _next(left, one.name, typed)
        else:
            form, data = "typed", b"" if typed is None else typed
        inputs.append(
            make_input(one.name, one.datatype, one.shape, parameters, form=form, data=data)
        )
    if next(left, None) is not None:
        count = len(contents.raw)
        raise InvalidInputs(f"{count} raw_input_contents, more than there are inputs for them")
    outputs = [
        make_output(one.name, to_parameters(one.parameters), is_binary=True)
        for one in message.outputs
    ]
    parameters = to_parameters(message.parameters)
    return make_request(message.id, parameters, inputs, outputs, is_binary=True)


def to_parameters(found: Any) -> dict[str, Any]:
    """The values of a map of InferParameter or ModelRepositoryParameter."""
    return {
        key: getattr(one, one.WhichOneof("parameter_choice") or "", None)
        for key, one in found.items()
    }


def answer(
    target: ModelTarget,
    request_id: str,
    selected: Sequence[tuple[OutputTensor, WantedOutput]],
    parameters: dict[str, bool] | None = None,
) -> bytes:
    """A ModelInferResponse."""
    parts: list[Any] = [_head(target, tuple((parameters or {}).items()))]
    parts.append(sized(_ID, request_id.encode()))
    tail: list[Any] = []
    for tensor, wanted in selected:
        if wanted.region is None:
            parts.append(_output(tensor.name, tensor.datatype, tensor.shape))
            tail += head(_RAW_OUTPUT, tensor.num_bytes), *tensor.raw
        else:
            parts.append(_in_region(tensor, wanted))
            tail.append(head(_RAW_OUTPUT, 0))
    return b"".join(parts + tail)


def piece(response: bytes) -> bytes:
    """A ModelStreamInferResponse."""
    return sized(_RESPONSE, response)


def failure(text: str, request_id: str) -> bytes:
    """The ModelStreamInferResponse of a request that failed."""
    clean = text.encode("utf-8", "backslashreplace")
    return sized(_ERROR, clean) + sized(_RESPONSE, sized(_ID, request_id.encode()))


def _next(left: Iterator[memoryview], name: str, typed: "Buffer | None") -> memoryview:
    if typed is not None:
        raise InvalidInputs(
            f"input '{name[:64]}' has contents in a request with raw_input_contents"
        )
    found = next(left, None)
    if found is None:
        raise InvalidInputs(f"input '{name[:64]}' has none of the raw_input_contents")
    return found


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


def _in_region(tensor: OutputTensor, wanted: WantedOutput) -> bytes:
    assert wanted.region is not None
    output = pb.ModelInferResponse.InferOutputTensor(
        name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
    )
    for name, value in region_parameters(wanted.region, tensor.num_bytes).items():
        if isinstance(value, str):
            output.parameters[name].string_param = value
        else:
            output.parameters[name].int64_param = value
    return sized(_OUTPUT, output.SerializeToString())
