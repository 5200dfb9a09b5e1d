"""Takes the contents of tensors out of a ModelInferRequest before protobuf parses the rest: parsed,
they would take many times as much memory, and nobody reads them here.

Knows the fields that hold them, and no others.
"""

from typing import NamedTuple

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.errors import TooLarge
from mindspore_serving.wire.ms_instance import field_end, from_varint, head
from mindspore_serving.wire.v2.tensors import MAX_INPUTS

_INPUT, _RAW_INPUT = 0x2A, 0x3A  # tags of ModelInferRequest: field << 3 | 2
_CONTENTS = 0x2A  # of an input
MAX_FIELDS = 8 * MAX_INPUTS  # of a message and its inputs together: also names, shapes, parameters


class TensorContents(NamedTuple):
    """What was taken out: `raw` in order, and for each input its InferTensorContents, as bytes, or
    None.
    """

    raw: list[memoryview]
    typed: "list[Buffer | None]"


class _Taker:
    def __init__(self, body: bytes) -> None:
        self._body, self._view = body, memoryview(body)
        self._num_fields = 0
        self.contents = TensorContents([], [])

    def take(self) -> list[Buffer]:
        """What is left.  Raises ValueError or IndexError for what is no message, TooLarge."""
        left: list[Buffer] = []
        place, end = 0, len(self._body)
        while place < end:
            tag, start, stop = self._field(place, end)
            if tag == _RAW_INPUT:
                self.contents.raw.append(self._view[start:stop])
            elif tag == _INPUT:
                left += self._take_typed(start, stop)
            else:
                left.append(self._view[place:stop])
            place = stop
        if len(self.contents.raw) > MAX_INPUTS:
            raise TooLarge(f"over {MAX_INPUTS} raw_input_contents")
        return left

    def _take_typed(self, place: int, end: int) -> list[Buffer]:
        """What is left of an input."""
        left: list[Buffer] = []
        typed: list[Buffer] = []
        while place < end:
            tag, start, stop = self._field(place, end)
            if tag == _CONTENTS:
                typed.append(self._view[start:stop])
            else:
                left.append(self._view[place:stop])
            place = stop
        # Several are one message: that is what their bytes are one after another.
        self.contents.typed.append(b"".join(typed) if len(typed) > 1 else next(iter(typed), None))
        return [head(_INPUT, sum(map(len, left))), *left]

    def _field(self, place: int, end: int) -> tuple[int, int, int]:
        """The tag of the field at `place`, where its value begins, and where it ends."""
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise TooLarge(f"a ModelInferRequest of over {MAX_FIELDS} fields")
        tag, start = from_varint(self._body, place)
        if tag & 7 == 2:
            size, start = from_varint(self._body, start)
            stop = start + size
        else:
            stop = field_end(self._body, tag, start)
        if stop > end:
            raise ValueError
        return tag, start, stop


def take_contents(body: bytes) -> tuple[bytes, TensorContents]:
    """A ModelInferRequest without contents, and those.  Raises ValueError or IndexError for what is
    no message, and TooLarge.
    """
    taker = _Taker(body)
    left = taker.take()
    return b"".join(left), taker.contents
