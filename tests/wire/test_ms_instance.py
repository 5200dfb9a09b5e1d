"""The worker's half of the gRPC messages; requests are made and replies read by the library."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mindspore_serving.core.graph import Method
from mindspore_serving.core.value import BoxedBytes, BoxedStr
from mindspore_serving.errors import InvalidInputs, ServingError, StageFailed
from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire import ms_instance, ms_proto, worker_codec

NUMBERS = {
    "?": pb.MS_BOOL,
    "<i1": pb.MS_INT8,
    "<u1": pb.MS_UINT8,
    "<i2": pb.MS_INT16,
    "<u2": pb.MS_UINT16,
    "<i4": pb.MS_INT32,
    "<u4": pb.MS_UINT32,
    "<i8": pb.MS_INT64,
    "<u8": pb.MS_UINT64,
    "<f2": pb.MS_FLOAT16,
    "<f4": pb.MS_FLOAT32,
    "<f8": pb.MS_FLOAT64,
}


@pytest.fixture(autouse=True)
def _no_known_layouts():
    ms_instance._layouts.clear()


def message(**items: pb.Tensor) -> bytes:
    instance = pb.Instance()
    for name, item in items.items():
        instance.items[name].CopyFrom(item)
    return instance.SerializeToString()


def shape_of(dims) -> pb.TensorShape | None:
    return pb.TensorShape(dims=dims) if dims else None


def numbers(dims, dtype, data) -> pb.Tensor:
    return pb.Tensor(shape=shape_of(dims), dtype=dtype, data=data)


def text(dims, dtype, *values) -> pb.Tensor:
    return pb.Tensor(shape=shape_of(dims), dtype=dtype, bytes_val=values)


def of_array(array) -> pb.Tensor:
    number = NUMBERS["?" if array.dtype == bool else f"<{array.dtype.str[1:]}"]
    return numbers(array.shape, number, array.tobytes())


def assert_same(value, expected):
    assert type(value) is type(expected)
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(value, expected, strict=True)
    else:
        assert value == expected


def test_the_golden_request_is_decoded(golden, method):
    array_chunk, text_chunk = ms_proto.split(golden("predict_request.hex"))
    (instance,) = ms_proto.decode([array_chunk], method("x1"), "add")
    np.testing.assert_array_equal(instance["x1"], np.array([1, 2], np.float32), strict=True)
    assert ms_proto.decode([text_chunk], method("s"), "add") == [{"s": "hi"}]


def test_the_golden_reply_is_encoded(golden):
    good = ms_proto.encode({"y": np.array(3, np.float32)})
    spec = ms_proto.peek(golden("predict_request.hex")).raw
    reply = ms_proto.assemble(spec, [good, b""], [None, (3, "boom")])
    assert reply == golden("predict_reply.hex")


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 1, 1), (0,), (2, 0)])
def test_every_number_type_is_decoded_twice_alike(kind, shape, method):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).astype(kind).reshape(shape)
    chunk = message(x=numbers(shape, NUMBERS[kind], array.tobytes()))
    for _ in range(2):  # the second time by the known layout
        (instance,) = ms_proto.decode([chunk], method("x"), "s")
        np.testing.assert_array_equal(instance["x"], array, strict=True)
    assert ms_instance._layouts


def test_arrays_are_writable_and_nobody_elses(method):
    chunk = message(x=of_array(np.zeros(3, np.float32)))
    for _ in range(2):
        one, two = ms_proto.decode([chunk, chunk], method("x"), "s")
        one["x"][0] = 5
        assert two["x"][0] == 0
        assert one["x"].flags.aligned
        assert one["x"].flags.owndata or isinstance(one["x"].base, bytearray)


def test_any_byte_but_0_is_true(method):
    (instance,) = ms_proto.decode(
        [message(x=numbers([3], pb.MS_BOOL, b"\0\1\2"))], method("x"), "s"
    )
    assert instance["x"].tobytes() == b"\0\1\1"


@pytest.mark.parametrize(
    ("item", "value", "kind"),
    [
        (text([1], pb.MS_STRING, "h\u00e9".encode()), "h\u00e9", BoxedStr),
        (text([], pb.MS_STRING, b""), "", str),
        (text([1], pb.MS_BYTES, b"\xff"), b"\xff", BoxedBytes),
        (text([], pb.MS_BYTES, b"\xff"), b"\xff", bytes),
    ],
)
def test_texts_keep_whether_they_have_a_dimension(item, value, kind, method):
    (instance,) = ms_proto.decode([message(x=item)], method("x"), "s")
    assert instance == {"x": value}
    assert type(instance["x"]) is kind
    assert pb.Instance.FromString(ms_proto.encode(instance)).items["x"] == item


def test_other_items_are_ignored_and_dims_may_be_unpacked(method):
    unpacked = bytes.fromhex("0a0e 0a0178 1209 0a020801 1003 1a0107")
    chunk = unpacked + message(other=text([], 99))
    (instance,) = ms_proto.decode([chunk], method("x"), "s")
    assert instance["x"].tolist() == [7]
    assert list(instance) == ["x"]


def test_an_empty_shape_is_that_of_a_scalar(method):
    item = pb.Tensor(shape=pb.TensorShape(), dtype=pb.MS_INT8, data=b"\x07")
    for _ in range(2):
        (instance,) = ms_proto.decode([message(x=item)], method("x"), "s")
        np.testing.assert_array_equal(instance["x"], np.array(7, np.int8), strict=True)


F32 = pb.MS_FLOAT32
SIZE_ONE = "Instance tensor check failed: bytes or string type shape batch size can only be 1"
ONE_DIM = (
    "Instance tensor check failed: bytes or string type input shape can only be (1,) or empty, "
    "but given shape is "
)


@pytest.mark.parametrize(
    ("item", "detail"),
    [
        (text([1], pb.MS_STRING), SIZE_ONE),
        (text([1], pb.MS_BYTES, b"a", b"b"), SIZE_ONE),
        (text([1, 1], pb.MS_BYTES, b"a"), ONE_DIM + "[1, 1]"),
        (text([2], pb.MS_STRING, b"a"), ONE_DIM + "[2]"),
        (text([], pb.MS_STRING, b"\xff"), "Tensor check failed: string is not UTF-8"),
        (numbers([-1], F32, b""), "Tensor check failed: input  shape [-1] invalid"),
        (numbers([2, -1], F32, b""), "Tensor check failed: input  shape [2, -1] invalid"),
        (numbers([0, 1], F32, b""), "Tensor check failed: input  shape [0, 1] invalid"),
        (numbers([2**62, 4], F32, b""), f"Tensor check failed: input  shape [{2**62}, 4] invalid"),
        (numbers([2**31], pb.MS_INT8, b""), "Tensor check failed: input  shape [2147483648] inv"),
        (numbers([1] * 33, F32, b"abcd"), "input  shape of 33 dimensions invalid"),
        (numbers([1], pb.MS_UNKNOWN, b"abcd"), "input data type proto::MS_UNKNOWN invalid"),
        (numbers([1], 15, b"abcd"), "input data type number 15 invalid"),
        (numbers([2], F32, b"abcd"), "Tensor check failed: input data size 4 invalid"),
        (numbers([], F32, b""), "Tensor check failed: input data size 0 invalid"),
        (pb.Tensor(), "Tensor check failed: input data type proto::MS_UNKNOWN invalid"),
        (pb.Tensor(dtype=F32, shm_data=pb.ShmTensorData(memory_key="k")), "shm_data is not taken"),
        (
            pb.Tensor(
                dtype=pb.MS_BYTES, bytes_val=[b"a"], shm_data=pb.ShmTensorData(memory_key="k")
            ),
            "shm_data is not taken",
        ),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(item, detail, method):
    with pytest.raises(InvalidInputs) as raised:
        ms_proto.decode([message(x=item)], method("x"), "s")
    assert str(raised.value).startswith("Instances input x check failed, detail: ")
    assert detail in str(raised.value)


def test_a_missing_input_is_named(method):
    chunk = message(x=of_array(np.zeros(1, np.float32)))
    with pytest.raises(InvalidInputs) as raised:
        ms_proto.decode([chunk], method("x", "z"), "add")
    assert str(raised.value) == (
        "Cannot find input z in instance input: given are ['x'], the inputs of add are ['x', 'z']"
    )


def test_no_instances_are_refused(method):
    with pytest.raises(InvalidInputs, match="count of request cannot be 0, add"):
        ms_proto.decode([], method("x"), "add")


@pytest.mark.parametrize("chunk", [b"\x0a", b"\x0a\x02\x0a\xff", b"\x0b" * 2000])
def test_garbage_is_refused(chunk, method):
    with pytest.raises(InvalidInputs, match="not an Instance message"):
        ms_proto.decode([chunk], method("x"), "s")


def test_output_buffers_are_refused(method):
    instance = pb.Instance()
    instance.output_buffers["y"].memory_key = "k"
    with pytest.raises(InvalidInputs, match="output_buffers"):
        ms_proto.decode([instance.SerializeToString()], method(), "s")


def test_a_known_layout_is_used_only_for_its_own_bytes(method):
    one = message(x=numbers([2, 3], F32, bytes(24)))
    other = message(x=numbers([3, 2], F32, bytes(24)))
    assert len(one) == len(other)
    for chunk, shape in ((one, (2, 3)), (other, (3, 2)), (one, (2, 3)), (one, (2, 3))):
        assert ms_proto.decode([chunk], method("x"), "s")[0]["x"].shape == shape


def test_a_layout_with_more_than_the_inputs_is_not_learned(method):
    chunk = message(x=of_array(np.zeros(1, "<f4")), y=of_array(np.zeros(1, "<f4")))
    for _ in range(2):
        assert list(ms_proto.decode([chunk], method("x"), "s")[0]) == ["x"]
    assert not ms_instance._layouts


def test_layouts_are_forgotten_before_there_are_too_many(method):
    for size in range(1500):
        chunk = message(x=numbers([size], pb.MS_INT8, bytes(size)))
        ms_proto.decode([chunk], method("x"), "s")
    assert len(ms_instance._layouts) <= 1024


def test_a_shape_takes_no_memory_before_its_check(method):
    chunk = message(x=numbers([2**30], pb.MS_FLOAT64, b"1234"))
    tracemalloc.start()
    with pytest.raises(InvalidInputs, match="data size 4 invalid"):
        ms_proto.decode([chunk], method("x"), "s")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


values = st.one_of(
    arrays.arrays(
        st.sampled_from([np.dtype(kind) for kind in NUMBERS]),
        arrays.array_shapes(min_dims=0, max_dims=4, max_side=4),
    ),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.text(max_size=20).map(BoxedStr),
    st.binary(max_size=20).map(BoxedBytes),
)
instances = st.dictionaries(st.text(min_size=1, max_size=5), values, min_size=1, max_size=3)


@given(instances)
def test_the_protobuf_library_reads_encoded_instances(instance):
    items = pb.Instance.FromString(ms_proto.encode(instance)).items
    assert set(items) == set(instance)
    for name, value in instance.items():
        boxed = isinstance(value, BoxedStr | BoxedBytes)
        if isinstance(value, np.ndarray):
            assert items[name] == of_array(value)
        elif isinstance(value, str):
            assert items[name] == text([1] if boxed else [], pb.MS_STRING, value.encode())
        else:
            assert items[name] == text([1] if boxed else [], pb.MS_BYTES, value)


@given(instances)
def test_a_round_trip_keeps_values_and_types(instance):
    method = Method("m", tuple(instance), (), (), ())
    for _ in range(2):
        (decoded,) = ms_proto.decode([ms_proto.encode(instance)], method, "s")
        assert list(decoded) == list(instance)
        for name, value in instance.items():
            assert_same(decoded[name], value)


def test_a_strided_array_is_encoded_in_c_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T
    item = pb.Instance.FromString(ms_proto.encode({"y": array})).items["y"]
    assert list(item.shape.dims) == [3, 2]
    assert np.frombuffer(item.data, np.int32).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    "value", [np.array(["a"]), np.array([1], object), np.array([1j]), "\ud800", np.zeros(1, ">f4")]
)
def test_a_value_that_cannot_be_sent_is_an_error_of_the_stage(value):
    with pytest.raises(StageFailed, match="Failed to construct the response"):
        ms_proto.encode({"y": value})


@given(st.one_of(st.binary(max_size=100), instances.map(ms_proto.encode)), st.data())
def test_only_our_errors_come_out_of_any_bytes(chunk, data):
    changed = bytearray(chunk)
    for _ in range(data.draw(st.integers(0, 3)) if chunk else 0):
        changed[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    method = Method("m", ("x",), (), (), ())
    try:
        (decoded,) = worker_codec("ms_proto").decode([memoryview(changed)], method, "s")
    except ServingError:
        return
    assert isinstance(decoded["x"], np.ndarray | str | bytes)


@given(instances, st.data())
def test_a_known_layout_reads_as_the_library_does(instance, data):
    chunk = bytearray(ms_proto.encode(instance))
    method = Method("m", tuple(instance), (), (), ())
    ms_instance._layouts.clear()
    ms_proto.decode([bytes(chunk)], method, "s")
    chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    results = []
    for _ in range(2):
        try:
            results.append(ms_proto.decode([chunk], method, "s")[0])
        except InvalidInputs:
            results.append({})
        ms_instance._layouts.clear()  # the second time by the library
    assert list(results[0]) == list(results[1])
    for name, value in results[0].items():
        assert_same(value, results[1][name])
