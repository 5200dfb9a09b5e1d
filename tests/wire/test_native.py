import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mindspore_serving.core.dtype import BY_NUMPY
from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import BoxedBytes, BoxedStr
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.wire import native

values = st.one_of(
    arrays.arrays(
        st.sampled_from(list(BY_NUMPY)), arrays.array_shapes(min_dims=0, max_dims=4, min_side=1)
    ),
    arrays.arrays(np.dtype("<f4"), st.sampled_from([(0,), (3, 0)])),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.text(max_size=20).map(BoxedStr),
    st.binary(max_size=20).map(BoxedBytes),
)


def with_header(header, payload=b"") -> bytes:
    encoded = msgspec.msgpack.encode(header)
    head = len(encoded).to_bytes(4, "little") + encoded
    return head + bytes(-len(head) % 16) + payload


@given(st.lists(values, max_size=4))
def test_a_round_trip_keeps_values_and_types(sent):
    got = native.decode_values(native.encode_values(sent))
    assert len(got) == len(sent)
    for value, expected in zip(got, sent, strict=True):
        assert type(value) is type(expected)
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(value, expected, strict=True)
        else:
            assert value == expected


def test_the_format_is_as_documented():
    message = with_header([[6, [2], 8], [13, [1], 2]], bytes.fromhex("0100000002000000") + bytes(8))
    message += b"hi" + bytes(14)
    sent = (np.array([1, 2], np.int32), BoxedStr("hi"))
    assert native.encode_values(sent) == message


def test_arrays_are_aligned_views_writable_if_the_buffer_is():
    message = native.encode_values([np.zeros(3, np.float64), "a", np.ones(2, np.float64)])
    buffer = bytearray(message)
    first, _, last = native.decode_values(buffer)
    last[1] = 5
    assert native.decode_values(buffer)[2].tolist() == [1, 5]
    assert np.shares_memory(first, np.frombuffer(buffer, np.uint8))
    assert not native.decode_values(message)[0].flags.writeable


def test_a_strided_array_is_sent_in_c_order():
    array = np.arange(6).reshape(2, 3).T
    np.testing.assert_array_equal(native.decode_values(native.encode_values([array]))[0], array)


@pytest.mark.parametrize("chunk_type", [bytes, bytearray, memoryview])
def test_a_worker_gets_writable_instances_by_name(chunk_type):
    method = Method("m", ("a", "b"), (), (), ())
    message = native.encode({"u": np.zeros(2, np.int8), "v": "text"})
    (instance,) = native.decode([chunk_type(message)], method, "s")
    instance["a"][0] = 1
    assert list(instance) == ["a", "b"]
    assert instance["b"] == "text"


def test_a_wrong_count_names_the_inputs():
    method = Method("m", ("a", "b"), (), (), ())
    with pytest.raises(InvalidInputs, match="1 values given, s has 2 inputs: a"):
        native.decode([native.encode_values(["x"])], method, "s")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"", "no valid header"),
        (b"\x01", "no valid header"),
        (b"\xff\xff\xff\xff", "no valid header"),
        (with_header({"a": 1}), "no valid header"),
        (with_header([[1]]), "no valid header"),
        (with_header([[3, [4], 4]]), "truncated"),
        (with_header([[3, [4], -1]]), "truncated"),
        (with_header([[3, [4], 2**63 - 1]]), "truncated"),
        (with_header([[3, [5], 4]], b"1234"), "4 bytes for shape"),
        (with_header([[3, [-4], 4]], b"1234"), "4 bytes for shape"),
        (with_header([[3, [1] * 33, 1]], b"1"), "1 bytes for shape"),
        (with_header([[0, [], 0]]), "type number 0"),
        (with_header([[99, [], 0]]), "type number 99"),
        (with_header([[13, [1, 1], 2]], b"hi"), "given shape is"),
        (with_header([[13, [], 1]], b"\xff"), "not UTF-8"),
    ],
)
def test_a_broken_message_is_refused(message, text):
    with pytest.raises(InvalidInputs, match=text):
        native.decode_values(message)


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([None]), "\ud800"])
def test_a_value_that_cannot_be_sent_is_an_error_of_the_stage(value):
    with pytest.raises(StageFailed, match="Failed to construct the response"):
        native.encode_values([value])


@given(st.one_of(st.binary(), st.lists(values, max_size=3).map(native.encode_values)), st.data())
def test_only_our_errors_come_out_of_any_bytes(message, data):
    changed = bytearray(message)
    for _ in range(data.draw(st.integers(0, 4)) if message else 0):
        changed[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    try:
        got = native.decode_values(changed[:cut])
    except ServingError:
        return
    assert all(isinstance(value, np.ndarray | str | bytes) for value in got)
