"""Published model files, untouched: an archive of two is served, and answers as ONNX Runtime."""

import json
import re
import signal
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from mindspore_serving.client import Client
from tests import printed
from tests.cli.commands import SERVING, Command
from tests.ports import free_port
from tests.published import file_of
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.onnx]
REASON = "the first dimension of input 'input' is any size, that of input 'state' 2"
X = np.sin(np.arange(2 * 512, dtype=np.float32) / 5).reshape(2, 512) / 2
STATE = np.random.default_rng(0).standard_normal((2, 2, 128)).astype(np.float32)
RATE = np.array(16000)


@dataclass
class Zoo:
    """The server of zoo.zip, and sessions of ONNX Runtime with its files."""

    command: Command
    url: str
    grpc: str
    sessions: dict[str, Any]

    def get(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data), timeout=PATIENCE) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    onnxruntime = pytest.importorskip("onnxruntime")
    files = {
        "silero_vad": file_of("silero_vad", "data/silero_vad.onnx"),
        "magika": file_of("magika", "models/standard_v3_3/model.onnx"),
    }
    directory = tmp_path_factory.mktemp("zoo")
    with zipfile.ZipFile(directory / "zoo.zip", "w") as archive:
        for name, file in files.items():
            archive.write(file, f"{name}.onnx")
    sessions = {name: onnxruntime.InferenceSession(str(file)) for name, file in files.items()}
    http, grpc = free_port(), free_port()
    ports = ["--http-port", str(http), "--grpc-port", str(grpc)]
    with Command([*SERVING, "serve", "zoo.zip", *ports], directory) as command:
        command.says("Ctrl-C stops")
        yield Zoo(command, f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}", sessions)
        command.send(signal.SIGTERM)
        command.says("Stopped.")
        assert command.status() == 0
    (unpacked,) = set(re.findall(r"from (\S+/zoo)", command.text))
    assert not Path(unpacked).parent.exists()


@pytest.fixture(scope="module")
def expected(zoo: Zoo) -> Any:
    """Outputs of Silero VAD for two streams."""
    return zoo.sessions["silero_vad"].run(None, {"input": X, "state": STATE, "sr": RATE})


def test_each_file_of_the_archive_is_a_servable_whose_command_works(
    zoo: Zoo, tmp_path: Path
) -> None:
    lines = printed.commands(zoo.command.text)
    assert [re.findall(r"/model/(\w+):predict", line) for line in lines] == [
        ["magika"],
        ["silero_vad"],
    ]
    printed.paste_all(lines, tmp_path)


def test_a_model_without_batch_dimension_says_why(zoo: Zoo) -> None:
    text = f"none, a run has whole tensors: {REASON}"
    assert f"    batch: {text}\n" in zoo.command.text
    rows = {row["name"]: row["methods"]["predict"] for row in zoo.get("/servables")["servables"]}
    assert rows["silero_vad"]["batch"] == text
    assert "batch" not in rows["magika"]
    metadata = zoo.get("/v2/models/silero_vad")
    assert metadata["properties"] == {"batch": text}
    shapes = {tensor["name"]: tensor["shape"] for tensor in metadata["inputs"]}
    assert shapes == {"input": [-1, -1], "state": [2, -1, 128], "sr": []}
    assert "properties" not in zoo.get("/v2/models/magika")


def test_an_instance_of_rest_has_whole_tensors(zoo: Zoo, expected: Any) -> None:
    instance = {"input": X.tolist(), "state": STATE.tolist(), "sr": 16000}
    (answer,) = zoo.get("/model/silero_vad:predict", {"instances": [instance]})["instances"]
    np.testing.assert_array_equal(np.float32(answer["output"]), expected[0])
    np.testing.assert_array_equal(np.float32(answer["stateN"]), expected[1])


def test_an_instance_of_grpc_has_whole_tensors(zoo: Zoo, expected: Any) -> None:
    client = Client(zoo.grpc, "silero_vad", "predict")
    (answer,) = client.infer({"input": X, "state": STATE, "sr": RATE})
    np.testing.assert_array_equal(answer["output"], expected[0])
    np.testing.assert_array_equal(answer["stateN"], expected[1])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_v2_sends_whole_tensors_without_a_parameter(zoo: Zoo, expected: Any, count: int) -> None:
    """With `count` instances, in a further first dimension of all tensors."""
    tritonclient = pytest.importorskip("tritonclient.grpc")
    inputs = []
    for name, array in (("input", X), ("state", STATE), ("sr", np.array(RATE))):
        array = np.stack([array] * count) if count else array
        kind = "INT64" if name == "sr" else "FP32"
        inputs.append(tritonclient.InferInput(name, list(array.shape), kind))
        inputs[-1].set_data_from_numpy(array)
    with tritonclient.InferenceServerClient(zoo.grpc) as client:
        answer = client.infer("silero_vad", inputs)
    for name, array in zip(("output", "stateN"), expected, strict=True):
        array = np.stack([array] * count) if count else array
        np.testing.assert_array_equal(answer.as_numpy(name), array)


def test_magika_is_batched_and_its_answers_are_those_of_onnx_runtime(zoo: Zoo) -> None:
    texts = [Path(__file__).read_bytes(), b"%PDF-1.7\n", b"\x89PNG\r\n\x1a\n"]
    rows = np.full((3, 2048), 256, np.int32)  # 256 is padding
    for row, text in zip(rows, texts, strict=True):
        row[: len(text[:1024])] = list(text[:1024])
    answers = Client(zoo.grpc, "magika", "predict").infer([{"bytes": row} for row in rows])
    served = np.stack([answer["target_label"] for answer in answers])
    (expected,) = zoo.sessions["magika"].run(None, {"bytes": rows})
    np.testing.assert_allclose(served, expected, atol=1e-6)
