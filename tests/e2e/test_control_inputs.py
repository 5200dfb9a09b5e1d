"""Control inputs of sequences: models that Triton's config.pbtxt describes, beside ONNX Runtime."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.e2e.harness import Calls, config, serving
from tests.waiting import eventually

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(7)
STEPS = 4

SUM = """
max_batch_size: 16
input { name: "x" data_type: TYPE_FP32 dims: 3 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
output { name: "flags" data_type: TYPE_FP32 dims: 1 }
output { name: "id" data_type: TYPE_UINT64 dims: 1 }
output { name: "rows" data_type: TYPE_INT64 dims: 1 }
sequence_batching {
  direct { max_queue_delay_microseconds: 100 }
  max_sequence_idle_microseconds: 60000000
  control_input { name: "START"
    control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ -2, 5 ] } }
  control_input { name: "READY"
    control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
  control_input { name: "CORRID"
    control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
  state { input_name: "sum" output_name: "next" data_type: TYPE_FP32 dims: 3 }
}
"""
NAMED = """
sequence_batching {
  oldest { max_candidate_sequences: 8 preferred_batch_size: 4 max_queue_delay_microseconds: 100 }
  control_input { name: "id" control { kind: CONTROL_SEQUENCE_CORRID data_type: %s } }
}
"""


def write_sum(path: Path) -> None:
    """A sum of x that START sets to 100 first; all control inputs go into outputs."""
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = [
        helper.make_node("Mul", ["START", "hundred"], ["first"]),
        helper.make_node("Add", ["sum", "first"], ["begun"]),
        helper.make_node("Add", ["begun", "x"], ["next"]),
        helper.make_node("Identity", ["next"], ["y"]),
        helper.make_node("Cast", ["END"], ["end"], to=kinds.FLOAT),
        helper.make_node("Cast", ["READY"], ["ready"], to=kinds.FLOAT),
        helper.make_node("Sum", ["first", "end", "ready"], ["flags"]),
        helper.make_node("Identity", ["CORRID"], ["id"]),
        helper.make_node("Shape", ["x"], ["count"], start=0, end=1),
        helper.make_node("Shape", ["START"], ["column"]),
        helper.make_node("Expand", ["count", "column"], ["rows"]),
    ]
    controls = {"END": kinds.INT32, "READY": kinds.BOOL, "START": kinds.FLOAT}
    controls["CORRID"] = kinds.UINT64
    inputs = [helper.make_tensor_value_info(n, kind, ["n", 1]) for n, kind in controls.items()]
    rows = {n: helper.make_tensor_value_info(n, kinds.FLOAT, ["n", 3]) for n in ("x", "sum")}
    inputs = [inputs[0], rows["x"], *inputs[1:3], rows["sum"], inputs[3]]  # in no order
    outputs = [
        helper.make_tensor_value_info("y", kinds.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("next", kinds.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("flags", kinds.FLOAT, ["n", 1]),
        helper.make_tensor_value_info("id", kinds.UINT64, ["n", 1]),
        helper.make_tensor_value_info("rows", kinds.INT64, ["n", 1]),
    ]
    hundred = helper.make_tensor("hundred", kinds.FLOAT, [], [100.0])
    write(path, helper.make_graph(nodes, "sum", inputs, outputs, [hundred]))


def write_named(path: Path, kind: int) -> None:
    """A model without a batch and a state, which returns its inputs."""
    helper = onnx.helper
    tensors = {"x": onnx.TensorProto.FLOAT, "id": kind}
    inputs, outputs = (
        [helper.make_tensor_value_info(prefix + n, kind, [1]) for n, kind in tensors.items()]
        for prefix in ("", "same_")
    )
    nodes = [helper.make_node("Identity", [name], [f"same_{name}"]) for name in tensors]
    write(path, helper.make_graph(nodes, "named", inputs, outputs))


def write(path: Path, graph: Any) -> None:
    path.parent.mkdir(parents=True)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    write_sum(directory / "sum" / "1" / "model.onnx")
    (directory / "sum" / "config.pbtxt").write_text(SUM)
    for name, kind in (("text", "STRING"), ("small", "INT32")):
        write_named(directory / name / "1" / "model.onnx", getattr(onnx.TensorProto, kind))
        (directory / name / "config.pbtxt").write_text(NAMED % f"TYPE_{kind}")
    return directory


@pytest.fixture(scope="module")
def calls(directory: Path) -> Iterator[Calls]:
    names = ("sum", "text", "small")
    with serving(directory, *(config(directory, name) for name in names)) as calls:
        yield calls


def by_hand(path: Path, number: int, chunks: "np.ndarray[Any, Any]") -> list[dict[str, Any]]:
    """The outputs of ONNX Runtime for the whole sequence of `chunks`, its state carried along."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    state, steps = np.zeros((1, 3), np.float32), []
    for index, chunk in enumerate(chunks):
        feed = {
            "x": chunk[None],
            "sum": state,
            "START": np.float32([[index == 0]]),
            "END": np.int32([[5 if index == len(chunks) - 1 else -2]]),
            "READY": np.array([[True]]),
            "CORRID": np.uint64([[number]]),
        }
        answer = dict(zip(names, session.run(None, feed), strict=True))
        state = answer.pop("next")
        steps.append(answer)
    return steps


def assert_equal(result: Any, expected: dict[str, Any]) -> None:
    for name in ("y", "flags", "id"):
        np.testing.assert_array_equal(result.as_numpy(name), expected[name], name)


def tensor(library: Any, value: "np.ndarray[Any, Any]") -> list[Any]:
    x = library.InferInput("x", list(value.shape), "FP32")
    x.set_data_from_numpy(np.ascontiguousarray(value, np.float32))
    return [x]


def test_control_inputs_follow_the_sequence(calls: Calls, directory: Path) -> None:
    chunks = RNG.standard_normal((STEPS, 3)).astype(np.float32)
    number = 2**64 - 7
    expected = by_hand(directory / "sum" / "1" / "model.onnx", number, chunks)
    assert [step["flags"].item() for step in expected] == [99, -1, -1, 6]
    with triton_http.InferenceServerClient(f"127.0.0.1:{calls.http}") as client:
        described = client.get_model_metadata("sum")
        assert [row["name"] for row in described["inputs"]] == ["x"]
        assert [row["name"] for row in described["outputs"]] == ["y", "flags", "id", "rows"]
        for index, chunk in enumerate(chunks):
            step = {"sequence_start": index == 0, "sequence_end": index == STEPS - 1}
            x = tensor(triton_http, chunk[None])
            result = client.infer("sum", x, sequence_id=number, **step)
            assert_equal(result, expected[index])
        for name in ("START", "sum"):
            extra = triton_http.InferInput(name, [1, 1], "FP32")
            extra.set_data_from_numpy(np.ones((1, 1), np.float32))
            x = [*tensor(triton_http, chunks[:1]), extra]
            with pytest.raises(InferenceServerException, match=name):
                client.infer("sum", x, sequence_id=3, sequence_start=True)


def test_instances_of_a_request_are_steps(calls: Calls, directory: Path) -> None:
    chunks = RNG.standard_normal((STEPS, 3)).astype(np.float32)
    expected = by_hand(directory / "sum" / "1" / "model.onnx", 12, chunks)
    with triton_http.InferenceServerClient(f"127.0.0.1:{calls.http}") as client:
        step = {"sequence_id": 12, "sequence_start": True, "sequence_end": True}
        result = client.infer("sum", tensor(triton_http, chunks), **step)
    assert_equal(result, {name: np.concatenate([step[name] for step in expected])
                          for name in ("y", "flags", "id")})  # fmt: skip


def test_sequences_of_other_clients_share_batches(calls: Calls, directory: Path) -> None:
    path, count = directory / "sum" / "1" / "model.onnx", 12
    chunks = RNG.standard_normal((count, STEPS, 3)).astype(np.float32)
    expected = [by_hand(path, 50 + number, part) for number, part in enumerate(chunks)]
    with triton_grpc.InferenceServerClient(calls.grpc) as client:

        def run_all() -> bool:
            """Run all sequences at once; return whether one of their batches had several."""
            results: dict[tuple[int, int], Any] = {}
            for index in range(STEPS):
                for number in range(count):
                    client.async_infer(
                        "sum",
                        tensor(triton_grpc, chunks[number, index][None]),
                        lambda result, error, key=(number, index): results.update(
                            {key: error or result}
                        ),
                        sequence_id=50 + number,
                        sequence_start=index == 0,
                        sequence_end=index == STEPS - 1,
                    )
                eventually(lambda size=(index + 1) * count: len(results) == size)
            for (number, index), result in results.items():
                assert not isinstance(result, Exception), result
                assert_equal(result, expected[number][index])
            return max(result.as_numpy("rows").max() for result in results.values()) > 1

        eventually(run_all)


def test_an_id_has_the_type_of_the_input(calls: Calls) -> None:
    start = {"sequence_start": True}
    with triton_http.InferenceServerClient(f"127.0.0.1:{calls.http}") as client:
        x = tensor(triton_http, np.ones(1))
        answer = client.infer("text", x, sequence_id="mic é", **start)
        assert answer.as_numpy("same_id").tolist() == ["mic é".encode()]
        answer = client.infer("small", x, sequence_id=2**31 - 1, **start)
        assert answer.as_numpy("same_id").tolist() == [2**31 - 1]
        for name, number, message in (
            ("text", 5, "sequence_id is 5, expected a text: input 'id' of the model"),
            ("small", "five", "sequence_id is 'five', expected a number up to 2147483647"),
            ("small", 2**31, "sequence_id is 2147483648, expected a number up to 2147483647"),
        ):
            with pytest.raises(InferenceServerException, match=message) as caught:
                client.infer(name, x, sequence_id=number, **start)
            assert caught.value.status() == "400"
            with pytest.raises(InferenceServerException, match="begin one with sequence_start"):
                client.infer(name, x, sequence_id=number)  # the start has begun nothing
        with pytest.raises(InferenceServerException, match="name the sequence of the request"):
            client.infer("small", x)


def test_ids_of_headers_and_of_streams_are_texts(calls: Calls) -> None:
    step = {"Sequence-Id": "5", "Sequence-Start": "true", "Sequence-End": "true"}
    answer = calls.post("text", "predict", [{"x": [1.0]}], step)
    assert answer["instances"][0]["same_id"] == "5"
    answer = calls.post("small", "predict", [{"x": [1.0]}], step)
    assert "sequence_id is '5', expected a number up to 2147483647" in str(answer)
    results: list[Any] = []
    with triton_grpc.InferenceServerClient(calls.grpc) as client:
        client.start_stream(lambda result, error: results.append(error or result))
        for name in ("text", "text", "sum"):
            shape = (1, 3) if name == "sum" else 1
            client.async_stream_infer(name, tensor(triton_grpc, np.ones(shape)))
        eventually(lambda: len(results) == 3)
        client.stop_stream()
    errors = [result for result in results if isinstance(result, Exception)]
    ids = {result.as_numpy("same_id").item() for result in results if result not in errors}
    assert [identity[:7] for identity in ids] == [b"stream "]  # both requests have the same
    (error,) = errors
    assert "expected a number up to 18446744073709551615: input 'CORRID'" in str(error)
