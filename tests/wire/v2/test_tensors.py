"""Inputs of protocol v2: how they are checked, cut at instances, and read by a worker."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core import buffers
from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import BoxedBytes, BoxedStr
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.proto import inference_pb2 as pb
from mindspore_serving.wire import splitting, worker_codec
from mindspore_serving.wire.tensor import MAX_INSTANCES, MAX_RANK
from mindspore_serving.wire.v2.chunks import read_chunk
from mindspore_serving.wire.v2.datatypes import BY_NAME
from mindspore_serving.wire.v2.tensors import InputTensor
from tests.wire.v2.making import (
    METHOD,
    NUMBERS,
    arrays,
    body_of,
    in_pieces,
    raw,
    same,
    text_bytes,
    whole,
)

FP32, BYTES, BF16, BOOL = (BY_NAME[name] for name in ("FP32", "BYTES", "BF16", "BOOL"))
X = np.arange(6, dtype="<f4").reshape(3, 2)


def tensor(data, shape, datatype="FP32", form="json", content_type=""):
    return InputTensor("x", BY_NAME[datatype], tuple(shape), form, data, content_type)


@given(array=arrays, size=st.integers(1, 5))
def test_pieces_of_a_raw_tensor_are_its_instances(array, size):
    assert same(whole(body_of(raw(array))), array)
    assert same(in_pieces(body_of(raw(array)), size), array)


@given(array=arrays, size=st.integers(1, 5), is_flat=st.booleans())
def test_pieces_of_json_are_its_instances(array, size, is_flat):
    if array.dtype.kind == "f":
        array = np.nan_to_num(array, nan=0, posinf=1, neginf=-1)
    values = (array.ravel() if is_flat else array).tolist()
    text = json.dumps(values).encode()
    body = body_of(InputTensor("x", raw(array).datatype, array.shape, "json", text))
    expected = array if array.dtype.kind != "f" else np.array(values, array.dtype)
    expected = expected.reshape(array.shape)
    assert same(whole(body), expected)
    assert same(in_pieces(body, size), expected)


@given(texts=st.lists(st.text(), min_size=1, max_size=6), size=st.integers(1, 4))
def test_pieces_of_texts_are_its_instances(texts, size):
    for form, data in (("raw", text_bytes(texts)), ("json", json.dumps(texts).encode())):
        body = body_of(tensor(data, [len(texts)], "BYTES", form))
        assert [one["x"] for one in whole(body)] == texts
        assert [one["x"] for one in in_pieces(body, size)] == texts


def test_an_array_is_writable_and_its_own():
    data = bytearray(X.tobytes())
    first, *_ = whole(body_of(InputTensor("x", FP32, X.shape, "raw", data)))
    first["x"] += 1
    assert bytes(data) == X.tobytes()


def test_arrays_are_views_of_a_writable_chunk():
    (chunk,) = splitting.wrap("v2_raw", body_of(raw(X)))[1]
    data = bytearray(buffers.contiguous(chunk))
    first, *_ = worker_codec("v2_raw").decode([data], METHOD, "s")
    first["x"] += 1
    assert data.endswith((X[0] + 1).tobytes() + X[1:].tobytes())


def test_the_data_of_every_input_begin_where_any_array_may():
    tensors = [raw(X, name) for name in ("a", "a_longer_name", "c")]
    (chunk,) = splitting.wrap("v2_raw", body_of(*tensors))[1]
    data = bytearray(buffers.contiguous(chunk))
    _, contents = read_chunk(data)
    start = np.frombuffer(data, np.uint8).ctypes.data
    begins = [np.frombuffer(one, np.uint8).ctypes.data - start for one in contents]
    assert [begin % 64 for begin in begins] == [0, 0, 0]
    assert [bytes(one) for one in contents] == [X.tobytes()] * 3


def test_an_instance_of_a_vector_has_no_dimension():
    (one, _) = whole(body_of(raw(np.array([1, 2], "<i8"))))
    assert one["x"].shape == ()


def test_an_unbatched_instance_is_unchanged():
    body = body_of(raw(X), is_batched=False)
    assert body.num_instances == 1
    (one,) = whole(body)
    np.testing.assert_array_equal(one["x"], X, strict=True)


def test_bf16_is_read_as_float32():
    upper_halves = np.array([1.5, -2.0], "<f4").view("<u4") >> 16
    data = upper_halves.astype("<u2").tobytes()
    found = whole(body_of(tensor(data, [2], "BF16", "raw")))
    assert [one["x"].item() for one in found] == [1.5, -2.0]
    assert found[0]["x"].dtype == np.float32
    from_json = whole(body_of(tensor(b"[1.5, -2]", [2], "BF16")))
    assert [one["x"].item() for one in from_json] == [1.5, -2.0]


def test_any_byte_but_0_is_true():
    found = whole(body_of(tensor(b"\0\2\1", [3], "BOOL", "raw")))
    assert [one["x"].tobytes() for one in found] == [b"\0", b"\1", b"\1"]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_contents_of_protobuf_are_read(datatype):
    row = BY_NAME[datatype]
    contents = pb.InferTensorContents()
    if not row.contents:
        contents.fp32_contents.extend([0, 1])
        with pytest.raises(InvalidInputs, match="send raw_input_contents"):
            whole(body_of(tensor(contents.SerializeToString(), [2], datatype, "typed")))
        return
    getattr(contents, row.contents).extend([0, 1])
    found = whole(body_of(tensor(contents.SerializeToString(), [2], datatype, "typed")))
    assert same(found, np.array([0, 1], row.numpy))


def test_contents_of_protobuf_are_not_cut():
    contents = pb.InferTensorContents(fp32_contents=[1, 2]).SerializeToString()
    _, chunks = splitting.split("v2_raw", body_of(tensor(contents, [2], "FP32", "typed")))
    assert len(chunks) == 1


def test_texts_of_protobuf_are_read():
    contents = pb.InferTensorContents(bytes_contents=[b"a", b"\xff"]).SerializeToString()
    found = whole(body_of(tensor(contents, [2], "BYTES", "typed")))
    assert [one["x"] for one in found] == ["a", b"\xff"]


@pytest.mark.parametrize(("content_type", "expected"), [("", "a"), ("str", "a"), ("bytes", b"a")])
def test_the_content_type_decides_between_str_and_bytes(content_type, expected):
    found = whole(body_of(tensor(text_bytes(["a"]), [1], "BYTES", "raw", content_type)))
    assert found[0]["x"] == expected
    assert type(found[0]["x"]) is type(expected)


def test_bytes_that_are_no_utf8_are_bytes_unless_they_must_be_a_text():
    data = text_bytes([b"\xff\xd8"])
    assert whole(body_of(tensor(data, [1], "BYTES", "raw")))[0]["x"] == b"\xff\xd8"
    with pytest.raises(InvalidInputs, match="not UTF-8"):
        whole(body_of(tensor(data, [1], "BYTES", "raw", "str")))


def test_a_text_keeps_its_dimension():
    found = whole(body_of(tensor(text_bytes(["a"]), [1, 1], "BYTES", "raw")))
    assert isinstance(found[0]["x"], BoxedStr)
    data = tensor(text_bytes(["a"]), [1, 1], "BYTES", "raw", "bytes")
    assert isinstance(whole(body_of(data))[0]["x"], BoxedBytes)


def test_inputs_with_defaults_may_be_left_out():
    method = Method("m", ("x", "scale"), ("y",), (), (0,), defaults={"scale": "2"})
    assert [one["scale"] for one in whole(body_of(raw(X)), method)] == ["2"] * 3


@pytest.mark.parametrize(
    ("shape", "data", "problem"),
    [
        ([2, -1], b"", "shape"),
        ([2**40], b"", "shape"),
        ([1] * (MAX_RANK + 1), b"\0\0\0\0", "shape"),
        ([2**20, 2**20], b"", "shape"),
        ([2, 2], b"\0" * 15, "15 bytes, expected 16"),
        ([2, 2], b"\0" * 17, "17 bytes, expected 16"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_before_anything_is_made(shape, data, problem):
    with pytest.raises(InvalidInputs, match=problem):
        tensor(data, shape, form="raw")


def test_elements_that_cannot_be_in_the_data_are_refused_in_every_form():
    for form in ("json", "typed"):
        with pytest.raises(InvalidInputs, match="too few for shape"):
            tensor(b"[1]", [1000, 1000], form=form)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([], r"inputs is \[\], expected those that GET /v2/models/NAME lists"),
        ([raw(np.float32(1))], r"given: x \[\]"),
        ([raw(X), raw(X[:2], "z")], r"x \[3, 2\], z \[2, 2\]"),
        ([raw(X[:0])], "at least 1"),
        ([raw(X), raw(X)], "same name"),
    ],
)
def test_inputs_without_a_common_number_of_instances_are_refused(tensors, problem):
    with pytest.raises(InvalidInputs, match=problem):
        body_of(*tensors)


def test_too_many_instances_are_refused():
    with pytest.raises(TooLarge, match="at most"):
        body_of(raw(np.zeros(MAX_INSTANCES + 1, np.uint8)))


@pytest.mark.parametrize(
    ("data", "datatype", "problem"),
    [
        (b"[1, 2, 3]", "FP32", "3 elements, expected 2"),
        (b"[[1], 2]", "FP32", "a list beside an element"),
        (b"[1.5, 2]", "INT32", "elements of type float"),
        (b"[true, 2]", "INT32", "elements of type bool"),
        (b"[1, 0]", "BOOL", "elements of type int"),
        (b'["1", 2]', "FP32", "elements of type str"),
        (b"[null, 2]", "INT32", "data of INT32 have elements of type null"),
        (b"[NaN, 2]", "INT64", "data of INT64 have elements of type float"),
        (b"[null, true]", "BOOL", "data of BOOL have elements of type null"),
        (b'["a", null]', "BYTES", "data of BYTES have an element of type null"),
        (b'[null, "a"]', "FP32", "data of FP32 have elements of type string"),
        (b"[256, 0]", "UINT8", "out of the range of UINT8"),
        (b"[-1, 0]", "UINT64", "out of the range of UINT64"),
        (b"[1e300, 0]", "FP32", "out of the range of FP32"),
        (b"[70000, 0]", "FP16", "out of the range of FP16"),
        (b"[1" + b"0" * 400 + b", 0]", "FP64", "out of the range of FP64"),
        (b"[1, 2", "FP32", "not valid JSON"),
        (b'{"a":1}', "FP32", "no JSON list"),
        (b"[" * 100_000, "FP32", "not valid JSON"),
        (b"[1, 2]", "BYTES", "element of type int"),
    ],
)
def test_json_that_is_no_tensor_is_refused_by_the_worker(data, datatype, problem):
    with pytest.raises(InvalidInputs, match=problem):
        whole(body_of(tensor(data, [2], datatype)))


@pytest.mark.parametrize("data", [b"[1, 2, 3]", b"[1]   ", b"[[[[[1]]]]]", b'"1, 2"', b"{},{}"])
def test_json_that_cannot_be_cut_is_refused_by_the_master(data):
    _, rows = splitting.split("v2_raw", body_of(tensor(data, [2])))
    with pytest.raises(InvalidInputs, match="elements of its shape"):
        rows[0:1]


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\0\0\0",
        b"\xff\xff\xff\xffab",
        text_bytes(["a"]) + b"\0\0\0",
        text_bytes(["a", "b", "c"]),
        text_bytes(["a"]) + b"\x05\0\0\0b",
    ],
)
def test_texts_whose_lengths_do_not_add_up_are_refused(data):
    body = body_of(tensor(data, [2], "BYTES", "raw"))
    with pytest.raises(InvalidInputs):
        whole(body)
    with pytest.raises(InvalidInputs):
        in_pieces(body, 1)


def test_an_instance_has_a_single_text():
    with pytest.raises(InvalidInputs, match="expected one text"):
        whole(body_of(tensor(text_bytes(["a", "b"]), [1, 2], "BYTES", "raw")))


def test_an_input_that_is_not_the_methods_is_refused():
    with pytest.raises(InvalidInputs, match="unexpected input 'z' for s, expected: x"):
        whole(body_of(raw(X), raw(X, "z")))


def test_an_input_that_is_missing_is_named():
    with pytest.raises(InvalidInputs, match="Cannot find input z"):
        whole(body_of(raw(X)), Method("m", ("x", "z"), ("y",), (), (0,)))


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_chunk_or_are_refused(data):
    with suppress(InvalidInputs):
        worker_codec("v2_raw").decode([data], METHOD, "s")


@given(place=st.integers(0, 80), value=st.integers(0, 255))
def test_a_chunk_with_another_byte_is_read_or_refused(place, value):
    _, (chunk,) = splitting.wrap("v2_raw", body_of(raw(X)))
    mutated = bytearray(chunk)
    mutated[place % len(chunk)] = value
    with suppress(InvalidInputs):
        worker_codec("v2_raw").decode([mutated], METHOD, "s")


def test_a_chunk_that_is_cut_short_is_refused():
    _, (chunk,) = splitting.wrap("v2_raw", body_of(raw(X)))
    with pytest.raises(InvalidInputs, match="is incomplete"):
        read_chunk(chunk[:-1])
