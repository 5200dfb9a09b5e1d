"""Requests of protocol v2 for both transports, and the selection of outputs.

Regions of shared memory only have names here; other modules read them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mindspore_serving.core.buffers import Buffer, StoredBytes, in_memory
from mindspore_serving.core.signature import InstanceSignature
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire.v2.chunks import Form
from mindspore_serving.wire.v2.classification import classify
from mindspore_serving.wire.v2.datatypes import BYTES, datatype_of
from mindspore_serving.wire.v2.outputs import OutputTensor
from mindspore_serving.wire.v2.tensors import InputTensor, TensorBody

Parameter: TypeAlias = str | int | float | bool
Parameters: TypeAlias = Mapping[str, Any]

ENABLE_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
_REGION, _OFFSET, _SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"
BATCHED = InstanceSignature()
_CONTENT_TYPES = {"str": "str", "bytes": "bytes", "raw": "bytes"}


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a registered region of shared memory, in bytes."""

    name: str
    offset: int
    size: int


ReadRegion: TypeAlias = Callable[[Region], "Buffer | StoredBytes"]


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output in a request: its name and form, and the region to write it to, if any.

    With `num_classes` its answer has the largest values and their indices, as texts.
    """

    name: str
    is_binary: bool
    region: Region | None = None
    num_classes: int = 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request; without `outputs` the answer has all of them, in binary form if `is_binary`.

    `labels` are the names of classes by output.
    """

    id: str
    parameters: Parameters
    body: TensorBody
    outputs: tuple[RequestedOutput, ...] = ()
    is_binary: bool = True
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def codec(self) -> str:
        """Codec of the worker's reply, see `wire.worker_codec`."""
        outputs = self.outputs
        forms = {bool(output.is_binary or output.num_classes) for output in outputs}
        forms = forms or {self.is_binary}
        return "v2_both" if len(forms) > 1 else "v2_raw" if forms == {True} else "v2_json"

    def select(
        self, tensors: Sequence[OutputTensor]
    ) -> Iterator[tuple[OutputTensor, RequestedOutput]]:
        """Iterate over the outputs of the answer in order.

        Raises InvalidInputs for unknown ones, and for those that cannot be classified.
        """
        if not self.outputs:
            for tensor in tensors:
                yield tensor, RequestedOutput(tensor.name, self.is_binary)
            return
        by_name = {tensor.name: tensor for tensor in tensors}
        for output in self.outputs:
            if output.name not in by_name:
                raise InvalidInputs(
                    f"unexpected inference output '{output.name[:64]}', expected: "
                    f"{', '.join(by_name)}"
                )
            tensor = by_name[output.name]
            if output.num_classes:
                labels, is_batched = self.labels.get(output.name, ()), self.body.is_batched
                tensor = classify(tensor, output.num_classes, labels, is_batched=is_batched)
            yield tensor, output


def make_request(
    request_id: str,
    parameters: Parameters,
    inputs: Sequence[InputTensor],
    outputs: Sequence[RequestedOutput],
    *,
    is_binary: bool,
    signature: InstanceSignature = BATCHED,
) -> InferRequest:
    """Make a request to a method of `signature`, which decides if its parameter `batched` does not.

    Raises InvalidInputs for unsupported parameters, and for inputs with different numbers of
    instances.
    """
    _refuse(parameters)
    names = {output.name for output in outputs}
    if len(names) < len(outputs):
        raise InvalidInputs("two outputs have the same name")
    is_batched = parameters.get("batched", _counts_instances(inputs, signature))
    if not isinstance(is_batched, bool):
        raise InvalidInputs(f"parameter batched is {is_batched!r}, expected true or false")
    body = TensorBody(inputs, is_batched=is_batched)
    labels = {spec.name: spec.labels for spec in signature.outputs if spec.labels}
    return InferRequest(request_id, parameters, body, tuple(outputs), is_binary, labels)


def _counts_instances(inputs: Sequence[InputTensor], signature: InstanceSignature) -> bool:
    """Return whether the first dimensions count instances.

    Of a method that takes whole tensors they do if every input has one dimension more.
    """
    if signature.is_batched:
        return True
    ranks = {spec.name: len(spec.shape) for spec in signature.inputs if spec.shape is not None}
    more = {len(each.shape) - ranks[each.name] for each in inputs if each.name in ranks}
    return more == {1}


def make_input(
    name: str,
    datatype: str,
    shape: Sequence[int],
    parameters: Parameters,
    *,
    form: Form,
    data: Buffer | StoredBytes,
) -> InputTensor:
    """Make an input.  Raises InvalidInputs."""
    content_type, row = "", datatype_of(datatype)
    if row is BYTES:
        data = in_memory(data)
        content_type = _CONTENT_TYPES.get(str(parameters.get("content_type", "")), "")
    return InputTensor(name, row, tuple(shape), form, data, content_type)


def make_output(name: str, parameters: Parameters, *, is_binary: bool) -> RequestedOutput:
    """Make a requested output.  Raises InvalidInputs."""
    count = parameters.get("classification", 0)
    if type(count) is not int or count < 0:
        raise InvalidInputs(
            f"output '{name[:64]}': classification is {str(count)[:64]}, expected a number of "
            "classes"
        )
    region = region_of(name, parameters)
    return RequestedOutput(name, is_binary or region is not None, region, count)


def region_of(name: str, parameters: Parameters) -> Region | None:
    """Return the region of tensor `name`; None if it has none.  Raises InvalidInputs."""
    region, size = parameters.get(_REGION), parameters.get(_SIZE)
    offset = parameters.get(_OFFSET, 0)
    if region is None and size is None:
        return None
    numbers = [number for number in (size, offset) if type(number) is int and number >= 0]
    if not isinstance(region, str) or len(numbers) < 2:
        raise InvalidInputs(
            f"'{name[:64]}': expected both {_REGION}, a text, and {_SIZE}, a number of bytes; "
            f"{_OFFSET} is an optional number of bytes"
        )
    return Region(region, offset, size if type(size) is int else 0)


def region_parameters(region: Region, size: int) -> dict[str, Any]:
    """Return the parameters of an output that was written to `region`."""
    return {_REGION: region.name, _OFFSET: region.offset, _SIZE: size}


def check_fits(tensor: OutputTensor, region: Region) -> None:
    """Check the size of an output for a region.  Raises InvalidInputs."""
    if tensor.num_bytes > region.size:
        raise InvalidInputs(
            f"output '{tensor.name}' has {tensor.num_bytes} bytes, but its shared memory "
            f"'{region.name}' has {region.size}"
        )


def to_version(text: str) -> int:
    """Parse a version; "" is 0, the newest.  Raises InvalidInputs."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidInputs(f"version '{text[:64]}', expected a number")
    return int(text)


def _refuse(parameters: Parameters) -> None:
    for key in parameters:
        if key.startswith("triton_") and key != ENABLE_FINAL:
            raise InvalidInputs(f"parameter '{key[:64]}' is reserved")
    if parameters.get("sequence_id"):
        raise InvalidInputs("sequence_id: sequences of requests are not supported")
