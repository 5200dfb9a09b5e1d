"""Model directories of other servers, served unchanged and called by their clients."""

import importlib
import json
import warnings
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from tests.cli.commands import SERVING, Command
from tests.e2e.harness import ROOT
from tests.ports import free_port

onnx = pytest.importorskip("onnx", reason="it writes one of the models")
torch = pytest.importorskip("torch", reason="it writes one of the models")
pytest.importorskip("onnxruntime", reason="it runs one of the models")
pytest.importorskip("openvino", reason="it runs one of the models")
if find_spec("sklearn") is None:
    pytest.skip("scikit-learn writes one of the models", allow_module_level=True)
tritonclient = pytest.importorskip("tritonclient.grpc")
pytestmark = [pytest.mark.e2e, pytest.mark.onnx, pytest.mark.torch]


class Affine(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + y, x - y


def affine_script() -> bytes:
    script = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript
        torch.jit.save(torch.jit.script(Affine()), script)
    return script.getvalue()


def doubling(shape: list[int | None]) -> Any:
    from onnx import TensorProto, helper

    x, y, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xyz")
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    graph = helper.make_graph(nodes, "g", [x], [y, z])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_triton(directory: Path, name: str, config: str) -> Path:
    (directory / name / "2").mkdir(parents=True)
    (directory / name / "config.pbtxt").write_text(config)
    return directory / name / "2"


def make_repository(directory: Path) -> None:
    version = write_triton(
        directory,
        "double",
        """name: "double" backend: "onnxruntime" max_batch_size: 2
        default_model_filename: "net.onnx"
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels" } ]
        instance_group [ { count: 2 kind: KIND_CPU } ]
        model_warmup { name: "w" batch_size: 2 inputs {
          key: "x" value: { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } }
        optimization { graph { level: 1 } }
        response_cache { enable: true }""",
    )
    (version.parent / "labels").write_text("left\nright side\n")
    onnx.save(doubling([None, 2]), version / "net.onnx")
    onnx.save(doubling([None, 3]), version / "other.onnx")
    version = write_triton(
        directory,
        "whole",
        """platform: "onnxruntime_onnx"
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 2, 3 ] } ]""",
    )
    onnx.save(doubling([2, 3]), version / "model.onnx")
    version = write_triton(
        directory,
        "script",
        """platform: "pytorch_libtorch" max_batch_size: 8
        input [ { name: "INPUT__1" data_type: TYPE_FP32 dims: [ 2 ] },
                { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 2 ] } ]
        output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2 ] },
                 { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 2 ] } ]""",
    )
    (version / "model.pt").write_bytes(affine_script())
    write_triton(directory, "ensemble", 'platform: "ensemble" ensemble_scheduling {}')


def make_mlflow(directory: Path) -> Path:
    """A directory of MLflow, without the model."""
    directory.mkdir()
    columns = [{"type": "double", "name": name, "required": True} for name in ("a", "b")]
    description = f"""
flavors:
  python_function: {{loader_module: mlflow.sklearn, model_path: model.pkl}}
  sklearn: {{pickled_model: model.pkl, serialization_format: cloudpickle}}
signature: {{inputs: '{json.dumps(columns)}'}}"""
    (directory / "MLmodel").write_text(description)
    return directory


def make_more(directory: Path) -> None:
    """MLServer's settings, an archive of TorchServe, and a Modelfile of Ollama."""
    import joblib
    from sklearn.linear_model import LinearRegression

    (directory / "rows").mkdir()
    model = LinearRegression().fit([[0.0, 0.0], [1.0, 2.0], [2.0, 1.0]], [1.0, 6.0, 5.0])
    joblib.dump(model, directory / "rows" / "model.joblib")
    settings = {
        "name": "linear",
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./model.joblib"},
        "inputs": [{"name": "row", "datatype": "FP32", "shape": [-1, 2]}],
        "warm_workers": True,
    }
    (directory / "rows" / "model-settings.json").write_text(json.dumps(settings))
    joblib.dump(model, make_mlflow(directory / "flow") / "model.pkl")
    with zipfile.ZipFile(directory / "affine.mar", "w") as archive:
        manifest = {"modelName": "affine", "serializedFile": "net.pt", "handler": "handler.py"}
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": manifest}))
        archive.writestr("handler.py", f"open({str(directory / 'ran')!r}, 'w')")
        archive.writestr("net.pt", affine_script())
    (directory / "pirate").mkdir()
    modelfile = f"""FROM {ROOT}/examples/tiny_llm/model
PARAMETER num_ctx 128
PARAMETER temperature 0
PARAMETER num_predict 3
PARAMETER num_gpu 9
SYSTEM \"\"\"You are a pirate.\"\"\""""
    (directory / "pirate" / "Modelfile").write_text(modelfile)


class Served:
    """The server, its ports, its models, and what it printed."""

    def __init__(self, command: Command, directory: Path, http: int, grpc: int) -> None:
        self.command, self.directory = command, directory
        self.http, self.grpc = http, grpc

    def get(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.http}{path}") as answer:
            return json.load(answer)

    def post(self, path: str, body: object) -> Any:
        request = Request(f"http://127.0.0.1:{self.http}{path}", json.dumps(body).encode())
        with urlopen(request) as answer:
            return json.load(answer)

    def infer(self, model: str, **tensors: np.ndarray[Any, Any]) -> Any:
        """Call by Triton's client."""
        inputs = []
        for name, array in tensors.items():
            tensor = tritonclient.InferInput(name, list(array.shape), "FP32")
            tensor.set_data_from_numpy(array.astype(np.float32))
            inputs.append(tensor)
        with tritonclient.InferenceServerClient(f"127.0.0.1:{self.grpc}") as client:
            return client.infer(model, inputs)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("foreign")
    make_repository(directory / "models")
    make_more(directory / "models")
    http, grpc = free_port(), free_port()
    ports = ["--http-port", str(http), "--grpc-port", str(grpc)]
    with Command([*SERVING, "serve", "models", "--allow-pickle", *ports], directory) as command:
        command.says("Ctrl-C stops")
        yield Served(command, directory / "models", http, grpc)


def test_a_repository_of_triton_answers_its_client(served: Served) -> None:
    rows = np.array([[1, 2], [3, 4], [5, 6]])  # more than max_batch_size
    answer = served.infer("double", x=rows)
    np.testing.assert_array_equal(answer.as_numpy("y"), rows * 2)
    assert answer.as_numpy("z") is None  # config.pbtxt does not list it


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_output_is_classified_with_labels(served: Served, protocol: str) -> None:
    triton = importlib.import_module(f"tritonclient.{protocol}")
    address = f"127.0.0.1:{getattr(served, protocol)}"
    tensor = triton.InferInput("x", [2, 2], "FP32")
    tensor.set_data_from_numpy(np.float32([[1, 2], [4, 3]]))
    output = triton.InferRequestedOutput("y", class_count=2)
    with triton.InferenceServerClient(address) as client:
        answer = client.infer("double", [tensor], outputs=[output])
    assert answer.as_numpy("y").tolist() == [
        [b"4.000000:1:right side", b"2.000000:0:left"],
        [b"8.000000:0:left", b"6.000000:1:right side"],
    ]
    body = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}],
        "outputs": [{"name": "y", "parameters": {"classification": 1}}],
    }
    (shown,) = served.post("/v2/models/double/infer", body)["outputs"]
    assert (shown["shape"], shown["data"]) == ([1, 1], ["4.000000:1:right side"])


def test_a_model_without_batches_takes_tensors_of_its_shape(served: Served) -> None:
    whole = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(served.infer("whole", x=whole).as_numpy("y"), whole * 2)
    described = served.get("/v2/models/whole")
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [2, 3]}]


def test_a_script_has_the_names_and_types_of_its_description(served: Served) -> None:
    x, y = np.array([[1, 2]]), np.array([[3, 5]])
    answer = served.infer("script", INPUT__1=y, INPUT__0=x)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT__0"), x * 2 + y)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT__1"), x - y)
    (first, _) = served.get("/v2/models/script")["inputs"]
    assert first == {"name": "INPUT__0", "datatype": "FP32", "shape": [-1, 2]}


def test_the_start_names_fields_without_effect_and_refused_models(served: Served) -> None:
    text = "\n".join(served.command.lines)
    assert "double: without effect here, of Triton's config.pbtxt: optimization" in text
    assert "Not served: ensemble: config.pbtxt: platform 'ensemble' is not run here" in text
    assert "double, version 2, 2 workers" in text


def test_a_model_of_mlserver_has_the_names_of_its_settings(served: Served) -> None:
    answer = served.infer("linear", row=np.array([[1, 1], [2, 2]]))
    np.testing.assert_allclose(answer.as_numpy("prediction"), [4.0, 7.0])
    assert "linear: without effect here, of MLServer's model-settings.json: warm_workers" in (
        "\n".join(served.command.lines)
    )


def test_a_directory_of_mlflow_finds_columns_by_the_names_of_its_signature(served: Served) -> None:
    frame = {"columns": ["b", "a"], "data": [[1, 1], [2, 1], [1, 2]]}
    answer = served.post("/v1/models/flow:predict", {"dataframe_split": frame})
    np.testing.assert_allclose(answer["predictions"], [4.0, 6.0, 5.0])
    (flow,) = [row for row in served.get("/servables")["servables"] if row["name"] == "flow"]
    (x,) = flow["methods"]["predict"]["input_specs"]
    assert (x["name"], x["columns"]) == ("x", ["a", "b"])


def test_an_archive_of_torchserve_is_served_without_its_code(served: Served) -> None:
    answer = served.infer("affine", x=np.array([[1, 2]]), y=np.array([[3, 5]]))
    np.testing.assert_array_equal(answer.as_numpy("output0"), [[5, 9]])
    assert not (served.directory / "ran").exists()
    text = "\n".join(served.command.lines)
    assert "MANIFEST.json: handler handler.py (its code is not run: requests carry tensors)" in text


def test_a_modelfile_gives_context_sampling_and_system_message(served: Served) -> None:
    body = {"model": "pirate", "messages": [{"role": "user", "content": "Who?"}], "stream": False}
    answer = served.post("/api/chat", body)
    assert (answer["done_reason"], answer["eval_count"]) == ("length", 3)
    with_system = {"role": "system", "content": "You are a pirate."}
    body["messages"] = [with_system, *body["messages"]]
    again = served.post("/api/chat", body)
    assert again["prompt_eval_count"] == answer["prompt_eval_count"]
    assert again["message"] == answer["message"]
    (row,) = [row for row in served.get("/v1/models")["data"] if row["id"] == "pirate"]
    assert (row["max_model_len"], row["default_sampling"]["temperature"]) == (128, 0)
