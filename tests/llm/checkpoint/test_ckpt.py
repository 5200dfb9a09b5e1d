"""Reading MindSpore's .ckpt files, as MindSpore writes them and in every way they can be wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.ckpt import read_ckpt
from mindspore_serving.llm.checkpoint.weights import Checkpoint

# What mindspore.save_checkpoint wrote for {"ab": int8 [2] of 1, 2; "note": "h", a text}.
WRITTEN = (
    b"\n\x12\n\x02ab\x12\x0c\x08\x02\x12\x04Int8\x1a\x02\x01\x02"
    b"\n\x15\n\x04note\x12\x0d\x08\x00\x12\x03str\x1a\x04h\x00\x00\x00"
)


def field(number: int, content: bytes) -> bytes:
    """A field with a length below 128."""
    return bytes([number << 3 | 2, len(content)]) + content


def value(name: str, dims: bytes, kind: str, content: bytes) -> bytes:
    tensor = b"".join(bytes([8, dim]) for dim in dims) + field(2, kind.encode()) + field(3, content)
    return field(1, field(1, name.encode()) + field(2, tensor))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return tmp_path


def test_known_bytes_are_read_and_texts_left_out(directory: Path) -> None:
    (directory / "a.ckpt").write_bytes(WRITTEN)
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.names() == ["ab"]
    dtype, shape, bits = checkpoint.raw("ab")
    assert (dtype, shape, bits.tolist()) == ("I8", (2,), [1, 2])


def test_a_tensor_in_slices_is_put_together(directory: Path) -> None:
    """Each slice carries the shape of the whole."""
    parts = np.arange(4, dtype=np.float32).tobytes()
    slices = [value("w", b"\2\2", "Float32", part) for part in (parts[:8], parts[8:])]
    (directory / "a.ckpt").write_bytes(b"".join(slices))
    assert Checkpoint.open(directory).f32("w").tolist() == [[0, 1], [2, 3]]


def test_packed_dimensions_are_read(directory: Path) -> None:
    tensor = field(1, b"\1\2") + field(2, b"Int8") + field(3, b"\7\5")
    (directory / "a.ckpt").write_bytes(field(1, field(1, b"w") + field(2, tensor)))
    assert Checkpoint.open(directory).raw("w")[2].tolist() == [[7, 5]]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b"\xd8\x5e\x3a\x7f" + bytes(20), "is encrypted"),
        (WRITTEN[:-1], "checkpoint: 21 bytes announced, 20 left"),
        (b"\x80\x05\x95 pickled", "truncated, damaged, or no MindSpore checkpoint"),
        (b"\xff" * 30, "a number of more than 64 bits"),
        (b"\x0a", "it ends inside a number"),
        (b"\x08\x01", "field 1 at its top"),
        (b"\x0b", "no field can start at byte 1"),
        (field(2, b""), "field 2 at its top"),
        (field(1, b""), "a tensor without a name"),
        (field(1, field(1, b"\xff")), "'name' is no text"),
        (field(1, field(1, b"map") + field(3, b"")), "'map' is no tensor"),
        (value("w", b"\2", "Int4", b"\0"), "tensor 'w' has type 'Int4', expected one of Float64"),
        (value("w", b"\2", "Float32", bytes(7)), r"'w' has 7 bytes, expected \[2\] of F32"),
        (value("w", b"\1" * 33, "Int8", b"\0"), "tensor 'w' has 33 dimensions"),
        (value("w", b"\0", "Int8", b"\0\0"), r"'w' has 2 bytes, expected \[0\] of I8"),
        (WRITTEN + value("ab", b"\1", "Int8", b"\0"), "tensor 'ab' is stored twice"),
        (value("w", b"\1", "Int8", b"\0") + value("w", b"\2", "Int8", b"\0\0"), "'w' is stored tw"),
        (WRITTEN + b"crc_num" + bytes(10), "its checksum does not match"),
    ],
)
def test_a_broken_file_is_refused_by_name(directory: Path, content: bytes, text: str) -> None:
    (directory / "broken.ckpt").write_bytes(content)
    with pytest.raises(StartError, match=text) as caught:
        Checkpoint.open(directory)
    assert "broken.ckpt" in str(caught.value)


def test_sizes_whose_product_is_zero_are_bounded_as_well(directory: Path) -> None:
    huge = b"\x08" + b"\xff" * 9 + b"\x01"
    tensor = b"\x08\x00" + huge + field(2, b"Int8") + field(3, b"")
    (directory / "a.ckpt").write_bytes(field(1, field(1, b"w") + field(2, tensor)))
    with pytest.raises(StartError, match="'w' has 0 bytes, expected"):
        Checkpoint.open(directory)


@settings(max_examples=200)
@given(st.data())
def test_no_damage_to_a_file_does_worse_than_an_error(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(WRITTEN + value("w", b"\2\1", "Float32", bytes(8)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.ckpt"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        tensors = read_ckpt(path)
    except StartError:
        return
    for stored in tensors.values():
        assert stored.bits.nbytes <= len(content)
        stored.bits.tobytes()  # nothing beyond the file


def test_a_tensor_in_two_files_is_refused(directory: Path) -> None:
    for name in ("rank_0.ckpt", "rank_1.ckpt"):
        (directory / name).write_bytes(WRITTEN)
    with pytest.raises(StartError, match=r"'ab' is in rank_1\.ckpt and in another file"):
        Checkpoint.open(directory)
