"""Check that a UBJSON file is complete, as XGBoost ends the process at a truncated one.

Follows the lengths in the file; reads no value.
"""

from mmap import ACCESS_READ, mmap

from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.source import load_error

_SIZES = {b"i": 1, b"U": 1, b"C": 1, b"I": 2, b"l": 4, b"d": 4, b"L": 8, b"D": 8}
_SIZES |= dict.fromkeys((b"Z", b"N", b"T", b"F"), 0)
_INTEGERS = (b"i", b"U", b"I", b"l", b"L")
_MAX_DEPTH = 64


class _Truncated(Exception):
    pass


def check_complete(source: ModelSource, path: str) -> None:
    """Raise StartError if the values in the file at `path` do not end where it ends."""
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        try:
            end = _Walk(content).value(0, 0)
        except _Truncated as error:
            raise load_error(source, path, f"it is no complete UBJSON file: {error}") from None
        if end != len(content):
            raise load_error(source, path, f"its value ends at byte {end} of {len(content)}")


class _Walk:
    """Walk over a file; a method takes the offset of an item and returns the offset of its end."""

    def __init__(self, content: mmap) -> None:
        self._content = content

    def value(self, at: int, depth: int, marker: bytes = b"") -> int:
        """Skip a value, after its marker if that is passed."""
        if not marker:
            marker, at = self._byte(at), at + 1
        if marker in _SIZES:
            return self._end(at + _SIZES[marker])
        if marker in (b"S", b"H"):
            return self._string(at)
        if marker not in (b"[", b"{") or depth > _MAX_DEPTH:
            raise _Truncated(f"there is no value at byte {at - 1}")
        return self._container(at, depth, is_object=marker == b"{")

    def _container(self, at: int, depth: int, *, is_object: bool) -> int:
        kind = b""
        if self._byte(at) == b"$":
            kind, at = self._byte(at + 1), at + 2
        if self._byte(at) == b"#":
            count, at = self._integer(at + 1)
            if kind in _SIZES and not is_object:
                return self._end(at + count * _SIZES[kind])
            for _ in range(count):
                at = self._item(at, depth, kind, is_object)
            return at
        last = b"}" if is_object else b"]"
        while self._byte(at) != last:
            at = self._item(at, depth, kind, is_object)
        return at + 1

    def _item(self, at: int, depth: int, kind: bytes, is_object: bool) -> int:
        return self.value(self._string(at) if is_object else at, depth + 1, kind)

    def _string(self, at: int) -> int:
        length, at = self._integer(at)
        return self._end(at + length)

    def _integer(self, at: int) -> tuple[int, int]:
        """Return the value and the end of a length."""
        kind = self._byte(at)
        if kind not in _INTEGERS:
            raise _Truncated(f"there is no length at byte {at}")
        end = self._end(at + 1 + _SIZES[kind])
        number = int.from_bytes(self._content[at + 1 : end], "big", signed=kind != b"U")
        if number < 0:
            raise _Truncated(f"the length at byte {at} is {number}")
        return number, end

    def _byte(self, at: int) -> bytes:
        return self._content[at : self._end(at + 1)]

    def _end(self, at: int) -> int:
        if at > len(self._content):
            raise _Truncated(f"byte {at} is needed, it has {len(self._content)}")
        return at
