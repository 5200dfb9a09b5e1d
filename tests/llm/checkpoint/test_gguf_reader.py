"""GGUF files that are broken or hostile are refused before memory is taken for them."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.pieces import open_gguf
from mindspore_serving.llm.checkpoint.gguf.reader import GgufFile
from tests.llm.gguf_files import add_tensor, add_value, finish

HUGE = 2**62


def write(path: Path, **keys: object) -> Path:
    writer = GGUFWriter(path, "llama")
    for name, value in keys.items():
        add_value(writer, name, value)
    add_tensor(writer, "a.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    add_tensor(writer, "b.weight", np.ones((4, 32), np.float32), "Q8_0")
    return finish(writer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(
        tmp_path / "model.gguf", text="żółw", number=7, share=0.5, flag=True, words=["a", "", "b"],
        counts=[1, 2, 3],
    )  # fmt: skip


def put(path: Path, at: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)


def behind(path: Path, text: bytes, count: int = 0) -> int:
    return path.read_bytes().index(text) + len(text) + count


def test_metadata_and_tensors_are_read(path: Path) -> None:
    file = open_gguf(path)
    found = {name: file.metadata[name] for name in ("text", "number", "share", "flag")}
    assert found == {"text": "żółw", "number": 7, "share": 0.5, "flag": True}
    assert file.array("words") == ["a", "", "b"]
    assert file.array("counts") == [1, 2, 3]
    assert file.tensors["a.weight"].rows.view("<f4")[1, 5] == 37.0
    assert file.tensors["b.weight"].shape == (4, 32)


def test_an_unchanged_file_is_mapped_once(path: Path) -> None:
    first = open_gguf(path)
    assert open_gguf(path) is first
    path.unlink()
    write(path, number=8)
    assert open_gguf(path).metadata["number"] == 8


def test_a_value_that_is_no_array_is_refused_as_an_array(path: Path) -> None:
    with pytest.raises(StartError, match="number 7, expected an array"):
        open_gguf(path).array("number")


BROKEN: dict[str, tuple[Callable[[Path], tuple[int, bytes]], str]] = {
    "another format": (lambda path: (0, b"GGML"), "no GGUF file"),
    "version 1": (lambda path: (4, struct.pack("<I", 1)), "version 1"),
    "big-endian": (lambda path: (4, struct.pack(">I", 3)), "big-endian"),
    "countless tensors": (lambda path: (8, struct.pack("<Q", HUGE)), "tensors and"),
    "countless keys": (lambda path: (16, struct.pack("<Q", HUGE)), "keys"),
    "a long key": (lambda path: (24, struct.pack("<Q", HUGE)), "text of"),
    "a long text": (lambda path: (behind(path, b"text", 4), struct.pack("<Q", HUGE)), "text of"),
    "a text that is no text": (lambda path: (behind(path, b"text", 12), b"\xff\xff"), "UTF-8"),
    "a type of value": (lambda path: (behind(path, b"number"), struct.pack("<I", 77)), "type 77"),
    "an array of arrays": (
        lambda path: (behind(path, b"counts", 4), struct.pack("<I", 9)),
        "array of type 9",
    ),
    "a long array": (
        lambda path: (behind(path, b"counts", 8), struct.pack("<Q", HUGE)),
        "bytes at",
    ),
    "countless texts": (
        lambda path: (behind(path, b"words", 8), struct.pack("<Q", HUGE)),
        "texts",
    ),
    "many dimensions": (
        lambda path: (behind(path, b"a.weight"), struct.pack("<I", 99)),
        "99 dimensions",
    ),
    "a large tensor": (
        lambda path: (behind(path, b"a.weight", 4), struct.pack("<QQ", 2**33, 2**33)),
        "a.weight",
    ),
    "more rows than there are": (
        lambda path: (behind(path, b"a.weight", 12), struct.pack("<Q", 2**20)),
        r"is truncated: \d+ of \d+ bytes are missing; download or copy it again",
    ),
    "a tensor of nothing": (
        lambda path: (behind(path, b"a.weight", 4), struct.pack("<Q", 0)),
        "a.weight",
    ),
    "half a block": (
        lambda path: (behind(path, b"b.weight", 4), struct.pack("<Q", 33)),
        "blocks of 32",
    ),
    "a tensor behind the end": (
        lambda path: (behind(path, b"b.weight", 24), struct.pack("<Q", 2**40)),
        "is truncated",
    ),
    "two tensors at one place": (
        lambda path: (behind(path, b"b.weight", 24), struct.pack("<Q", 0)),
        "inside the one before",
    ),
    "a tensor twice": (lambda path: (behind(path, b"b.weight", -8), b"a"), "twice"),
    "a key twice": (lambda path: (behind(path, b"flag", -4), b"text"), "twice"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused(case: str, path: Path) -> None:
    change, message = BROKEN[case]
    put(path, *change(path))
    with pytest.raises(StartError, match=message):
        GgufFile(path)


def sparse(path: Path, size: int, *arrays: tuple[int, int]) -> Path:
    """A file of `size` bytes, most of them not stored, with arrays of so many elements: (type,
    count)."""
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(arrays)))
        for number, (kind, count) in enumerate(arrays):
            key = f"k{number}".encode()
            file.write(struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, kind, count))
            file.seek(8 * count if kind == 8 else count, 1)
        file.truncate(size)
    return path


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([(8, 2**29)], "'k0' with 536870912 texts"),
        ([(8, 2**10), (8, 2**22)], "'k1' with 4194304 texts"),
        ([(0, 2**23)], "'k0' with 8388608 numbers"),
        ([(0, 2**22)] * 65, "bytes at"),
    ],
)
def test_a_sparse_file_has_no_more_elements_than_a_vocabulary(
    arrays: list[tuple[int, int]], message: str, tmp_path: Path
) -> None:
    path = sparse(tmp_path / "sparse.gguf", 2**33, *arrays)
    with pytest.raises(StartError, match=message):
        GgufFile(path)


@given(length=st.integers(0, 700))
def test_a_file_that_is_cut_off_is_refused(
    length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("cut") / "model.gguf", words=["a", "b"])
    content = path.read_bytes()
    path.write_bytes(content[: min(length, len(content) - 200)])
    with pytest.raises(StartError):
        GgufFile(path)


@given(at=st.integers(0, 600), value=st.binary(min_size=1, max_size=8))
def test_changed_bytes_are_refused_or_read(
    at: int, value: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("changed") / "model.gguf", words=["a"], counts=[1, 2])
    put(path, at, value)
    try:
        file = GgufFile(path)
        [file.array(key) for key in ("words", "counts")]
    except StartError:
        return
    assert all(len(tensor.rows) for tensor in file.tensors.values())


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    with pytest.raises(StartError, match="is empty: copy or download it again"):
        GgufFile(path)


def test_another_file_is_refused_with_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"ggml" + bytes(60))
    with pytest.raises(StartError, match="is no GGUF file: it begins with b'ggml"):
        GgufFile(path)
