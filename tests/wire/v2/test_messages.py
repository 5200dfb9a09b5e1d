"""ModelInferRequest and ModelInferResponse, compared with what protobuf makes of them."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.proto import inference_pb2 as pb
from mindspore_serving.wire import worker_codec
from mindspore_serving.wire.v2 import messages
from mindspore_serving.wire.v2.messages import ModelTarget
from mindspore_serving.wire.v2.outputs import join
from mindspore_serving.wire.v2.request import Region, RequestedOutput
from tests.wire.v2.making import METHOD, refuse_region, same, whole

X = np.arange(4, dtype="<f4").reshape(2, 2)


def message(**fields):
    found = pb.ModelInferRequest(model_name="m", model_version="3", id="7", **fields)
    found.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    return found


def parse(found, read=refuse_region):
    body = found if isinstance(found, bytes) else found.SerializeToString()
    rest, raw = messages.read(body)
    return messages.parse(rest, raw, read)


def test_raw_contents_are_read_wherever_they_stand():
    found = message(raw_input_contents=[X.tobytes()])
    assert same(whole(parse(found).body), X)
    only_raw = pb.ModelInferRequest(raw_input_contents=found.raw_input_contents)
    del found.raw_input_contents[:]
    turned = only_raw.SerializeToString() + found.SerializeToString()
    assert same(whole(parse(turned).body), X)


def test_contents_of_an_input_are_read():
    found = message()
    found.inputs[0].contents.fp32_contents.extend(X.ravel().tolist())
    assert same(whole(parse(found).body), X)


def test_contents_in_several_fields_are_merged_as_in_protobuf():
    found = pb.ModelInferRequest(model_name="m")
    one = found.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    half = pb.ModelInferRequest.InferInputTensor()
    half.contents.fp32_contents.extend([1.0, 2.0])
    other = pb.ModelInferRequest.InferInputTensor()
    other.contents.fp32_contents.extend([3.0, 4.0])
    tensor = half.SerializeToString() + one.SerializeToString() + other.SerializeToString()
    body = b"\x0a\x01m\x2a" + bytes([len(tensor)]) + tensor
    assert pb.ModelInferRequest.FromString(body).inputs[0].contents.fp32_contents == [1, 2, 3, 4]
    assert same(whole(parse(body).body), np.array([[1, 2], [3, 4]], "<f4"))


def test_invalid_messages_inside_an_input_are_refused():
    for wrong in (b"\x2a\x05\x0a", b"\x2a\x02\x0b\x0c", b"\x2a\x01\xff"):
        with pytest.raises(InvalidInputs, match="is not a valid ModelInferRequest"):
            parse(b"\x0a\x01m" + wrong)


def test_the_model_of_a_request_is_read():
    rest, _ = messages.read(message().SerializeToString())
    assert messages.target_of(rest) == ModelTarget("m", 3)
    rest.model_version = ""
    assert messages.target_of(rest) == ModelTarget("m", 0)
    for wrong in ("1.0", "-1", "latest", "9" * 11):
        rest.model_version = wrong
        with pytest.raises(InvalidInputs, match="expected a number"):
            messages.target_of(rest)


def test_parameters_have_the_values_of_each_kind():
    found = message(raw_input_contents=[X.tobytes()])
    found.parameters["timeout"].int64_param = 5
    found.parameters["priority"].uint64_param = 6
    found.parameters["note"].string_param = "text"
    found.parameters["share"].double_param = 0.5
    found.parameters["batched"].bool_param = False
    request = parse(found)
    assert request.parameters == {
        "timeout": 5,
        "priority": 6,
        "note": "text",
        "share": 0.5,
        "batched": False,
    }
    assert request.body.num_instances == 1


def test_an_input_in_shared_memory_takes_none_of_the_raw_contents():
    found = pb.ModelInferRequest(raw_input_contents=[X.tobytes()])
    shared = found.inputs.add(name="z", datatype="FP32", shape=[2, 2])
    shared.parameters["shared_memory_region"].string_param = "r"
    shared.parameters["shared_memory_byte_size"].int64_param = 16
    found.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    asked = []

    def read(region):
        asked.append(region)
        return bytes(16)

    z, x = parse(found, read).body.inputs
    assert asked == [Region("r", 0, 16)]
    assert (z.data, bytes(x.data)) == (bytes(16), X.tobytes())


@pytest.mark.parametrize(
    ("raw", "contents", "problem"),
    [
        ([b"\0" * 16, b"\0"], (), "more than the inputs"),
        ([b"\0" * 15], (), "15 bytes, expected 16"),
        ([b"\0" * 16], (1.0,), "contents in a request with raw_input_contents"),
        ([], (), "too few for shape"),
    ],
)
def test_contents_that_do_not_fit_are_refused(raw, contents, problem):
    found = message(raw_input_contents=raw)
    found.inputs[0].contents.fp32_contents.extend(contents)
    if not contents:
        found.inputs[0].ClearField("contents")
    with pytest.raises(InvalidInputs, match=problem):
        parse(found)


def test_an_input_without_raw_contents_is_named():
    found = message(raw_input_contents=[X.tobytes()])
    found.inputs.add(name="z", datatype="FP32", shape=[2, 2])
    with pytest.raises(InvalidInputs, match="input 'z' has no raw"):
        parse(found)


@given(body=st.binary(max_size=200))
def test_any_bytes_are_a_request_or_are_refused(body):
    with suppress(InvalidInputs):
        parse(body)


@given(place=st.integers(0, 200), value=st.integers(0, 255))
def test_a_request_with_another_byte_is_read_or_refused(place, value):
    mutated = bytearray(message(raw_input_contents=[X.tobytes()]).SerializeToString())
    mutated[place % len(mutated)] = value
    with suppress(InvalidInputs):
        whole(parse(bytes(mutated)).body, METHOD)


def tensors(*rows):
    encode = worker_codec("v2_raw").encode
    return join([encode(row) for row in rows], is_batched=True)


def test_an_answer_is_a_model_infer_response():
    found = tensors({"y": X[0], "s": "a"}, {"y": X[1], "s": "bc"})
    selected = [(one, RequestedOutput(one.name, True)) for one in found]
    response = pb.ModelInferResponse.FromString(
        messages.answer(ModelTarget("m", 3), "7", selected, {"triton_final_response": True})
    )
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "7")
    assert response.parameters["triton_final_response"].bool_param
    y, s = response.outputs
    assert (y.name, y.datatype, list(y.shape)) == ("y", "FP32", [2, 2])
    assert (s.name, s.datatype, list(s.shape)) == ("s", "BYTES", [2])
    assert list(response.raw_output_contents) == [X.tobytes(), b"\1\0\0\0a\2\0\0\0bc"]


def test_an_output_in_shared_memory_has_empty_raw_contents():
    (y,) = tensors({"y": X[0]})
    selected = [(y, RequestedOutput("y", True, Region("r", 8, 64)))]
    response = pb.ModelInferResponse.FromString(messages.answer(ModelTarget("m", 3), "", selected))
    parameters = messages.to_parameters(response.outputs[0].parameters)
    assert parameters == {
        "shared_memory_region": "r",
        "shared_memory_offset": 8,
        "shared_memory_byte_size": 8,
    }
    assert list(response.raw_output_contents) == [b""]


def test_a_stream_has_responses_and_errors_with_the_id_of_their_request():
    found = pb.ModelStreamInferResponse.FromString(
        messages.chunk(messages.answer(ModelTarget("m", 1), "7", ()))
    )
    assert (found.error_message, found.infer_response.id) == ("", "7")
    failed = pb.ModelStreamInferResponse.FromString(messages.failure("no \ud800", "8"))
    assert (failed.error_message, failed.infer_response.id) == ("no \\ud800", "8")
