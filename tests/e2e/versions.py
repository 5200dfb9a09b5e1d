"""Servable with three versions of a model, which multiply by different factors."""

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from tests.e2e.harness import Calls, config, write_servable
from tests.waiting import PATIENCE

SOURCE = """
model = register.declare_model("net.onnx", "ONNX")

def hold(y):
    while os.path.exists("hold") and float(y[0]) % 3 == 0:  # version 3, of numbers such as 1 and 2
        time.sleep(0.005)
    return y

@register.register_method(output_names=["y"])
def predict(x):
    return register.add_stage(hold, register.add_stage(model, x, outputs_count=1), outputs_count=1)
@register.register_method(output_names=["y"], retry=False)
def once(x):
    return register.add_stage(model, x, outputs_count=1)

def fail(y):
    if float(y[0]) % 3 == 0:
        raise RuntimeError("version 3 fails")
    return y

@register.register_method(output_names=["y"])
def broken(x):
    return register.add_stage(fail, register.add_stage(model, x, outputs_count=1), outputs_count=1)
"""
FACTORS = {1: 2.0, 2: 2.001, 3: 3.0}
WEIGHTS = {1: 75.0, 2: 25.0}
KEYS = "first-key-of-tests first\nother-key-of-tests other\n"
FIRST, OTHER = ({"authorization": f"Bearer {name}-key-of-tests"} for name in ("first", "other"))
USERS = [f"user-{number}" for number in range(12)]


def write_versions(directory: Path, name: str = "toy") -> None:
    onnx = pytest.importorskip("onnx", reason="it writes the models")
    make, number = onnx.helper, onnx.TensorProto.FLOAT
    write_servable(directory, name, SOURCE, versions=tuple(FACTORS))
    for version, factor in FACTORS.items():
        graph = make.make_graph(
            [make.make_node("Mul", ["x", "factor"], ["y"])],
            "multiply",
            [make.make_tensor_value_info("x", number, ["N", 1])],
            [make.make_tensor_value_info("y", number, ["N", 1])],
            [make.make_tensor("factor", number, [], [factor])],
        )
        opset = make.make_opsetid("", 17)
        model = make.make_model(graph, opset_imports=[opset], ir_version=8)
        onnx.save(model, directory / name / str(version) / "net.onnx")


def versions(directory: Path, **options: Any) -> list[server.ServableStartConfig]:
    return [config(directory, "toy", version_number=number, **options) for number in FACTORS]


def rest(
    calls: Calls,
    headers: dict[str, str],
    path: str = "/model/toy:predict",
    x: float = 1,
    *,
    is_lenient: bool = False,
) -> tuple[str, float]:
    """The version that has answered by the header, and y."""
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    try:
        body = json.dumps({"instances": [{"x": [x]}]})
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        if is_lenient and "instances" not in answer:
            return "", 0.0
        assert "instances" in answer, answer
        return reply.getheader("x-model-version", ""), answer["instances"][0]["y"][0]
    finally:
        connection.close()


def is_of(version: int, answer: tuple[str, float]) -> bool:
    return answer[0] == str(version) and answer[1] == pytest.approx(FACTORS[version])
