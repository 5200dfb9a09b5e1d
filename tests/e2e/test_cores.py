"""Workers that are pinned to cores, with the threads of what they run models with."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.harness import config, eventually, serving, workers, write_servable

onnx = pytest.importorskip("onnx", reason="it writes the model")
pytest.importorskip("onnxruntime", reason="it runs the model")
pytestmark = [pytest.mark.e2e, pytest.mark.onnx]
ALLOWED = sorted(os.sched_getaffinity(0))
if len(ALLOWED) < 2:
    pytest.skip("two cores are needed", allow_module_level=True)
SOURCE = """
model = register.declare_model("add.onnx", "ONNX", with_batch_dim=True)

def read(y):
    cores = set()
    for thread in os.listdir("/proc/self/task"):
        text = open(f"/proc/self/task/{thread}/status").read()
        cores.add(text.partition("Cpus_allowed_list:")[2].split()[0])
    return y, ";".join(sorted(cores)), os.getpid()

@register.register_method(output_names=["y", "cores", "pid"])
def predict(x):
    y = register.add_stage(model, x, outputs_count=1)
    return register.add_stage(read, y, outputs_count=3)
"""


def write_model(path: Path) -> None:
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 64]) for n in "xy")
    weights = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], np.eye(64).ravel())
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_threads_of_each_worker_stay_on_its_cores(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    source = SOURCE.replace('"ONNX", ', f'"ONNX", backend={backend!r}, ')
    write_servable(tmp_path, "toy", source, versions=(1,))
    write_model(tmp_path / "toy" / "1" / "add.onnx")
    first, second = map(str, ALLOWED[:2])
    toy = config(tmp_path, "toy", num_parallel_workers=2, cores=f"{first};{second}")
    with serving(tmp_path, toy) as calls:
        client = calls.client("toy", "predict")
        x = np.arange(64, dtype=np.float32)

        def cores() -> dict[int, str]:
            answers = client.infer([{"x": x}] * 128)
            np.testing.assert_array_equal(answers[0]["y"], x)
            return {int(answer["pid"]): answer["cores"] for answer in answers}

        before = eventually(lambda: found if len(found := cores()) == 2 else None)
        assert sorted(before.values()) == sorted([first, second])
        victim = next(iter(before))
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: victim not in workers(os.getpid()))
        after = eventually(lambda: found if len(found := cores()) == 2 else None)
        assert sorted(after.values()) == sorted([first, second])  # the next worker has the same


def test_cores_that_do_not_exist_stop_the_start(tmp_path: Path) -> None:
    write_servable(tmp_path, "toy", "\n@method('y')\ndef same(x):\n    return x\n")
    toy = config(tmp_path, "toy", cores="0;60000", num_parallel_workers=2)
    with (
        pytest.raises(RuntimeError, match="worker 1 would run on 60000, but it may not use 60000"),
        serving(tmp_path, toy),
    ):
        pass
