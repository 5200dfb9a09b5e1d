"""What the master takes apart on its event loop is bounded: by memory here, and so by time."""

import json
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

from mindspore_serving.core.buffers import contiguous
from mindspore_serving.core.graph import Method
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.proto import inference_pb2
from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire import ms_json, ms_proto, splitting
from mindspore_serving.wire.v2 import messages
from mindspore_serving.wire.v2.datatypes import BY_NAME
from mindspore_serving.wire.v2.tensors import InputTensor, TensorBody

MANY = 1_000_000
METHOD = Method("m", ("x",), ("y",), (), (0,))
ENOUGH = 16 << 20  # bytes; a million objects of Python take over 60 MB


@contextmanager
def little_memory():
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < ENOUGH


def instances(text, count):
    return b'{"instances":[{"x":1}' + text * count + b"]}"


@pytest.mark.parametrize("text", [b",{}", b',{"x":1}', b',{"x":{}}'])
def test_a_body_of_very_many_instances_is_not_split(text):
    body = instances(text, MANY)
    with little_memory():
        codec, chunks = splitting.split("ms_json", body)
    assert codec == "ms_json"
    assert len(chunks) == 1
    assert chunks[0] is body


def test_a_body_of_many_bytes_is_not_split():
    body = instances(b',{"x":"%b"}' % (b"a" * splitting.MAX_SPLIT_BYTES), 1)
    assert splitting.split("ms_json", body) == ("ms_json", (body,))


@pytest.mark.parametrize("text", [b",0", b",[]", b',""'])
def test_items_that_are_no_instances_are_refused_before_counting(text):
    with little_memory(), pytest.raises(InvalidInputs, match="instance is not object type"):
        splitting.split("ms_json", instances(text, MANY))


def test_an_instance_of_many_numbers_stays_a_single_chunk():
    numbers = list(range(100_000))
    body = json.dumps({"instances": [{"x": numbers}, {"x": [1]}]}).encode()
    codec, chunks = splitting.split("ms_json", body)
    assert codec == "ms_json_items"
    assert [json.loads(bytes(chunk)) for chunk in chunks] == [{"x": numbers}, {"x": [1]}]


@pytest.mark.parametrize(("text", "count"), [(b",{}", 2 * MANY), (b',{"x":[{},{}]}', MANY)])
def test_a_worker_refuses_very_many_objects_before_creating_any(text, count):
    body = instances(text, count)
    with little_memory(), pytest.raises(TooLarge, match=f"over {ms_json.MAX_OBJECTS} objects"):
        ms_json.decode(memoryview(body), METHOD, "s")


def test_braces_in_texts_are_no_objects():
    body = instances(b',{"x":"%b"}' % (b"{" * (ms_json.MAX_OBJECTS + 1)), 1)
    (_, second) = ms_json.decode(body, METHOD, "s")
    assert second["x"] == "{" * (ms_json.MAX_OBJECTS + 1)


def test_fields_that_nobody_knows_are_counted_as_instances_are():
    body = pb.PredictRequest().SerializeToString() + b"\x78\x01" * MANY
    for read in (ms_proto.peek, ms_proto.split):
        with little_memory(), pytest.raises(TooLarge):
            read(body)


def test_fields_of_a_v2_message_are_counted():
    body = inference_pb2.ModelInferRequest(model_name="m").SerializeToString()
    with little_memory(), pytest.raises(TooLarge, match="fields"):
        messages.read(body + b"\x1a\x00" * MANY)


def test_contents_of_v2_messages_are_not_made_into_objects():
    message = inference_pb2.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype="BYTES", shape=[MANY])
    tensor.contents.bytes_contents.extend([b""] * MANY)
    body = message.SerializeToString()
    with little_memory():
        rest, contents = messages.read(body)
    assert not rest.inputs[0].HasField("contents")
    (typed,) = contents.typed
    assert len(typed) == 2 * MANY


def body_of(datatype, shape, form, data):
    return TensorBody([InputTensor("x", BY_NAME[datatype], shape, form, data)])


@pytest.mark.parametrize(
    "body",
    [
        body_of("BYTES", (2, MANY // 2), "raw", b"\0\0\0\0" * MANY),
        body_of("BYTES", (2,), "json", b"[%b]" % b",".join([b'""'] * MANY)),
        body_of(
            "FP32",
            (2, MANY),
            "json",
            b"[%b]" % b",".join([b"0"] * (splitting.MAX_SPLIT_BYTES // 2)),
        ),
    ],
    ids=["raw texts", "texts", "numbers"],
)
def test_a_v2_body_that_takes_long_to_split_is_not_split(body):
    with little_memory():
        _, chunks = splitting.split("v2_json", body)
    assert len(chunks) == 1


def test_raw_numbers_are_cut_however_many_they_are():
    array = np.zeros((2, MANY), "<f4")
    _, chunks = splitting.split("v2_raw", body_of("FP32", array.shape, "raw", array.tobytes()))
    assert len(chunks) == 2


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP32", np.arange(6, dtype="<f4").reshape(3, 2)),
        ("INT64", np.arange(4, dtype="<i8")),
        ("FP64", np.ones(1, "<f8")),
    ],
)
def test_packed_v2_body_splits_into_equal_chunks(datatype, array):
    body = body_of(datatype, array.shape, "raw", array.tobytes())
    copied = [bytes(buffer) for buffer in splitting.pack("v2_raw", body)]
    codec, chunks = splitting.split("v2_raw", splitting.unpack("v2_raw", copied))
    expected_codec, expected = splitting.split("v2_raw", body)
    assert codec == expected_codec
    assert [bytes(contiguous(chunk)) for chunk in chunks] == [
        bytes(contiguous(chunk)) for chunk in expected
    ]


def test_body_of_other_codecs_is_packed_unchanged():
    body = instances(b',{"x":2}', 1)
    assert splitting.unpack("ms_json", splitting.pack("ms_json", body)) is body
    assert not splitting.accepts_views("ms_json")


def test_worker_resplits_json_and_keeps_chunks_of_messages():
    codec, chunks = splitting.resplit("ms_json", [memoryview(instances(b',{"x":2}', 1))])
    assert codec == "ms_json_items"
    assert [json.loads(bytes(chunk)) for chunk in chunks] == [{"x": 1}, {"x": 2}]
    assert splitting.resplit("ms_proto", [b"a", b"b"]) == ("ms_proto", [b"a", b"b"])
    assert splitting.resplit("v2_raw", [b"a"]) == ("v2_raw", ())
