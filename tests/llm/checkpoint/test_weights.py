"""Reading checkpoints: what the safetensors library writes, and every way a file can be wrong."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint import safetensors
from mindspore_serving.llm.checkpoint.safetensors import (
    BITS,
    StoredTensor,
    prefault,
    read_safetensors,
    write_safetensors,
)
from mindspore_serving.llm.checkpoint.weights import Checkpoint

numpy_library = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return tmp_path


def write_raw(path, header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_files_of_the_library_are_read_bit_for_bit(directory):
    random = np.random.default_rng(0)
    arrays = {
        "a": random.standard_normal((3, 5)).astype(np.float32),
        "b": random.standard_normal((4,)).astype(np.float16),
        "c": random.integers(-100, 100, (7, 3)).astype(np.int8),
        "d": random.standard_normal((2, 2)),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(7, np.int64),
    }
    numpy_library.save_file(arrays, directory / "model.safetensors")
    checkpoint = Checkpoint.open(directory)
    assert sorted(checkpoint.names()) == sorted(arrays)
    for name, array in arrays.items():
        dtype, shape, bits = checkpoint.raw(name)
        assert shape == array.shape
        assert bits.dtype == BITS[dtype]
        assert bits.tobytes() == array.tobytes()
    np.testing.assert_array_equal(checkpoint.f32("b"), arrays["b"].astype(np.float32))
    np.testing.assert_array_equal(checkpoint.f32("d"), arrays["d"].astype(np.float32))


def test_bfloat16_is_the_upper_half_of_float32(directory):
    bits = np.array([0x3F80, 0xC020, 0x0000, 0x7F80], np.uint16)
    write_safetensors(directory, [("w", StoredTensor("BF16", (4,), bits))], {})
    np.testing.assert_array_equal(Checkpoint.open(directory).f32("w"), [1.0, -2.5, 0.0, np.inf])


def test_written_files_are_read_by_the_library(tmp_path):
    arrays = {"x": np.arange(3, dtype=np.int8), "y": np.arange(6, dtype=np.float32).reshape(2, 3)}
    stored = {"x": StoredTensor("I8", (3,), arrays["x"])}
    stored["y"] = StoredTensor("F32", (2, 3), arrays["y"])
    write_safetensors(tmp_path, stored.items(), {"made": "here"})
    read = numpy_library.load_file(tmp_path / "model.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)


def test_large_checkpoints_are_written_as_several_files(directory, monkeypatch):
    """All tensors of a file are in memory when it is written."""
    monkeypatch.setattr(safetensors, "SHARD_BYTES", 100)
    arrays = {name: np.full(size, size, np.uint8) for name, size in
              (("a", 60), ("b", 30), ("c", 20), ("d", 200), ("e", 1))}  # fmt: skip
    tensors = ((n, StoredTensor("U8", array.shape, array)) for n, array in arrays.items())
    write_safetensors(directory, tensors, {})
    sizes = [sum(t.bits.size for t in read_safetensors(path).values())
             for path in sorted(directory.glob("*.safetensors"))]  # fmt: skip
    assert sizes == [90, 20, 200, 1]
    checkpoint = Checkpoint.open(directory)
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.raw(name)[2], array)


@pytest.mark.parametrize("kind", list(BITS))
def test_every_type_that_is_read_can_be_written(directory, kind):
    bits = np.ones((2, 3), BITS[kind])
    write_safetensors(directory, [("w", StoredTensor(kind, bits.shape, bits))], {})
    dtype, shape, read = Checkpoint.open(directory).raw("w")
    assert (dtype, shape) == (kind, (2, 3))
    np.testing.assert_array_equal(read, bits)


def test_a_float32_tensor_is_a_view_of_the_file(directory):
    array = np.arange(4, dtype=np.float32)
    numpy_library.save_file({"w": array}, directory / "model.safetensors")
    read = Checkpoint.open(directory).f32("w")
    assert not read.flags.owndata
    assert not read.flags.writeable


def test_unaligned_tensors_are_copied_into_alignment(directory):
    body = b"\x01" + np.array([1.5, -2.0], np.float32).tobytes()
    header = {"a": entry("U8", (1,), (0, 1)), "b": entry("F32", (2,), (1, 9))}
    write_raw(directory / "model.safetensors", header, body)
    _, _, bits = Checkpoint.open(directory).raw("b")
    assert bits.ctypes.data % 4 == 0
    np.testing.assert_array_equal(bits, [1.5, -2.0])


def test_shards_are_found_by_the_index(directory):
    for number in (1, 2):
        array = {f"w{number}": np.full(2, number, np.float32)}
        numpy_library.save_file(array, directory / f"part-{number}.safetensors")
    weight_map = {f"w{number}": f"part-{number}.safetensors" for number in (1, 2)}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.f32("w2").tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("weight_map", "text"),
    [
        ({"w": "gone.safetensors"}, "lacks 1 of 1 files .* download gone.safetensors"),
        ({"w": "../secret.safetensors"}, "expected a .* file beside it"),
        ({"w": "model.bin"}, "expected a .* file beside it"),
        ({"other": "part.safetensors"}, "has no tensor 'other'"),
        ({}, "has no weight_map"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(directory, weight_map, text):
    numpy_library.save_file({"w": np.zeros(2, np.float32)}, directory / "part.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(StartError, match=text):
        Checkpoint.open(directory)


@pytest.mark.parametrize(
    ("header", "body", "text"),
    [
        ({"w": entry()}, b"1234", "is truncated: 4 of 77 bytes are missing"),
        ({"w": entry(offsets=(0, 4))}, bytes(8), r"tensor 'w' has 4 bytes, expected \[2\] of F32"),
        ({"w": entry("F33")}, bytes(8), "tensor 'w' has dtype 'F33'"),
        ({"w": entry(["F32"])}, bytes(8), "tensor 'w' has dtype"),
        ({"w": entry(shape=(-1, -2))}, bytes(8), "tensor 'w' has shape"),
        ({"w": entry(shape=(True, 2))}, bytes(8), "tensor 'w' has shape"),
        ({"w": entry(offsets=(8, 0))}, bytes(8), "tensor 'w' has data_offsets"),
        ({"w": 3}, bytes(8), "tensor 'w' has dtype None"),
        ({"w": entry(shape=[1] * 99, offsets=(0, 4))}, bytes(8), "tensor 'w' has shape"),
        ({"w": entry(shape=(0, 2**70), offsets=(0, 0))}, bytes(8), "tensor 'w' has shape"),
        ({"w": entry(shape=(0, *[2**61] * 9), offsets=(0, 0))}, b"", "expected at most 4611"),
        ({"w": entry(shape=[2**61] * 32)}, bytes(8), "expected at most 4611"),
        ({"w": entry(shape=list(range(10**4)))}, bytes(8), "tensor 'w' has shape .{100}, expected"),
        ({"w" * 10**4: entry("F33")}, bytes(8), "tensor 'w{199} has dtype"),
        (b'{"w":{"shape":[' + b"9" * 5000 + b"]}}", b"", "not JSON"),
        ({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12), "'a' and 'b' overlap"),
        ([], b"", "not an object"),
        (b"{nonsense", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
    ],
)
def test_a_broken_file_is_refused_by_name(directory, header, body, text):
    write_raw(directory / "model.safetensors", header, body)
    with pytest.raises(StartError, match=text) as caught:
        Checkpoint.open(directory)
    assert "model.safetensors" in str(caught.value)


MANY = safetensors.MAX_TENSORS + 1
EMPTY = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("{" + ",".join(f'"{name}":{EMPTY}' for name in range(MANY)) + "}", "has 131073 tensors"),
        ('{"a":[' + "[]," * 2**20 + "[]]}", "a header of more than 131072 tensors"),
        ('{"a":{' + '"":0,' * 2**20 + '"":0}}', "a header of more than 131072 tensors"),
        ('{"a":[' + "0," * 2**23 + "0]}", "a header of more than 131072 tensors"),
    ],
    ids=["tensors", "arrays", "keys", "numbers"],
)
def test_a_header_has_no_more_than_so_many_tensors_may_have(directory, header, text):
    write_raw(directory / "model.safetensors", header.encode())
    with pytest.raises(StartError, match=text):
        Checkpoint.open(directory)


@pytest.mark.parametrize("content", [b"", b"1234", struct.pack("<Q", 2**63) + b"{}"])
def test_a_file_without_a_whole_header_is_refused(directory, content):
    (directory / "model.safetensors").write_bytes(content)
    with pytest.raises(StartError, match="safetensors"):
        Checkpoint.open(directory)


@settings(max_examples=150)
@given(st.data())
def test_no_damage_to_a_header_does_worse_than_an_error(tmp_path, data):
    arrays = {"a": np.arange(6, dtype=np.float32), "b": np.arange(3, dtype=np.int8)}
    content = bytearray(numpy_library.save(arrays))
    size = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        tensors = read_safetensors(path)
    except StartError:
        return
    for stored in tensors.values():
        assert stored.bits.nbytes <= len(content)
        stored.bits.tobytes()  # nothing beyond the file


def test_a_missing_tensor_is_named(directory):
    numpy_library.save_file({"w": np.zeros(2, np.float32)}, directory / "model.safetensors")
    checkpoint = Checkpoint.open(directory)
    assert checkpoint.has("w")
    assert not checkpoint.has("v")
    with pytest.raises(StartError, match="has no tensor 'v'"):
        checkpoint.raw("v")


def test_integers_are_no_floats(directory):
    numpy_library.save_file({"w": np.zeros(2, np.int32)}, directory / "model.safetensors")
    with pytest.raises(StartError, match="'w' .* is I32, expected one of"):
        Checkpoint.open(directory).f32("w")


def test_a_directory_must_have_weights_and_a_configuration(tmp_path):
    with pytest.raises(StartError, match="is not a directory"):
        Checkpoint.open(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(StartError, match="to safetensors first"):
        Checkpoint.open(tmp_path)
    numpy_library.save_file({"w": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(StartError, match=r"has no config\.json"):
        Checkpoint.open(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(StartError, match="holds a list, expected an object"):
        Checkpoint.open(tmp_path)


def resident(path):
    """Kilobytes of the mapped `path` that this process has in its page table."""
    found, is_wanted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_wanted = line.endswith(str(path))
        elif is_wanted and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_files_are_mapped_whole_when_their_arrays_are_needed_now(directory):
    path = directory / "model.safetensors"
    numpy_library.save_file({"w": np.ones((64, 2**15), np.int8)}, path)
    checkpoint = Checkpoint.open(directory)
    before = resident(path)
    _, _, bits = checkpoint.raw("w")
    prefault([bits, bits[3:5], np.zeros(4)])
    assert before < 2048 <= resident(path)
    assert bits.sum() == 64 * 2**15


def test_a_kernel_that_cannot_map_at_once_is_no_error(directory, monkeypatch):
    numpy_library.save_file({"w": np.ones(4, np.int8)}, directory / "model.safetensors")
    monkeypatch.setattr(safetensors, "MADV_POPULATE_READ", 12345)
    _, _, bits = Checkpoint.open(directory).raw("w")
    prefault([bits])
    assert bits.tolist() == [1, 1, 1, 1]


def test_variants_beside_the_whole_model_are_left_alone(directory):
    whole = {"a": np.ones(2, np.float32)}
    numpy_library.save_file(whole, directory / "model.safetensors")
    numpy_library.save_file({"a": np.zeros(2, np.float16)}, directory / "model.fp16.safetensors")
    assert Checkpoint.open(directory).f32("a").tolist() == [1, 1]
    (directory / "model.safetensors").unlink()
    assert Checkpoint.open(directory).f32("a").tolist() == [0, 0]


def test_consolidated_weights_beside_shards_are_left_alone(directory):
    for number in (1, 2):
        name = f"model-{number:05}-of-00002.safetensors"
        numpy_library.save_file({f"a{number}": np.ones(2, np.float32)}, directory / name)
    whole = {"tok_embeddings.weight": np.zeros(2, np.float32)}
    numpy_library.save_file(whole, directory / "consolidated.safetensors")
    assert Checkpoint.open(directory).names() == ["a1", "a2"]
