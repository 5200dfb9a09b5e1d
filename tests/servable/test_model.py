import importlib.metadata

import numpy as np
import pytest

from mindspore_serving.errors import InvalidInputs, NotFound, StageFailed
from mindspore_serving.servable import model as models
from mindspore_serving.servable.model import Model

METHOD = """
@register.register_method(output_names="y")
def identity(x):
    return x
"""


@pytest.fixture
def declared(declare):
    """The ModelSpecs that `declare_model(ARGS)` records, as a list."""

    def specs(*calls, before=""):
        head = "from mindspore_serving.server import register, distributed\n" + before
        lines = "".join(f"register.declare_model({call})\n" for call in calls)
        return list(declare(METHOD, head + lines).models.values())

    return specs


def test_a_file_and_a_format_are_enough(declared):
    (spec,) = declared("'add.mindir', 'MindIR'")
    assert (spec.key, spec.format, spec.files) == ("add.mindir", "mindir", ("add.mindir",))
    assert spec.with_batch_dim is True
    assert spec.without_batch_dim_inputs == ()
    assert spec.options == {}
    assert spec.config_file is None
    assert spec.factory is None


def test_a_network_is_a_class_with_weights(declared):
    before = "class Net: pass\n"
    call = "Net, 'PyTorch', weights='net.pt', inputs={'x': 'float32[-1,2]'}, arguments={'n': 3}"
    (spec,) = declared(call, before=before)
    assert (spec.key, spec.format, spec.files) == ("Net", "pytorch_module", ("net.pt",))
    assert (spec.factory.__name__, spec.arguments, spec.inputs[0].shape) == (
        "Net",
        {"n": 3},
        (-1, 2),
    )
    (spec,) = declared("Net, 'MindSpore', mode='pynative'", before=before)
    assert (spec.format, spec.files, spec.mode) == ("mindspore", (), "pynative")


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("'a.onnx', 'ONNX', weights='net.pt'", "are for a network in code"),
        ("Net, 'MindSpore', mode='eager'", "'mode' is 'eager', expected one of graph, pynative"),
        ("'net.ckpt', 'MindSpore'", "should be a Python function or class"),
        ("Net, 'MindSpore', inputs={'x': 'float'}", "described by 'float', expected a type and a"),
    ],
)
def test_a_wrong_network_is_refused(declared, call, problem):
    with pytest.raises(RuntimeError, match=problem):
        declared(call, before="class Net: pass\n")


def test_several_files_are_the_graphs_of_a_model(declared):
    (spec,) = declared("['a.mindir', 'b.mindir'], 'MindIR'")
    assert spec.key == "a.mindir;b.mindir"
    assert spec.files == ("a.mindir", "b.mindir")


def test_arguments_may_be_given_in_the_order_of_the_original(declared):
    (spec,) = declared("'a', 'OM', False, None, (1, 2), register.Context(thread_num=2), 'lite.cfg'")
    assert spec.with_batch_dim is False
    assert spec.without_batch_dim_inputs == (1, 2)
    assert spec.options == {"thread_num": 2}
    assert spec.config_file == "lite.cfg"


def test_the_batch_dimension_may_be_left_to_the_shapes_or_set_by_name(declared):
    assert [spec.with_batch_dim for spec in declared("'a', 'ONNX', None")] == [None]
    (spec,) = declared("'a', 'ONNX', batch_axis={'state': 1, 'rate': -1}")
    assert spec.batch_axis == {"state": 1, "rate": -1}


@pytest.mark.parametrize("axes", ["[1]", "{'state': -2}", "{'state': '1'}", "{1: 1}"])
def test_axes_are_ints_by_name(declared, axes):
    with pytest.raises(Exception, match="'batch_axis' should be a dict of axes by name"):
        declared(f"'a', 'ONNX', batch_axis={axes}")


def test_the_backend_of_a_mindir_may_be_chosen(declared):
    assert [spec.backend for spec in declared("'a', 'MindIR'")] == [""]
    for name in ("mindspore", "openvino"):
        (spec,) = declared(f"'a', 'MindIR', backend='{name}'")
        assert (spec.format, spec.backend) == ("mindir", name)


def test_the_backend_of_an_onnx_file_may_be_chosen(declared):
    for name in ("onnxruntime", "openvino"):
        (spec,) = declared(f"'a', 'ONNX', backend='{name}'")
        assert (spec.format, spec.backend) == ("onnx", name)


def test_pickles_are_allowed_by_an_argument_alone(declared):
    assert [spec.allow_pickle for spec in declared("'a.skops', 'SKLearn'")] == [False]
    assert [spec.allow_pickle for spec in declared("'a', 'SKLearn', allow_pickle=True")] == [True]


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("MindIR", "mindir"),
        ("MINDIR", "mindir"),
        ("OM", "om"),
        ("MindIR_Lite", "mindir_lite"),
        ("MindIR_Opt", "mindir_lite"),
        ("ONNX", "onnx"),
        ("PyTorch", "pytorch"),
        ("OpenVINO", "openvino"),
        ("sklearn", "sklearn"),
        ("XGBoost", "xgboost"),
        ("LightGBM", "lightgbm"),
        ("CatBoost", "catboost"),
    ],
)
def test_formats_are_known_in_any_case(declared, given, recorded):
    (spec,) = declared(f"'a', '{given}'")
    assert spec.format == recorded


def test_an_unknown_format_is_refused_with_those_that_are_known(declared):
    with pytest.raises(RuntimeError) as caught:
        declared("'a', 'caffe'")
    text = str(caught.value)
    assert "model format can only be OM, MindIR or MindIR_Lite, case ignored" in text
    formats = "or ONNX, PyTorch, OpenVINO, SKLearn, XGBoost, LightGBM, CatBoost, MindSpore, Python"
    assert formats in text
    assert "but given 'caffe'" in text


def test_a_format_that_another_package_registers_is_known(declared, monkeypatch):
    point = importlib.metadata.EntryPoint("Caffe", "caffe_backend:Caffe", "irrelevant")
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda *, group: [point] if group == "mindspore_serving.backends" else [],
    )
    (spec,) = declared("'a.caffemodel', 'CAFFE'")
    assert spec.format == "caffe"


def test_entry_points_are_not_looked_up_for_formats_of_ours(declared, monkeypatch):
    monkeypatch.delattr(importlib.metadata, "entry_points")
    assert declared("'a', 'ONNX'")[0].format == "onnx"


@pytest.mark.parametrize("definition", ["def double(x): return x * 2\n", "class double: pass\n"])
def test_a_python_model_is_a_function_or_class(declared, definition):
    (spec,) = declared("double, 'Python'", before=definition)
    assert (spec.key, spec.format, spec.files) == ("double", "python", ())
    assert spec.factory.__name__ == "double"


def test_a_python_model_is_not_a_file(declared):
    with pytest.raises(RuntimeError, match="should be a Python function or class"):
        declared("'double.py', 'Python'")


@pytest.mark.parametrize(("given", "recorded"), [("0", (0,)), ("[0, 2]", (0, 2)), ("()", ())])
def test_inputs_without_a_batch_dimension(declared, given, recorded):
    (spec,) = declared(f"'a', 'MindIR', without_batch_dim_inputs={given}")
    assert spec.without_batch_dim_inputs == recorded


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("1, 'MindIR'", "Parameter 'model_file' should be str or tuple/list of str"),
        ("'', 'MindIR'", "Parameter 'model_file' should not be empty str"),
        ("['a', 'a'], 'MindIR'", "The item value 'a' in parameter 'model_file' should not be"),
        ("'a', 1", "Parameter 'model_format' should be str"),
        ("'a', 'MindIR', 1", "Parameter 'with_batch_dim' should be bool"),
        (
            "'a', 'MindIR', without_batch_dim_inputs='0'",
            "Parameter 'without_batch_dim_inputs' should be int or tuple/list of int",
        ),
        (
            "'a', 'MindIR', without_batch_dim_inputs=-1",
            "The item value '-1' in parameter 'without_batch_dim_inputs' should be >= 0",
        ),
        ("'a', 'MindIR', context={}", "Parameter 'context' should be Context, but gotten"),
        (
            "'a', 'MindIR', options={}",
            "Parameter 'options' should be None, GpuOptions or AclOptions, but gotten",
        ),
        ("'a', 'MindIR', config_file=''", "Parameter 'config_file' should not be empty str"),
        ("'a', 'MindIR', config_file=1", "Parameter 'config_file' should be str"),
        ("'a', 'MindIR', backend='torch'", "'backend' can only be mindspore or openvino"),
        ("'a', 'ONNX', backend='mindspore'", "given 'mindspore' with model format onnx"),
        ("'a', 'PyTorch', backend='openvino'", "given 'openvino' with model format pytorch"),
        ("'a', 'SKLearn', allow_pickle=1", "Parameter 'allow_pickle' should be bool"),
        ("'a', 'OpenVIN'", "given 'OpenVIN'; did you mean 'OpenVINO'?"),
    ],
)
def test_a_wrong_argument_is_refused(declared, call, text):
    with pytest.raises(RuntimeError) as caught:
        declared(call)
    assert text in str(caught.value)


def test_deprecated_options_are_taken(declared):
    (spec,) = declared("'a', 'MindIR', options=register.GpuOptions(precision_mode='fp16')")
    assert spec.options == {
        "device_list": ({"device_type": "gpu", "precision_mode": "fp16"},),
    }


def test_a_context_wins_over_options_with_a_warning(declared, monkeypatch):
    logged = []
    monkeypatch.setattr(models.log, "warning", lambda msg, *args: logged.append(msg % args))
    (spec,) = declared(
        "'a', 'OM', context=register.Context(thread_num=1), options=register.AclOptions()"
    )
    assert spec.options == {"thread_num": 1}
    assert "'options' is ignored" in logged[-1]


def test_a_file_is_used_by_a_single_model(declared):
    for calls in (("'a', 'OM'", "'a', 'OM'"), ("['a', 'b'], 'OM'", "'b', 'OM'")):
        with pytest.raises(RuntimeError, match="model file '.' has already been used"):
            declared(*calls)


def test_a_python_model_is_declared_once(declared):
    with pytest.raises(RuntimeError, match="the same model has already been declared"):
        declared("f, 'Python'", "f, 'Python'", before="def f(x): return x\n")


def test_a_distributed_servable_declares_no_model(declared):
    with pytest.raises(
        RuntimeError, match="servable has already been declared as distributed servable"
    ):
        declared("'a', 'MindIR'", before="distributed.declare_servable(8, 1)\n")


def test_outside_a_servable_config_nothing_can_be_declared():
    with pytest.raises(InvalidInputs, match=r"Failed to obtain the directory of servable_config"):
        models.declare_model("a", "MindIR")


def sums(key, subgraph, instances):
    return [(a + b, a - b) for a, b in instances]


def test_a_call_with_an_instance_returns_its_outputs(runner):
    runner(sums)
    total, difference = Model("m").call(np.array([3.0]), np.array([1.0]))
    assert total == [4.0]
    assert difference == [2.0]


def test_a_single_output_is_returned_bare(runner):
    runner(lambda key, subgraph, instances: [(x * 2,) for (x,) in instances])
    np.testing.assert_array_equal(Model("m").call(np.array([1, 2])), [2, 4])


def test_a_call_with_a_list_of_instances_returns_a_tuple_for_each(runner):
    runner(sums)
    result = Model("m").call([[np.array([1]), np.array([2])], (np.array([5]), np.array([3]))])
    assert isinstance(result, tuple)
    assert [[array.tolist() for array in outputs] for outputs in result] == [
        [[3], [-1]],
        [[8], [2]],
    ]


def test_a_list_with_single_outputs_keeps_its_tuples(runner):
    runner(lambda key, subgraph, instances: instances)
    assert Model("m").call([["a"], ["b"]]) == (("a",), ("b",))


def test_the_runner_gets_key_subgraph_and_values(runner):
    seen = []

    def record(key, subgraph, instances):
        seen.append((key, subgraph, instances))
        return instances

    runner(record)
    Model("a;b").call(1, True, "t", b"b", 1.5, subgraph=1)
    ((key, subgraph, ((number, flag, text, raw, real),)),) = seen
    assert (key, subgraph) == ("a;b", 1)
    assert number.dtype == np.int64
    assert flag.dtype == np.bool_
    assert real.dtype == np.float64
    assert (text, raw) == ("t", b"b")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "Model(m).call() failed: no inputs provided, "),
        (([],), "Model(m).call() failed: Input instances count is 0"),
        (([1, 2],), "Model(m).call() failed: inputs format invalid, "),
        (([[1], 2],), "but instance 1 is <class 'int'>"),
    ],
)
def test_a_call_without_instances_fails(runner, args, text):
    runner(sums)
    with pytest.raises(InvalidInputs) as caught:
        Model("m").call(*args)
    assert text in str(caught.value)


def test_an_empty_instance_is_for_the_runner_to_judge(runner):
    seen = []
    runner(lambda key, subgraph, instances: seen.append(instances) or [()])
    assert Model("m").call([[]]) == ((),)
    assert seen == [[()]]


def test_errors_of_the_runner_keep_their_class_and_get_a_label(runner):
    def missing(key, subgraph, instances):
        raise NotFound("the model is not declared")

    runner(missing)
    with pytest.raises(NotFound) as caught:
        Model("m").call(1)
    assert str(caught.value) == "Model(m).call() failed: the model is not declared"
    with pytest.raises(NotFound) as caught:
        Model("m").call(1, subgraph=2)
    assert str(caught.value) == "Model(m, subgraph=2).call() failed: the model is not declared"


def test_an_unexpected_error_of_the_runner_is_a_failed_stage(runner):
    def broken(key, subgraph, instances):
        raise MemoryError("out of memory")

    runner(broken)
    with pytest.raises(StageFailed, match=r"Model\(m\).call\(\) failed: out of memory"):
        Model("m").call(1)


def test_an_input_that_is_no_value_is_named(runner):
    runner(sums)
    with pytest.raises(StageFailed, match=r"Model\(m\).call\(\) failed: Get illegal result data"):
        Model("m").call(object())


def test_a_subgraph_is_a_number(runner):
    runner(sums)
    with pytest.raises(RuntimeError, match="Parameter 'subgraph' should be >= 0"):
        Model("m").call(1, subgraph=-1)


def test_outside_a_worker_a_model_cannot_be_called():
    with pytest.raises(RuntimeError, match="only inside a stage function"):
        Model("m").call(1)


def test_a_model_has_a_key():
    with pytest.raises(RuntimeError, match="Parameter 'model_key' should be str"):
        Model(1)
    assert Model("a") == Model("a")
