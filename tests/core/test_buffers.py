"""Large bodies are written to their final address without being joined first."""

import pytest

from mindspore_serving.core.buffers import LARGE, BufferList, StoredBytes, contiguous, join


def stored(content: bytes) -> StoredBytes:
    def read(start: int, target: memoryview) -> None:
        target[:] = content[start : start + len(target)]

    return StoredBytes(read, 0, len(content))


def test_small_buffers_are_joined_to_bytes():
    assert join([b"ab", memoryview(b"cd"), stored(b"ef")]) == b"abcdef"


def test_large_buffers_stay_apart_until_written():
    large = bytes(range(256)) * (LARGE // 256)
    body = join([b"head", stored(large), b"tail"])
    assert isinstance(body, BufferList)
    assert len(body) == LARGE + 8
    target = bytearray(len(body))
    body.write(memoryview(target))
    assert target == contiguous(body) == b"head" + large + b"tail"


@pytest.mark.parametrize("part", [slice(2, 5), slice(-3, None), slice(None), slice(5, 2)])
def test_slices_of_stored_bytes_match_slices_of_bytes(part):
    content = b"0123456789"
    assert bytes(stored(content)[part]) == content[part]
    assert bytes(stored(content)[1:9][part]) == content[1:9][part]
    assert len(stored(content)[part]) == len(content[part])
