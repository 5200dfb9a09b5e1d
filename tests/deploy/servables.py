"""Servables for a rehearsal, and what to ask them for over HTTP."""

import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.deploy.building import Image
from tests.e2e.harness import ROOT

PORT = 1500
_UPPER = """
from mindspore_serving.server import register

def to_upper(text):
    return text.upper()

@register.register_method(output_names=["upper"])
def predict(text):
    return register.add_stage(to_upper, text, outputs_count=1)
"""
_RELU = """
import openvino as ov, openvino.opset13 as ops
x = ops.parameter([-1, 3], ov.Type.f32, name="x")
ov.save_model(ov.Model([ops.relu(x)], [x], "relu"), "/tmp/relu.xml")
"""


def make(image: Image, models: Path, extras: set[str]) -> None:
    """A Python servable; with OpenVINO a model file too, with `llm` a language model."""
    (models / "upper").mkdir(parents=True)
    (models / "upper/servable_config.py").write_text(_UPPER)
    if extras & {"llm", "lite"}:
        python = "/opt/serving/bin/python"
        subprocess.run(["chroot", image.root, python, "-c", _RELU], check=True)
        (models / "relu/1").mkdir(parents=True)
        for name in ("relu.xml", "relu.bin"):
            shutil.move(image.root / "tmp" / name, models / "relu/1")
    if "llm" in extras:
        shutil.copytree(ROOT / "examples/tiny_llm/model", models / "tiny")


def ask(models: Path) -> None:
    """Each servable once.  AssertionError for a wrong answer."""
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    assert infer("upper", text) == ["A"]
    if (models / "relu").exists():
        rows = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [-1, 0, 2]}
        assert infer("relu", rows) == [0, 0, 2]
    if (models / "tiny").exists():
        answer = json.loads(post("/v1/chat/completions", chat(8)).read())
        assert answer["usage"]["completion_tokens"] == 8, answer


def infer(name: str, tensor: dict[str, Any]) -> list[Any]:
    answer = post(f"/v2/models/{name}/infer", {"inputs": [tensor]})
    return list(json.loads(answer.read())["outputs"][0]["data"])


def chat(num_tokens: int, *, stream: bool = False) -> dict[str, Any]:
    message = {"role": "user", "content": "Hello"}
    options = {"max_tokens": num_tokens, "ignore_eos": True, "stream": stream}
    return {"model": "tiny", "messages": [message], **options}


def stream(num_tokens: int) -> Iterator[str]:
    """The lines of a streamed answer."""
    for line in post("/v1/chat/completions", chat(num_tokens, stream=True)):
        yield line.decode().strip()


def post(path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, (path, answer.status, answer.read())
    return answer


def get(path: str) -> tuple[int, str]:
    """The status and the body; 0 if nothing listens."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    try:
        connection.request("GET", path)
    except OSError:
        return 0, ""
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
