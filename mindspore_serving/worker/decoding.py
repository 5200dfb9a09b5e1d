"""Decode the instances of a part, and name the instance that cannot be decoded."""

from collections.abc import Sequence

from mindspore_serving import wire
from mindspore_serving.core.value import Instance
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.ipc.messages import RequestPart
from mindspore_serving.wire import Chunk, splitting, status
from mindspore_serving.wire.tensor import BadTensor
from mindspore_serving.worker.job import PreparedMethod


def decode(part: RequestPart, chunks: Sequence[Chunk], program: PreparedMethod) -> list[Instance]:
    """Decode the inputs of each instance in `part`.

    Raises ServingError, with the index of the bad instance in the request if there are several.
    """
    codec = wire.worker_codec(part.codec)
    try:
        return codec.decode(chunks, program.method, program.label)
    except InvalidInputs as error:
        index = _first_bad(part, chunks, program)
        if index is None or type(error) not in (InvalidInputs, BadTensor):
            raise
        raise InvalidInputs(status.with_index(str(error), index)) from None


def _first_bad(part: RequestPart, chunks: Sequence[Chunk], program: PreparedMethod) -> int | None:
    """Return the index in the request of the first instance that cannot be decoded.

    None if the request has a single instance or is malformed as a whole.
    """
    try:
        codec, pieces = splitting.resplit(part.codec, chunks)
    except InvalidInputs:
        return None
    if len(pieces) == 1 and part.first == 0:
        return None
    decoder = wire.worker_codec(codec)
    for index, piece in enumerate(pieces):
        try:
            decoder.decode([piece], program.method, program.label)
        except InvalidInputs:
            return part.first + index
    return None
