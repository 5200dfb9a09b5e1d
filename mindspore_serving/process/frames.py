"""Frames over a stream socket: a length (uint32, little-endian), then that many bytes.

The only place that writes and reads lengths.  Does not know the content of frames.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mindspore_serving.errors import TooLarge

MAX_FRAME = 1 << 30  # bytes; larger than any of our messages: a broken or hostile peer
_LENGTH = struct.Struct("<I")

T = TypeVar("T")


def pack(content: bytes) -> bytes:
    """Return the frame of `content`."""
    return _LENGTH.pack(len(content)) + content


class FrameDecoder(Generic[T]):
    """Incremental decoder: bytes in, the decoded content of each complete frame out.

    Raises TooLarge for a frame of over `limit` bytes (the attribute may be changed), and whatever
    `decode` raises.
    """

    def __init__(self, decode: Callable[[memoryview], T], limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._decode = decode
        self._rest = bytearray()
        self._needed = 0  # bytes that `_rest` must have to hold a complete frame

    def feed(self, data: "bytes | memoryview") -> Iterator[T]:
        """Iterate over the decoded content of the frames that `data` completes."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data, self._rest = memoryview(self._rest), bytearray()
        start, end, self._needed = 0, len(data), _LENGTH.size
        view = memoryview(data)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(view, start)
            if length > self.limit:
                raise TooLarge(f"a frame of {length} bytes, at most {self.limit} are accepted")
            if end - start - 4 < length:
                self._needed = length + 4
                break
            yield self._decode(view[start + 4 : start + 4 + length])
            start += 4 + length
        self._rest += view[start:]
