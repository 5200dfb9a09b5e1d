"""Outputs of protocol v2: what workers write of instances is one tensor, in each form."""

import json

import numpy as np
import pytest
from hypothesis import given

from mindspore_serving.core import buffers
from mindspore_serving.errors import StageFailed
from mindspore_serving.wire import worker_codec
from mindspore_serving.wire.v2 import outputs
from mindspore_serving.wire.v2.outputs import join, of_texts
from tests.wire.v2.making import arrays, text_bytes


def encoded(form, *instances):
    return [worker_codec(form).encode(one) for one in instances]


def only(form, *values, is_batched=True):
    (tensor,) = join(encoded(form, *({"y": one} for one in values)), is_batched=is_batched)
    return tensor


@given(array=arrays)
def test_instances_are_joined_to_the_tensor_that_they_are(array):
    tensor = only("v2_both", *map(np.asarray, array))
    assert (tensor.shape, tensor.num_bytes) == (array.shape, array.nbytes)
    assert b"".join(tensor.raw) == array.tobytes()
    expected = [
        None if number != number or abs(number) == np.inf else number
        for number in array.ravel().tolist()
    ]
    assert json.loads(tensor.json_data) == expected


@pytest.mark.parametrize("form", ["v2_raw", "v2_json", "v2_both"])
def test_equal_headers_are_decoded_once_and_many_pieces_are_merged(monkeypatch, form):
    decoded = []
    decode = outputs._decode_header
    monkeypatch.setattr(
        outputs, "_decode_header", lambda data: decoded.append(data) or decode(data)
    )
    numbers = np.arange(outputs.MANY + 100, dtype=np.int16)
    tensor = only(form, *map(np.asarray, numbers))
    assert len(decoded) <= 1 + 4  # the first one's, and texts of one to four digits
    assert tensor.shape == numbers.shape
    assert [len(tensor.raw), len(tensor.json)] == [int(form != "v2_json"), int(form != "v2_raw")]
    if tensor.raw:
        assert b"".join(tensor.raw) == numbers.tobytes()
    if tensor.json:
        assert json.loads(tensor.json_data) == numbers.tolist()


def test_many_empty_outputs_are_empty():
    tensor = only("v2_both", *[np.zeros(0, np.int8)] * (outputs.MANY + 1))
    assert (tensor.num_bytes, tensor.json_data) == (0, b"[]")


def test_texts_are_joined():
    tensor = only("v2_both", "ä", '"b"')
    assert (tensor.name, tensor.datatype, tensor.shape) == ("y", "BYTES", (2,))
    assert b"".join(tensor.raw) == text_bytes(["ä", '"b"'])
    assert json.loads(tensor.json_data) == ["ä", '"b"']


def test_an_unbatched_instance_keeps_its_shape():
    array = np.zeros((2, 3), np.int8)
    assert only("v2_raw", array, is_batched=False).shape == (2, 3)
    assert only("v2_raw", array).shape == (1, 2, 3)


def test_an_output_that_is_not_contiguous_is_written_in_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    tensor = only("v2_both", array)
    assert b"".join(tensor.raw) == array.tobytes()
    assert json.loads(tensor.json_data) == array.ravel().tolist()


def test_a_large_output_is_copied_only_to_its_target():
    array = np.zeros(50_000, "<f4")
    encoded = worker_codec("v2_raw").encode({"y": array})
    array[:] = 1
    (tensor,) = join([buffers.contiguous(encoded)], is_batched=False)
    assert b"".join(tensor.raw) == array.tobytes()


def test_several_outputs_keep_their_order():
    rows = [{"b": np.int64(i) + np.zeros(1, np.int64), "a": f"{i}" * (i + 1)} for i in range(3)]
    b, a = join(encoded("v2_both", *rows), is_batched=True)
    assert (b.name, json.loads(b.json_data)) == ("b", [0, 1, 2])
    assert (a.name, json.loads(a.json_data)) == ("a", ["0", "11", "222"])


@pytest.mark.parametrize(
    ("form", "has_raw", "has_json"), [("v2_raw", 1, 0), ("v2_json", 0, 1), ("v2_both", 1, 1)]
)
def test_only_requested_forms_are_encoded(form, has_raw, has_json):
    tensor = only(form, np.zeros(2, np.float32))
    assert (len(tensor.raw), len(tensor.json)) == (has_raw, has_json)


def test_an_empty_output_is_empty_in_every_form():
    tensor = only("v2_both", np.zeros(0, np.float32), np.zeros(0, np.float32))
    assert (tensor.shape, tensor.num_bytes, tensor.json_data) == ((2, 0), 0, b"[]")


def test_instances_with_different_outputs_cannot_be_joined():
    for other in (np.zeros(3, np.float32), np.zeros(2, np.float64), "text"):
        with pytest.raises(StageFailed, match=r"outputs differ: y FP32 \[2\] and y"):
            only("v2_raw", np.zeros(2, np.float32), other)


def test_bytes_that_are_no_text_need_binary_data():
    assert b"".join(only("v2_raw", b"\xff").raw) == text_bytes([b"\xff"])
    with pytest.raises(StageFailed, match="binary_data: true"):
        only("v2_json", b"\xff")


def test_a_dtype_that_cannot_be_sent_is_named():
    with pytest.raises(StageFailed, match="complex64 cannot be sent"):
        only("v2_raw", np.zeros(1, np.complex64))


def test_a_tensor_of_texts_is_made_in_both_forms():
    tensor = of_texts("y", ["a", "bc"])
    assert (tensor.shape, b"".join(tensor.raw)) == ((2,), text_bytes(["a", "bc"]))
    assert json.loads(tensor.json_data) == ["a", "bc"]
