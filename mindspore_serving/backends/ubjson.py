"""Whether a UBJSON file is whole: XGBoost ends the process at one that is cut.

Follows the lengths in the file; reads no value.
"""

from mmap import ACCESS_READ, mmap

from mindspore_serving.backends.base import ModelSource
from mindspore_serving.backends.source import load_error

_SIZES = {b"i": 1, b"U": 1, b"C": 1, b"I": 2, b"l": 4, b"d": 4, b"L": 8, b"D": 8}
_SIZES |= dict.fromkeys((b"Z", b"N", b"T", b"F"), 0)
_INTEGERS = (b"i", b"U", b"I", b"l", b"L")
_MOST_DEPTH = 64


class _Cut(Exception):
    pass


def check_whole(source: ModelSource, path: str) -> None:
    """Raise StartError if the values in the file at `path` do not end where it ends."""
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        try:
            end = _Walk(content).value(0, 0)
        except _Cut as error:
            raise load_error(source, path, f"it is no whole UBJSON file: {error}") from None
        if end != len(content):
            raise load_error(source, path, f"its value ends at byte {end} of {len(content)}")


class _Walk:
    """Each method takes where something begins and returns where it ends."""

    def __init__(self, content: mmap) -> None:
        self._content = content

    def value(self, at: int, depth: int, marker: bytes = b"") -> int:
        """A value, behind its marker if that is given."""
        if not marker:
            marker, at = self._byte(at), at + 1
        if marker in _SIZES:
            return self._end(at + _SIZES[marker])
        if marker in (b"S", b"H"):
            return self._string(at)
        if marker not in (b"[", b"{") or depth > _MOST_DEPTH:
            raise _Cut(f"there is no value at byte {at - 1}")
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
        """The value too, as it is a length."""
        kind = self._byte(at)
        if kind not in _INTEGERS:
            raise _Cut(f"there is no length at byte {at}")
        end = self._end(at + 1 + _SIZES[kind])
        number = int.from_bytes(self._content[at + 1 : end], "big", signed=kind != b"U")
        if number < 0:
            raise _Cut(f"the length at byte {at} is {number}")
        return number, end

    def _byte(self, at: int) -> bytes:
        return self._content[at : self._end(at + 1)]

    def _end(self, at: int) -> int:
        if at > len(self._content):
            raise _Cut(f"byte {at} is needed, it has {len(self._content)}")
        return at
