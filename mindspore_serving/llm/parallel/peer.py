"""A connection between two machines of a group of ranks: messages, frames, notices, arrays.

A notice has a head of its own instead of the length of `process.frames`, so that TLS decrypts its
array straight into the memory that the ranks share.  Knows no rank and no group.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec
import numpy as np

from mindspore_serving.errors import TooLarge
from mindspore_serving.llm.parallel.bridge_messages import FromMachine
from mindspore_serving.llm.parallel.links import PART_BYTES, Bytes
from mindspore_serving.process.frames import MAX_FRAME

NOTICE, MESSAGE, FRAME = 1, 2, 3
_HEAD = struct.Struct("<BBHHHQQQQ")  # kind, is packed, source, target, 0, the tag of `links`
_DECODER = msgspec.msgpack.Decoder(FromMachine)
_ENCODER = msgspec.msgpack.Encoder()
MIN_PACKED = 1 << 10  # bytes of an array from which it is worth a look
MAX_UNSENT = 1 << 30  # bytes; credits of rings and steps allow far less


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice of rank `source` to rank `target`; its array has `num_bytes`."""

    source: int
    target: int
    step: int
    region: int
    number: int
    num_bytes: int


class Receiver(Protocol):
    """User of connections."""

    def space(self, peer: "Peer", notice: Notice) -> Bytes:
        """Return where the array of `notice` goes.  Raises ValueError for an invalid notice."""
        ...

    def on_notice(self, peer: "Peer", notice: Notice) -> None:
        """Handle a notice whose array is there."""
        ...

    def on_message(self, peer: "Peer", message: FromMachine) -> None:
        """Handle a message.  Raises ValueError for one that is not expected."""
        ...

    def on_frame(self, peer: "Peer", frame: bytes) -> None:
        """Handle a frame of rank 0.  Raises ValueError where none is expected."""
        ...

    def on_lost(self, peer: "Peer", why: str) -> None:
        """Handle the end of the connection."""
        ...


class Peer(asyncio.BufferedProtocol):
    """An end of a connection to another machine of a group; on the event loop's thread only.

    `machine` is the number of that machine, -1 until it has greeted; `num_received` counts what
    arrives.
    """

    def __init__(self, receiver: Receiver, machine: int = -1) -> None:
        self.machine = machine
        self.num_received = 0
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(_HEAD.size)
        self._target = memoryview(self._head)  # what is received now: a head, or what follows
        self._num_filled = 0
        self._after: Callable[[], None] = self._on_head
        self._problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._target[self._num_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.num_received += 1
        self._num_filled += nbytes
        if self._num_filled < len(self._target):
            return
        try:
            self._after()
        except (ValueError, LookupError, TooLarge, msgspec.MsgspecError) as error:
            self.abort(f"it sent what is not expected: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._receiver.on_lost(self, self._problem or str(exc or "the connection was closed"))

    def send(self, message: msgspec.Struct) -> None:
        """Send a message."""
        self._send(MESSAGE, _ENCODER.encode(message))

    def send_frame(self, frame: "bytes | memoryview") -> None:
        """Send the content of a frame of rank 0."""
        self._send(FRAME, frame)

    def send_notice(self, notice: Notice, array: Bytes) -> None:
        """Send a notice and its array, which stays as it is until it is answered.

        Floats of which all have the precision of bfloat16 are sent as that.
        """
        packed = packed_of(array)
        tag = (notice.step, notice.region, notice.number, notice.num_bytes)
        is_packed = packed is not None
        head = _HEAD.pack(NOTICE, is_packed, notice.source, notice.target, 0, *tag)
        self._write(head, (array if packed is None else packed.view(np.uint8)).data)

    def abort(self, why: str) -> None:
        """Close the connection at once."""
        self._problem = self._problem or why
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after what was sent."""
        if self._transport is not None:
            self._transport.close()

    def _send(self, kind: int, content: "bytes | memoryview") -> None:
        self._write(_HEAD.pack(kind, 0, 0, 0, 0, 0, 0, 0, len(content)), memoryview(content))

    def _write(self, head: bytes, content: memoryview) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            self.abort("it reads nothing")
        elif len(content) < PART_BYTES >> 6:
            self._transport.write(b"".join((head, content)))
        else:
            self._transport.write(head)
            self._transport.write(content)

    def _receive(self, target: memoryview, after: Callable[[], None]) -> None:
        """Fill `target`, then call `after`."""
        self._target, self._num_filled, self._after = target, 0, after
        if not len(target):
            after()

    def _on_head(self) -> None:
        kind, is_packed, source, target, _, step, region, number, count = _HEAD.unpack(self._head)
        if kind == NOTICE:
            notice = Notice(source, target, step, region, number, count)
            space = self._receiver.space(self, notice)
            if is_packed:
                self._receive_packed(notice, space)
            else:
                self._receive(space.data, lambda: self._on_array(notice))
            return
        if kind not in (MESSAGE, FRAME):
            raise ValueError(f"kind {kind} is unknown")
        if count > MAX_FRAME:
            raise TooLarge(f"a message of {count} bytes, at most {MAX_FRAME} are accepted")
        content = bytearray(count)
        self._receive(memoryview(content), lambda: self._on_content(kind, content))

    def _receive_packed(self, notice: Notice, space: Bytes) -> None:
        content = np.empty(len(space) // 2, np.uint8)

        def unpack() -> None:
            halves = space.view(np.uint16)
            halves[::2], halves[1::2] = 0, content.view(np.uint16)
            self._on_array(notice)

        self._receive(content.data, unpack)

    def _on_array(self, notice: Notice) -> None:
        self._await_head()
        self._receiver.on_notice(self, notice)

    def _on_content(self, kind: int, content: bytearray) -> None:
        self._await_head()
        if kind == MESSAGE:
            self._receiver.on_message(self, _DECODER.decode(content))
        else:
            self._receiver.on_frame(self, bytes(content))

    def _await_head(self) -> None:
        self._target, self._num_filled, self._after = memoryview(self._head), 0, self._on_head


def packed_of(array: Bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint16]] | None":
    """Return the upper halves of an array of float32 if all the lower ones are 0, else None.

    These are the floats in bfloat16.
    """
    if len(array) < MIN_PACKED or len(array) % 4:
        return None
    halves = array.view(np.uint16)  # little-endian, as all processors of Linux wheels
    if halves[::2].any():
        return None
    return np.ascontiguousarray(halves[1::2])
