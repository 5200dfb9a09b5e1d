"""Frames of HTTP/2 (RFC 9113, 4 and 6): their types, flags, errors, settings, and their bytes."""

import struct
from collections.abc import Callable
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE = 9
MAX_WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 16_384  # bytes of a payload
_MAX_FRAME_SETTING = (1 << 24) - 1
_MAX_SETTINGS = 32  # of a frame; there are six, and each can change the windows of all streams
_HEAD = struct.Struct(">IBI")  # length and type, flags, stream
_SETTING = struct.Struct(">HI")
_U32 = struct.Struct(">I")


class FrameType(IntEnum):
    """Types of frames; others are ignored."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag:
    """Flags of frames: plain numbers, as those of `enum` cost a microsecond to combine."""

    END_STREAM = ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class ErrorCode(IntEnum):
    """Reasons why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """Settings that one side tells the other; unknown ones are ignored."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6
    ENABLE_CONNECT_PROTOCOL = 8


class ConnectionFault(Exception):
    """A violation that ends the connection, with GOAWAY."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """A violation that ends a stream, with RST_STREAM."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: FrameType, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def frame_head(kind: FrameType, flags: int, stream: int, size: int) -> bytes:
    """Return the first bytes of a frame, before a payload of `size` bytes."""
    return _HEAD.pack(size << 8 | kind, flags, stream)


def u32(number: int) -> bytes:
    """Return a number as a payload or a part of one."""
    return _U32.pack(number)


def read_u32(payload: memoryview) -> int:
    """Return the first 31 bits of a payload: the highest bit has no meaning."""
    number: int = _U32.unpack_from(payload)[0]
    return number & MAX_WINDOW


def settings_payload(settings: dict[Setting, int]) -> bytes:
    """Return the payload of a SETTINGS frame."""
    return b"".join(_SETTING.pack(*pair) for pair in settings.items())


def read_settings(payload: memoryview) -> list[tuple[int, int]]:
    """Return the settings of a payload, unknown ones too.

    Raises ConnectionFault for a value out of bounds.
    """
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame is cut")
    if len(payload) > _MAX_SETTINGS * _SETTING.size:
        text = f"a SETTINGS frame has over {_MAX_SETTINGS} settings"
        raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)
    pairs = list(_SETTING.iter_unpack(payload))
    for name, value in pairs:
        if name == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is not 0 or 1")
        if name == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(
                ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is over 2^31-1"
            )
        if name == Setting.MAX_FRAME_SIZE and not DEFAULT_FRAME <= value <= _MAX_FRAME_SETTING:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of bounds")
    return pairs


def without_padding(flags: int, payload: memoryview) -> memoryview:
    """Return the payload of a HEADERS or DATA frame without its padding."""
    if not flags & Flag.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


class FrameReader:
    """Cuts the bytes of a connection into frames of at most `max_size` bytes.

    `on_frame` gets type, flags, stream and payload of each frame, but DATA without padding goes to
    `on_data` in the parts in which it arrives: stream, bytes, whether the stream ends with them.
    Payloads are views that are valid until the call returns.
    """

    def __init__(
        self,
        max_size: int,
        on_frame: Callable[[int, int, int, memoryview], None],
        on_data: Callable[[int, memoryview, bool], None],
    ) -> None:
        self._max_size, self._on_frame, self._on_data = max_size, on_frame, on_data
        self._rest = b""  # the beginning of a frame
        self._num_missing = 0  # bytes of a DATA frame of the stream below
        self._stream, self._ends_stream = 0, False

    @property
    def is_inside(self) -> bool:
        """True if the last frame has not arrived whole."""
        return bool(self._rest or self._num_missing)

    def feed(self, data: memoryview) -> None:
        """Take bytes.  Raises ConnectionFault, after which it is not called again."""
        if self._rest:
            data, self._rest = memoryview(self._rest + data), b""
        begin, end = 0, len(data)
        while begin < end:
            if self._num_missing:
                part = data[begin : begin + self._num_missing]
                begin += len(part)
                self._num_missing -= len(part)
                is_last = self._ends_stream and not self._num_missing
                self._on_data(self._stream, part, is_last)
                continue
            if end - begin < HEAD_SIZE:
                break
            word, flags, stream = _HEAD.unpack_from(data, begin)
            size, kind, stream = word >> 8, word & 0xFF, stream & MAX_WINDOW
            if size > self._max_size:
                text = f"a frame has {size} bytes, accepted are {self._max_size}"
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, text)
            if not kind and size and not flags & Flag.PADDED:
                begin += HEAD_SIZE
                self._num_missing = size
                self._stream, self._ends_stream = stream, bool(flags & Flag.END_STREAM)
                continue
            if end - begin - HEAD_SIZE < size:
                break
            begin += HEAD_SIZE
            self._on_frame(kind, flags, stream, data[begin : begin + size])
            begin += size
        if begin < end:
            self._rest = bytes(data[begin:])
