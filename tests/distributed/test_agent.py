"""What an agent loads, and how it answers: its end of a real connection, in this process."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.distributed import agent
from mindspore_serving.distributed.agents import AgentMember
from mindspore_serving.distributed.connecting import Stopped
from mindspore_serving.distributed.messages import (
    AgentSetup,
    Ran,
    RunRank,
    to_reports,
    to_signatures,
)
from mindspore_serving.errors import Code, StartError
from mindspore_serving.process import vocabulary
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import Child, Program
from mindspore_serving.process.group import Group
from mindspore_serving.wire import native
from tests.waiting import PATIENCE


def setup(*paths: Path) -> AgentSetup:
    return AgentSetup("127.0.0.1:6200", "big", 0, 0, [str(p) for p in paths], None, "AES-GCM")


def python(directory: Path, source: str, name: str = "rank.py") -> Path:
    path = directory / name
    path.write_text(source)
    return path


def run(models, subgraph, *inputs, returns=True):
    ran = agent.run(models, RunRank(1, subgraph, native.encode_values(inputs), returns))
    assert isinstance(ran, Ran)
    return ran


def test_each_file_is_a_sub_graph_of_the_format_that_its_name_says(tmp_path):
    double = python(tmp_path, "def model(x):\n    return x * 2\n", "double.py")
    add = python(tmp_path, "def model(x, y):\n    return x + y, x - y\n", "add.py")
    models = agent.load(setup(double, add))
    (doubled,) = native.decode_values(run(models, 0, np.arange(3)).outputs)
    assert doubled.tolist() == [0, 2, 4]
    total, rest = native.decode_values(run(models, 1, np.arange(3), np.ones(3, int)).outputs)
    assert (total.tolist(), rest.tolist()) == ([1, 2, 3], [-1, 0, 1])


def test_outputs_that_were_not_asked_for_are_not_sent(tmp_path):
    models = agent.load(setup(python(tmp_path, "def model(x):\n    return x\n")))
    assert run(models, 0, np.arange(3), returns=False) == Ran(1, b"")


def test_a_model_may_change_inputs_and_import_modules_of_its_directory(tmp_path):
    python(tmp_path, "VALUE = 7\n", "beside_the_rank.py")
    source = "from beside_the_rank import VALUE\ndef model(x):\n    x += VALUE\n    return x\n"
    models = agent.load(setup(python(tmp_path, source)))
    (changed,) = native.decode_values(run(models, 0, np.arange(2)).outputs)
    assert changed.tolist() == [7, 8]


@pytest.mark.parametrize("name", ["rank.py", "factor_of_the_rank.py"])
def test_a_file_that_is_changed_in_the_same_second_is_read_again(tmp_path, monkeypatch, name):
    """Python's bytecode would be that of the earlier file, as both have one length and time."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    python(tmp_path, "FACTOR = 1\n", "factor_of_the_rank.py")
    source = "from factor_of_the_rank import FACTOR\ndef model(x):\n    return x * FACTOR * 1\n"
    path = python(tmp_path, source)
    for factor in (1, 3):
        changed = python(tmp_path, (tmp_path / name).read_text().replace("1", str(factor)), name)
        os.utime(changed, (10**9, 10**9))
        monkeypatch.delitem(sys.modules, "factor_of_the_rank", raising=False)
        (result,) = native.decode_values(run(agent.load(setup(path)), 0, np.ones(1)).outputs)
        assert result == factor


def test_a_model_of_a_later_stage_may_get_no_inputs():
    models = [type("Constant", (), {"run": lambda self, inputs: [np.ones(len(inputs))]})()]
    ran = agent.run(models, RunRank(1, 0, b"", True))
    assert native.decode_values(ran.outputs)[0].shape == (0,)


@pytest.mark.parametrize("source", ["1 / 0", "int('a')", "return 'text', object()"])
def test_whatever_a_model_raises_is_answered(tmp_path, source):
    models = agent.load(setup(python(tmp_path, f"def model(x):\n    {source}\n")))
    ran = run(models, 0, np.arange(3))
    assert ran.fault is not None
    assert ran.fault.code == Code.SYSTEM_ERROR


def test_a_missing_sub_graph_and_invalid_inputs_get_an_error_reply(tmp_path):
    models = agent.load(setup(python(tmp_path, "def model(x):\n    return x\n")))
    assert "IndexError" in run(models, 5, np.arange(3)).fault.text
    assert agent.run(models, RunRank(1, 0, b"\xff" * 9, True)).fault is not None


def test_a_result_that_is_too_large_to_send_is_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(agent, "MAX_TENSORS", 100)
    models = agent.load(setup(python(tmp_path, "def model(x):\n    return x\n")))
    assert "at most 100 are accepted" in run(models, 0, np.zeros(100)).fault.text
    assert run(models, 0, np.zeros(1)).fault is None


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("rank.txt", "", "has a name that ends with none of .mindir, .ms, .onnx"),
        ("rank.py", "", "defines no function or class 'model'"),
        ("rank.py", "import none_such\n", "cannot be imported: ModuleNotFoundError"),
        ("rank.py", "model = 3\n", "has no function or class to call"),
        ("rank.py", "class model:\n    def __init__(self):\n        1 / 0\n", "ZeroDivisionError"),
        ("rank.pt2", "", "the file is empty"),
    ],
)
def test_a_file_that_is_no_model_is_an_error(tmp_path, name, source, problem):
    if name.endswith("pt2"):
        pytest.importorskip("torch")
    with pytest.raises(StartError, match=problem):
        agent.load(setup(python(tmp_path, source, name)))


@pytest.mark.onnx
def test_an_onnx_file_is_a_model_of_a_rank(tmp_path):
    onnx = pytest.importorskip("onnx")
    tensor = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    node = onnx.helper.make_node("Neg", ["x"], ["y"])
    graph = onnx.helper.make_graph(
        [node], "g", [tensor("x", kind, [2, 3])], [tensor("y", kind, [2, 3])]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(tmp_path / "rank.onnx"))
    models = agent.load(setup(tmp_path / "rank.onnx"))
    (y,) = native.decode_values(run(models, 0, np.ones((2, 3), np.float32)).outputs)
    assert y.tolist() == [[-1.0] * 3] * 2


async def test_agents_that_hear_first_of_a_stop_are_not_restarted():
    """The end of an agent may be seen before the message of the worker to the script."""
    child = Child(Program("tests.process.members", ["was_stopped"], channel=socket.SOCK_STREAM))
    kind = vocabulary.Hello | vocabulary.Ready | vocabulary.Failed
    group = Group()
    group.add(AgentMember("rank 0", child, BlockingChannel(child.stream, kind), vocabulary))
    with pytest.raises(Stopped):
        await asyncio.wait_for(group.wait(), PATIENCE)


def test_signatures_survive_the_way_to_the_worker():
    specs = (TensorSpec("x", np.dtype("f4"), (-1, 3)), TensorSpec("y", None, None))
    graphs = (Signature(specs, ()), Signature((), specs[::-1]))
    assert to_signatures(to_reports(graphs)) == graphs
