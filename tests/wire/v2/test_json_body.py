"""Bodies of infer requests over HTTP, and of their answers."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.core.signature import ValueSpec
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire import worker_codec
from mindspore_serving.wire.v2 import json_body
from mindspore_serving.wire.v2.outputs import join
from mindspore_serving.wire.v2.request import Region
from tests.wire.v2.making import METHOD, refuse_region, same, text_bytes, whole

X = np.arange(4, dtype="<f4").reshape(2, 2)
JSON_INPUT = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[0, 1], [2, 3]]}
BINARY = {"name": "x", "shape": [2, 2], "datatype": "FP32"}


def parse(body, length=None, read=refuse_region):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json_body.parse(text, length, read)


def binary(*tensors, head=None, tail=b""):
    """A request with tensors (name, array) behind its JSON."""
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in tensors
    ]
    text = json.dumps({"inputs": inputs, **(head or {})}).encode()
    return text + b"".join(array.tobytes() for _, array in tensors) + tail, len(text)


def test_data_in_json_are_read():
    request = parse({"id": "7", "inputs": [JSON_INPUT]})
    assert request.id == "7"
    assert same(whole(request.body), X)
    assert request.codec == "v2_json"


def test_data_behind_the_json_are_read_in_the_order_of_the_inputs():
    body, length = binary(("z", X * 2), ("x", X))
    request = parse(body, length)
    assert [bytes(one.data) for one in request.body.inputs] == [(X * 2).tobytes(), X.tobytes()]


def test_a_request_can_have_json_and_binary_data():
    body, length = binary(("z", X))
    text = json.loads(body[:length])
    text["inputs"].insert(0, JSON_INPUT)
    head = json.dumps(text).encode()
    request = parse(head + X.tobytes(), len(head))
    assert [one.form for one in request.body.inputs] == ["json", "raw"]


def test_batched_false_sends_a_single_instance():
    request = parse({"inputs": [JSON_INPUT], "parameters": {"batched": False}})
    assert request.body.num_instances == 1


@pytest.mark.parametrize(
    ("parameters", "outputs", "codec"),
    [
        ({"binary_data_output": True}, None, "v2_raw"),
        ({}, None, "v2_json"),
        ({"binary_data_output": True}, [{"name": "y"}], "v2_json"),
        ({}, [{"name": "y", "parameters": {"binary_data": True}}], "v2_raw"),
        ({}, [{"name": "y"}, {"name": "z", "parameters": {"binary_data": True}}], "v2_both"),
    ],
)
def test_outputs_have_the_requested_form(parameters, outputs, codec):
    body = {"inputs": [JSON_INPUT], "parameters": parameters}
    if outputs is not None:
        body["outputs"] = outputs
    assert parse(body).codec == codec


def test_inputs_and_outputs_may_be_in_shared_memory():
    place = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 16}
    read = []

    def read_region(region):
        read.append(region)
        return X.tobytes()

    body = {
        "inputs": [{**BINARY, "parameters": place}],
        "outputs": [{"name": "y", "parameters": place}],
    }
    request = parse(body, None, read_region)
    assert read == [Region("r", 8, 16)]
    assert request.outputs[0].region == Region("r", 8, 16)
    assert request.codec == "v2_raw"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "failed to parse the request JSON"),
        (b"\xff", "failed to parse"),
        (b"[" * 100_000, "failed to parse|nested too deeply"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing field `inputs`"),
        ({"inputs": [{"name": "x"}]}, "missing field"),
        ({"inputs": [{**JSON_INPUT, "shape": [2.5]}]}, "Expected `int`"),
        ({"inputs": [{**JSON_INPUT, "shape": [2**63]}]}, "Expected `int`|out of range"),
        ({"inputs": [{**JSON_INPUT, "shape": "2"}]}, "Expected `array`"),
        ({"inputs": [{**JSON_INPUT, "datatype": "FP8"}]}, "datatype 'FP8', expected one of BOOL"),
        ({"inputs": [BINARY]}, "input 'x' has no data"),
        ({"inputs": [{**BINARY, "parameters": {"binary_data_size": 16}}]}, "needs the header"),
        (
            {"inputs": [{**JSON_INPUT, "parameters": {"shared_memory_region": "r"}}]},
            "expected both",
        ),
        (
            {
                "inputs": [
                    {
                        **JSON_INPUT,
                        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 1},
                    }
                ]
            },
            "data and shared memory",
        ),
        ({"inputs": [JSON_INPUT], "parameters": {"sequence_id": 3}}, "sequence_id"),
        ({"inputs": [JSON_INPUT], "parameters": {"triton_x": 1}}, "reserved"),
        ({"inputs": [JSON_INPUT], "parameters": {"batched": 1}}, "expected true or false"),
        ({"inputs": [JSON_INPUT], "parameters": {"a": {}}}, "failed to parse"),
        (
            {
                "inputs": [JSON_INPUT],
                "outputs": [{"name": "y", "parameters": {"classification": -2}}],
            },
            "classification is -2, expected a number of classes",
        ),
        ({"inputs": [JSON_INPUT], "outputs": [{"name": "y"}, {"name": "y"}]}, "same name"),
        ({"inputs": [JSON_INPUT, JSON_INPUT]}, "same name"),
    ],
)
def test_a_body_that_is_no_request_is_refused_with_the_reason(body, problem):
    with pytest.raises(InvalidInputs, match=problem):
        parse(body)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda body, length: (body, len(body) + 1), "unexpected size for request JSON"),
        (lambda body, length: (body, length - 1), "failed to parse"),
        (lambda body, length: (body + b"x", length), "unexpected additional input data: 1 bytes"),
        (lambda body, length: (body[:-3], length), "expecting 3 additional bytes"),
        (lambda body, length: (body.replace(b": 16", b": -1"), length), "binary_data_size -1"),
        (lambda body, length: (body.replace(b": 16", b':"a"'), length), "binary_data_size 'a'"),
        (lambda body, length: (body.replace(b": 16", b": 12"), length), "12 bytes, expected 16"),
    ],
)
def test_binary_data_that_do_not_fit_are_refused(change, problem):
    with pytest.raises(InvalidInputs, match=problem):
        parse(*change(*binary(("x", X))))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"inputs":[' + b"{}," * 100_000 + b"{}]}", "over 8192 objects"),
        ({"inputs": [{**JSON_INPUT, "shape": [1] * 100_000}]}, "a shape or parameters of over"),
        ({"inputs": [JSON_INPUT], "parameters": {str(i): 1 for i in range(10_000)}}, "of over"),
    ],
    ids=["objects", "shape", "parameters"],
)
def test_large_shapes_are_refused_before_they_are_decoded(body, problem):
    with pytest.raises(InvalidInputs, match=problem):
        parse(body)


def test_texts_may_have_any_number_of_braces():
    texts = ["{" * 100_000, "}"]
    body = {"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": texts}]}
    assert [one["x"] for one in whole(parse(body).body)] == texts


@given(body=st.binary(max_size=300), length=st.integers(0, 400) | st.none())
def test_any_bytes_are_a_request_or_are_refused(body, length):
    with suppress(InvalidInputs):
        parse(body, length)


@given(place=st.integers(0, 400), value=st.integers(0, 255))
def test_a_request_with_another_byte_is_read_or_refused(place, value):
    body, length = binary(("x", X), head={"outputs": [{"name": "y"}]})
    mutated = bytearray(body)
    mutated[place % len(body)] = value
    with suppress(InvalidInputs):
        whole(parse(bytes(mutated), length).body, METHOD)


def test_a_body_without_json_is_the_only_input_of_an_instance():
    request = json_body.parse_raw(X.tobytes(), [ValueSpec("x", "float32", (None, 2))])
    assert same(whole(request.body), X[np.newaxis])
    assert request.codec == "v2_raw"
    (one,) = whole(json_body.parse_raw(b"abc", [ValueSpec("x", "bytes", ())]).body)
    assert one == {"x": b"abc"}


@pytest.mark.parametrize(
    ("specs", "problem"),
    [
        ([ValueSpec("x")], "one input of a known type"),
        ([ValueSpec("x", "float32", ()), ValueSpec("z", "float32", ())], "one input"),
        ([ValueSpec("x", "float32")], "no shape that the size"),
        ([ValueSpec("x", "float32", (None, None))], "no shape that the size"),
        ([ValueSpec("x", "float32", (3,))], "16 bytes, expected 12"),
    ],
)
def test_a_body_without_json_needs_a_method_with_a_known_type(specs, problem):
    with pytest.raises(InvalidInputs, match=problem):
        json_body.parse_raw(X.tobytes(), specs)


def answer(request, *instances):
    codec = worker_codec(request.codec)
    tensors = join([codec.encode(one) for one in instances], is_batched=request.body.is_batched)
    return json_body.answer("m", 1, request.id, list(request.select(tensors)))


def test_an_answer_has_all_outputs_unless_some_are_listed():
    row = {"y": X[0], "z": "text"}
    text, tail = answer(parse({"inputs": [JSON_INPUT]}), row, row)
    assert not tail
    assert json.loads(text) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [0.0, 1.0, 0.0, 1.0]},
            {"name": "z", "datatype": "BYTES", "shape": [2], "data": ["text", "text"]},
        ],
    }
    listed = [{"name": "z", "parameters": {"binary_data": True}}, {"name": "y"}]
    text, tail = answer(parse({"inputs": [JSON_INPUT], "outputs": listed}), row, row)
    z, y = json.loads(text)["outputs"]
    assert z["parameters"] == {"binary_data_size": 16}
    assert b"".join(tail) == text_bytes(["text", "text"])
    assert y["data"] == [0.0, 1.0, 0.0, 1.0]


def test_an_output_that_is_not_the_methods_is_refused():
    request = parse({"inputs": [JSON_INPUT], "outputs": [{"name": "q"}]})
    with pytest.raises(InvalidInputs, match="unexpected inference output 'q', expected: y"):
        answer(request, {"y": X[0]})
