"""Which instance of a request cannot be read."""

import json

import pytest

from mindspore_serving.core.graph import Method
from mindspore_serving.errors import InvalidInputs, TooLarge
from mindspore_serving.ipc.messages import RequestPart
from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.wire import tensor
from mindspore_serving.worker.decoding import decode
from mindspore_serving.worker.job import PreparedMethod

PROGRAM = PreparedMethod(Method("m", ("x",), ("y",), (), (0,)), "s")
GOOD, BAD = {"x": 1}, {"x": None}
TEXT = (
    "Parser request failed, json value is null, it is not supported; null is a missing value of "
    "floats (input x)"
)


def error(codec, chunks, first=0):
    with pytest.raises(InvalidInputs) as caught:
        decode(RequestPart(1, "m", codec, [], None, first=first), chunks, PROGRAM)
    return str(caught.value)


def whole(*instances):
    return [json.dumps({"instances": list(instances)}).encode()]


def items(*instances):
    return [json.dumps(instance).encode() for instance in instances]


def test_valid_instances_are_decoded():
    assert len(decode(RequestPart(1, "m", "ms_json", [], None), whole(GOOD, GOOD), PROGRAM)) == 2


def test_the_index_of_an_instance_that_cannot_be_read_is_named():
    assert error("ms_json", whole(GOOD, GOOD, BAD)) == f"{TEXT} (instance 2, counted from 0)"
    assert error("ms_json_items", items(BAD, GOOD)) == f"{TEXT} (instance 0, counted from 0)"


def test_the_index_is_that_of_the_request_and_not_of_its_part():
    assert error("ms_json_items", items(GOOD, BAD), 40) == f"{TEXT} (instance 41, counted from 0)"


def test_the_error_of_a_single_instance_has_no_index():
    assert error("ms_json", whole(BAD)) == TEXT
    assert error("ms_json_items", items(BAD)) == TEXT


@pytest.mark.parametrize("body", [b"{", b"{}", b'{"instances": 1}', b'{"instances": []}'])
def test_a_request_that_is_wrong_as_a_whole_has_no_index(body):
    assert "counted" not in error("ms_json", [body])


def test_too_many_instances_stay_too_many(monkeypatch):
    monkeypatch.setattr(tensor, "MAX_INSTANCES", 2)
    with pytest.raises(TooLarge):
        decode(RequestPart(1, "m", "ms_json", [], None), whole(GOOD, GOOD, BAD), PROGRAM)


def test_of_tensors_too():
    good, bad = pb.Instance(), pb.Instance()
    good.items["x"].dtype = pb.MS_INT32
    good.items["x"].data = b"\0" * 4
    bad.items["x"].dtype = pb.MS_INT32
    text = error("ms_proto", [good.SerializeToString(), bad.SerializeToString()])
    assert text.startswith("Instances input x check failed, detail: ")
    assert text.endswith(" (instance 1, counted from 0)")
