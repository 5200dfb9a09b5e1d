"""The two things of protobuf's encoding that are written by hand: numbers and sized fields."""

from functools import lru_cache


def to_varint(number: int) -> bytes:
    """A number >= 0, seven bits per byte, lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def from_varint(body: bytes, pos: int, max_bytes: int = 5) -> tuple[int, int]:
    """The number at `pos` and where it ends.  Raises IndexError past the end of `body`.

    Raises ValueError for a number over `max_bytes`: tags and sizes take 5, 64-bit numbers 10.
    """
    value = 0
    for shift in range(0, 7 * max_bytes, 7):
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    raise ValueError(f"a number has over {max_bytes} bytes")


@lru_cache(maxsize=4096)
def head(tag: int, size: int) -> bytes:
    """What stands before the `size` bytes of a field; `tag` is field << 3 | 2, one byte."""
    return bytes((tag,)) + to_varint(size)


def sized(tag: int, payload: bytes) -> bytes:
    """A whole field."""
    return head(tag, len(payload)) + payload
