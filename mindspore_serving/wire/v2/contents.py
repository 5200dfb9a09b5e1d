"""Removal of tensor contents from a ModelInferRequest before protobuf parses the rest.

Parsed contents would use many times the memory, and the master does not read them.  Knows the
fields that have contents, and no others.
"""

from typing import NamedTuple

from mindspore_serving.core.buffers import Buffer
from mindspore_serving.errors import TooLarge
from mindspore_serving.wire.ms_instance import field_end, from_varint, head
from mindspore_serving.wire.v2.tensors import MAX_INPUTS

_INPUT, _RAW_INPUT = 0x2A, 0x3A  # tags of ModelInferRequest: field << 3 | 2
_CONTENTS = 0x2A  # of an input
MAX_FIELDS = (
    8 * MAX_INPUTS
)  # of a message and its inputs together, with names, shapes and parameters


class TensorContents(NamedTuple):
    """Removed contents: `raw`, and InferTensorContents of each input (`typed`) or None."""

    raw: list[memoryview]
    typed: "list[Buffer | None]"


class _Extractor:
    def __init__(self, body: Buffer) -> None:
        self._body, self._view = body, memoryview(body)
        self._num_fields = 0
        self.contents = TensorContents([], [])

    def extract(self) -> list[Buffer]:
        """Return the rest of the message.

        Raises ValueError or IndexError for an invalid message, and TooLarge.
        """
        rest: list[Buffer] = []
        offset, end = 0, len(self._body)
        while offset < end:
            tag, start, stop = self._field(offset, end)
            if tag == _RAW_INPUT:
                self.contents.raw.append(self._view[start:stop])
            elif tag == _INPUT:
                rest += self._extract_typed(start, stop)
            else:
                rest.append(self._view[offset:stop])
            offset = stop
        if len(self.contents.raw) > MAX_INPUTS:
            raise TooLarge(f"over {MAX_INPUTS} raw_input_contents")
        return rest

    def _extract_typed(self, offset: int, end: int) -> list[Buffer]:
        """Return the rest of an input."""
        rest: list[Buffer] = []
        typed: list[Buffer] = []
        while offset < end:
            tag, start, stop = self._field(offset, end)
            if tag == _CONTENTS:
                typed.append(self._view[start:stop])
            else:
                rest.append(self._view[offset:stop])
            offset = stop
        # Concatenated messages are one merged message of protobuf.
        self.contents.typed.append(b"".join(typed) if len(typed) > 1 else next(iter(typed), None))
        return [head(_INPUT, sum(map(len, rest))), *rest]

    def _field(self, offset: int, end: int) -> tuple[int, int, int]:
        """Return the tag of the field at `offset`, and the begin and the end of its value."""
        self._num_fields += 1
        if self._num_fields > MAX_FIELDS:
            raise TooLarge(f"a ModelInferRequest of over {MAX_FIELDS} fields")
        tag, start = from_varint(self._body, offset)
        if tag & 7 == 2:
            size, start = from_varint(self._body, start)
            stop = start + size
        else:
            stop = field_end(self._body, tag, start)
        if stop > end:
            raise ValueError
        return tag, start, stop


def take_contents(body: Buffer) -> tuple[bytes, TensorContents]:
    """Return a ModelInferRequest without contents, and the contents.

    Raises ValueError or IndexError for an invalid message, and TooLarge.
    """
    extractor = _Extractor(body)
    rest = extractor.extract()
    return b"".join(rest), extractor.contents
