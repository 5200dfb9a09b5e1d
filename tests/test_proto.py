"""The generated protobuf modules are those of the .proto file, and its numbers are the wire's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindspore_serving.proto import ms_service_pb2 as pb
from mindspore_serving.proto import ms_service_pb2_grpc as pb_grpc
from tests.waiting import PATIENCE

pytest.importorskip("grpc_tools")
ROOT = Path(__file__).parents[1]
HERE = ROOT / "mindspore_serving" / "proto"


def test_generated_modules_are_up_to_date(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable}
    script = ROOT / "scripts" / "proto"
    subprocess.run([str(script), str(tmp_path)], check=True, env=environment, timeout=PATIENCE)
    generated = sorted((tmp_path / "mindspore_serving" / "proto").iterdir())
    assert [path.name for path in generated] == [
        "inference_pb2.py",
        "inference_pb2.pyi",
        "ms_service_pb2.py",
        "ms_service_pb2.pyi",
        "ms_service_pb2_grpc.py",
        "triton_model_pb2.py",
        "triton_model_pb2.pyi",
    ]
    for path in generated:
        assert path.read_text() == (HERE / path.name).read_text(), f"run scripts/proto: {path.name}"


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        ("PredictRequest", {"servable_spec": 1, "instances": 2}),
        ("PredictReply", {"servable_spec": 1, "instances": 3, "error_msg": 4}),
        ("ServableSpec", {"name": 1, "method_name": 2, "version_number": 3}),
        ("Instance", {"items": 1, "output_buffers": 2}),
        ("Tensor", {"shape": 1, "dtype": 2, "data": 3, "bytes_val": 4, "shm_data": 5}),
        ("TensorShape", {"dims": 1}),
        ("ShmTensorData", {"memory_key": 1, "bytes_size": 2, "data_offset": 3, "data_size": 4}),
        ("ErrorMsg", {"error_code": 1, "error_msg": 2}),
        ("TensorInfo", {"shape": 1, "dtype": 2, "size": 3, "is_no_batch_dim": 4}),
        ("PingRequest", {"address": 1}),
        ("PingReply", {"address": 1}),
        ("PongRequest", {"address": 1}),
        ("PongReply", {"address": 1}),
    ],
)
def test_field_numbers_are_those_of_the_wire(message, numbers):
    fields = pb.DESCRIPTOR.message_types_by_name[message].fields
    assert {field.name: field.number for field in fields} == numbers


def test_data_types_are_numbered_in_the_order_of_the_wire():
    integers = [f"{sign}INT{bits}" for bits in (8, 16, 32, 64) for sign in ("", "U")]
    names = ["UNKNOWN", "BOOL", *integers, "FLOAT16", "FLOAT32", "FLOAT64", "STRING", "BYTES"]
    assert dict(pb.DataType.items()) == {f"MS_{name}": i for i, name in enumerate(names)}


def test_the_service_has_its_old_full_name_and_a_streaming_sibling():
    service = pb.DESCRIPTOR.services_by_name["MSService"]
    assert service.full_name == "mindspore.serving.proto.MSService"
    assert not service.methods_by_name["Predict"].server_streaming
    assert service.methods_by_name["PredictStream"].server_streaming
    assert hasattr(pb_grpc, "MSServiceStub")
