"""A request of protocol v2 as both transports make it, and which outputs its answer shows.

Shared memory is named here and read elsewhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.core.buffers import Buffer, StoredBytes, in_memory
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire.v2.chunks import Form
from mindspore_serving.wire.v2.datatypes import BYTES, datatype_of
from mindspore_serving.wire.v2.outputs import OutputTensor
from mindspore_serving.wire.v2.tensors import InputTensor, TensorBody

Parameter: TypeAlias = str | int | float | bool
Parameters: TypeAlias = Mapping[str, Any]

ENABLE_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
_REGION, _OFFSET, _SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"
_CONTENT_TYPES = {"str": "str", "bytes": "bytes", "raw": "bytes"}


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a shared-memory region that the client has registered; in bytes."""

    name: str
    offset: int
    size: int


ReadRegion: TypeAlias = Callable[[Region], "Buffer | StoredBytes"]


@dataclass(frozen=True, slots=True)
class WantedOutput:
    name: str
    is_binary: bool
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class InferRequest:
    """`outputs` are those that the client lists; without any, all are wanted, in binary form if
    `is_binary`.
    """

    id: str
    parameters: Parameters
    body: TensorBody
    outputs: tuple[WantedOutput, ...] = ()
    is_binary: bool = True

    @property
    def codec(self) -> str:
        """What the worker writes: see `wire.worker_codec`."""
        forms = {one.is_binary for one in self.outputs} or {self.is_binary}
        return "v2_both" if len(forms) > 1 else "v2_raw" if forms == {True} else "v2_json"

    def select(
        self, tensors: Sequence[OutputTensor]
    ) -> Iterator[tuple[OutputTensor, WantedOutput]]:
        """What the answer shows, in its order.  Raises InvalidInputs for an output that is not."""
        if not self.outputs:
            for tensor in tensors:
                yield tensor, WantedOutput(tensor.name, self.is_binary)
            return
        found = {tensor.name: tensor for tensor in tensors}
        for wanted in self.outputs:
            if wanted.name not in found:
                raise InvalidInputs(
                    f"unexpected inference output '{wanted.name[:64]}', expected: "
                    f"{', '.join(found)}"
                )
            yield found[wanted.name], wanted


def make_request(
    request_id: str,
    parameters: Parameters,
    inputs: Sequence[InputTensor],
    outputs: Sequence[WantedOutput],
    *,
    is_binary: bool,
) -> InferRequest:
    """Raises InvalidInputs for a parameter that cannot be respected, and for inputs that do not
    fit each other.
    """
    _refuse(parameters)
    names = {one.name for one in outputs}
    if len(names) < len(outputs):
        raise InvalidInputs("two outputs have the same name")
    is_batched = parameters.get("batched", True)
    if not isinstance(is_batched, bool):
        raise InvalidInputs(f"parameter batched is {is_batched!r}, expected true or false")
    body = TensorBody(inputs, is_batched=is_batched)
    return InferRequest(request_id, parameters, body, tuple(outputs), is_binary)


def make_input(
    name: str,
    datatype: str,
    shape: Sequence[int],
    parameters: Parameters,
    *,
    form: Form,
    data: Buffer | StoredBytes,
) -> InputTensor:
    """Raises InvalidInputs."""
    content_type, row = "", datatype_of(datatype)
    if row is BYTES:
        data = in_memory(data)
        content_type = _CONTENT_TYPES.get(str(parameters.get("content_type", "")), "")
    return InputTensor(name, row, tuple(shape), form, data, content_type)


def make_output(name: str, parameters: Parameters, *, is_binary: bool) -> WantedOutput:
    """Raises InvalidInputs."""
    if parameters.get("classification"):
        raise InvalidInputs(f"output '{name[:64]}': classification is not available")
    region = region_of(name, parameters)
    return WantedOutput(name, is_binary or region is not None, region)


def region_of(name: str, parameters: Parameters) -> Region | None:
    """The shared memory of tensor `name`; None if it is not there.  Raises InvalidInputs."""
    region, size = parameters.get(_REGION), parameters.get(_SIZE)
    offset = parameters.get(_OFFSET, 0)
    if region is None and size is None:
        return None
    numbers = [one for one in (size, offset) if type(one) is int and one >= 0]
    if not isinstance(region, str) or len(numbers) < 2:
        raise InvalidInputs(
            f"'{name[:64]}': {_REGION} and {_SIZE} come together, as a text and a number of bytes; "
            f"{_OFFSET}, if given, is a number of bytes"
        )
    return Region(region, offset, size if type(size) is int else 0)


def region_parameters(region: Region, size: int) -> dict[str, Any]:
    """What an answer says of an output that was written to `region`."""
    return {_REGION: region.name, _OFFSET: region.offset, _SIZE: size}


def check_fits(tensor: OutputTensor, region: Region) -> None:
    """Raises InvalidInputs."""
    if tensor.num_bytes > region.size:
        raise InvalidInputs(
            f"output '{tensor.name}' has {tensor.num_bytes} bytes, its shared memory "
            f"'{region.name}' has {region.size}"
        )


def to_version(text: str) -> int:
    """The number of a version; 0, the newest, for "".  Raises InvalidInputs."""
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
        raise InvalidInputs("sequence_id: requests that belong together are not available")
