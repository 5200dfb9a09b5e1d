"""What a worker makes of a servable: programs, batch sizes, models, and errors at start."""

import os

import numpy as np
import pytest

from mindspore_serving.core.graph import StageKind
from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.ipc.messages import ModelReport
from mindspore_serving.worker import loading
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.job import RunningPart

X1 = ValueSpec("x1", "int64", ())
ADD = InstanceSignature((X1, ValueSpec("x2")), (ValueSpec("y"),))
DOUBLE = """
def double(x):
    return x * 2
"""
ADD_MODEL = """
@signature(2, 1)
def add(x1, x2):
    return x1 + x2

model = register.declare_model(add, model_format="Python")
"""


class Numbers:
    """A codec for tests: outputs as lists."""

    @staticmethod
    def encode(outputs):
        return {name: value.tolist() for name, value in outputs.items()}


class NoRemote:
    """A worker that owns its models asks nobody."""


def load(setup, remote=None):
    return loading.load(setup, remote or NoRemote(), lambda: lambda: None)


def run(loaded, method, *instances):
    """Outputs by name, or the text of the failure, for each instance."""
    executor = Executor(loaded.programs)
    program = loaded.programs[method]
    item = RunningPart(1, program, Numbers, None)
    names = program.method.inputs
    executor.add(item, [dict(zip(names, values, strict=True)) for values in instances])
    while executor.has_work:
        executor.run_next(0.0)
    faults = item.faults or [None] * len(instances)
    return [
        output if fault is None else str(fault)
        for output, fault in zip(item.outputs, faults, strict=True)
    ]


def number(value):
    return np.array(value, np.int64)


# --- functions ----------------------------------------------------------------------------------


def test_a_method_of_functions_runs(write):
    loaded = load(
        write(
            DOUBLE
            + """
@register.register_method(output_names=["y"])
def twice(x):
    x = register.add_stage(double, x, outputs_count=1)
    return register.add_stage(double, x, outputs_count=1)
"""
        )
    )
    assert run(loaded, "twice", (number(3),), (number(5),)) == [{"y": 12}, {"y": 20}]


def test_a_built_in_stage_runs(write):
    loaded = load(
        write("""
@register.register_method(output_names=["y"])
def largest(x):
    return register.add_stage("argmax_cpp", x, outputs_count=1)
""")
    )
    assert run(loaded, "largest", (np.array([1.0, 9.0, 3.0], np.float32),)) == [{"y": 1}]


def test_a_servable_without_models_runs_as_version_1_without_a_directory(write):
    body = (
        DOUBLE
        + """
@register.register_method(output_names=["y"])
def m(x):
    return register.add_stage(double, x, outputs_count=1)
"""
    )
    assert load(write(body)).version == 1
    assert load(write(body, version=5)).version == 5


def test_the_report_of_a_method_names_inputs_outputs_and_batch_size(write):
    loaded = load(
        write("""
def both(instances):
    return instances

def one(x):
    return x

@register.register_method(output_names=["a", "b"])
def batched(x1, x2):
    return register.add_stage(both, x1, x2, outputs_count=2, batch_size=7)

@register.register_method(output_names=["y"])
def looped(x):
    return register.add_stage(one, x, outputs_count=1)
""")
    )
    batched, looped = loaded.method_reports()
    assert (batched.name, batched.inputs, batched.outputs) == ("batched", ["x1", "x2"], ["a", "b"])
    assert (batched.batch_size, batched.retry, batched.is_only_models) == (7, True, False)
    assert looped.batch_size == 1  # a loop gains nothing from a batch


# --- models in stages ---------------------------------------------------------------------------


def test_the_decoder_knows_the_types_that_models_want(write):
    loaded = load(write(MIXED))
    assert loaded.programs["only_model"].method.dtypes == {"x1": np.int64, "x2": np.int64}
    assert loaded.programs["mixed"].method.dtypes == {"x1": np.int64, "x2": np.int64}


def test_a_float64_array_fits_a_float32_model(write):
    loaded = load(
        write("""
def double(x):
    return x * 2

double.signature = Signature(
    (TensorSpec("x", np.dtype("float32"), (-1, 2)),),
    (TensorSpec("y", np.dtype("float32"), (-1, 2)),),
)
model = register.declare_model(double, model_format="Python")

def scale(x):
    return x / 4

@register.register_method(output_names=["y"])
def m(x):
    x = register.add_stage(scale, x, outputs_count=1)
    return register.add_stage(model, x, outputs_count=1)
""")
    )
    assert run(loaded, "m", (number([1, 2]),)) == [{"y": [0.5, 1.0]}]


def test_a_model_stage_gets_whole_batches(write):
    loaded = load(
        write("""
sizes = []

@signature(1, 1, shape=(-1, 2))
def total(x):
    sizes.append(len(x))
    return x.sum(axis=1, keepdims=True) * np.ones((1, 2), np.int64)

model = register.declare_model(total, model_format="Python")

@register.register_method(output_names=["y"])
def m(x):
    return register.add_stage(model, x, outputs_count=1)
""")
    )
    outputs = run(loaded, "m", (number([1, 2]),), (number([3, 4]),), (number([5, 6]),))
    assert outputs == [{"y": [3, 3]}, {"y": [7, 7]}, {"y": [11, 11]}]
    sizes = loaded.declaration.models["total"].factory.__globals__["sizes"]
    assert sizes == [3]
    graph = InstanceSignature((ValueSpec("x0", "int64", (2,)),), (ValueSpec("y0", "int64", (2,)),))
    assert loaded.models == {"total": ModelReport(0, [graph])}
    report = loaded.method_reports()[0]
    assert report.is_only_models
    assert report.signature.inputs == (ValueSpec("x", "int64", (2,)),)
    assert report.signature.outputs == (ValueSpec("y", "int64", (2,)),)


def test_a_model_of_a_fixed_batch_size_limits_its_stage(write):
    loaded = load(
        write(
            ADD_MODEL.replace("(2, 1)", "(2, 1, shape=(4,))")
            + """
@register.register_method(output_names=["y"])
def m(x1, x2):
    return register.add_stage(model, x1, x2, outputs_count=1)
"""
        )
    )
    assert loaded.models["add"].batch_size == 4
    assert loaded.programs["m"].batch_size == 4
    instances = [(number(i), number(10)) for i in range(6)]
    assert run(loaded, "m", *instances) == [{"y": 10 + i} for i in range(6)]


def test_a_python_model_need_not_declare_its_outputs(write):
    loaded = load(
        write("""
def split(x):
    return x // 10, x % 10

model = register.declare_model(split, model_format="Python")

@register.register_method(output_names=["tens", "ones"])
def m(x):
    return register.add_stage(model, x, outputs_count=2)
""")
    )
    assert run(loaded, "m", (number(42),)) == [{"tens": 4, "ones": 2}]


def test_an_instance_that_does_not_fit_the_model_fails_alone(write):
    loaded = load(
        write(
            ADD_MODEL
            + """
@register.register_method(output_names=["y"])
def m(x1, x2):
    return register.add_stage(model, x1, x2, outputs_count=1)
"""
        )
    )
    good, bad = run(loaded, "m", (number(1), number(2)), (np.array(1.0), number(2)))
    assert good == {"y": 3}
    assert "Given model input 0 data type kMSI_Float64 not match" in bad


@pytest.mark.parametrize(
    ("arguments", "count", "what"),
    [("x", 1, "inputs count 1"), ("x, x", 2, "outputs count 2")],
    ids=["inputs", "outputs"],
)
def test_wrong_counts_in_register_method_are_found_at_start(write, arguments, count, what):
    setup = write(
        ADD_MODEL
        + f"""
@register.register_method(output_names=["y"])
def m(x):
    y = register.add_stage(model, {arguments}, outputs_count={count})
    return y if {count} == 1 else y[0]
"""
    )
    with pytest.raises(StartError, match=f"The {what} in register_method not equal to the count"):
        load(setup)


@pytest.mark.parametrize(
    ("fixed", "first", "last"), [("", 32, 32), (", shape=(4,)", 4, 4)], ids=["dynamic", "fixed"]
)
def test_batch_size_0_follows_the_model(write, fixed, first, last):
    loaded = load(
        write(
            ADD_MODEL.replace("(2, 1)", f"(2, 1{fixed})")
            + """
def same(instances):
    return instances

def second(instances):
    return [x for (x,) in instances]

@register.register_method(output_names=["y"])
def m(x1, x2):
    x1, x2 = register.add_stage(same, x1, x2, outputs_count=2, batch_size=0)
    y = register.add_stage(model, x1, x2, outputs_count=1)
    return register.add_stage(second, y, outputs_count=1, batch_size=0)

@register.register_method(output_names=["y"])
def without_model(x):
    return register.add_stage(second, x, outputs_count=1, batch_size=0)
"""
        )
    )
    assert [step.limit for step in loaded.programs["m"].stages] == [first, first, last]
    assert loaded.programs["without_model"].stages[0].limit == 1


# --- Model.call ---------------------------------------------------------------------------------

CALLING = (
    ADD_MODEL
    + """
def one(x):
    return model.call(x, x)

def many(instances):
    return [y for (y,) in model.call([[x, 100] for (x,) in instances])]

@register.register_method(output_names=["y"])
def call_one(x):
    return register.add_stage(one, x, outputs_count=1)

@register.register_method(output_names=["y"])
def call_many(x):
    return register.add_stage(many, x, outputs_count=1, batch_size=8)

@method("y")
def call_subgraph(x):
    return model.call(x, x, subgraph=3)

@method("y")
def call_dtype(x):
    return model.call(x.astype(np.float64), x)


"""
)


def test_a_function_may_call_a_model_for_a_single_instance(write):
    assert run(load(write(CALLING)), "call_one", (number(4),), (number(5),)) == [
        {"y": 8},
        {"y": 10},
    ]


def test_a_function_may_call_a_model_for_many_instances(write):
    assert run(load(write(CALLING)), "call_many", (number(4),), (number(5),)) == [
        {"y": 104},
        {"y": 105},
    ]


def test_a_call_with_wrong_inputs_fails_the_instance_with_the_reason(write):
    (text,) = run(load(write(CALLING)), "call_dtype", (number(4),))
    assert "Model(add).call() failed: input " in text


def test_a_call_of_a_subgraph_that_is_not_there_says_how_many_there_are(write):
    (text,) = run(load(write(CALLING)), "call_subgraph", (number(4),))
    assert "Model(add, subgraph=3).call() failed: model 'add' has 1 graph(s)" in text


def test_a_stage_of_a_subgraph_that_is_not_there_is_found_at_start(write):
    setup = write(
        ADD_MODEL
        + """
@register.register_method(output_names=["y"])
def m(x1, x2):
    return register.call_servable(x1, x2, subgraph=1)
"""
    )
    with pytest.raises(ServingError, match="model 'add' has 1 graph"):
        load(setup)


# --- calls by other workers ---------------------------------------------------------------------


def test_a_device_worker_offers_its_models_to_other_workers(write):
    loaded = load(write(CALLING, device_id=2, device_type="cpu"))
    report = loaded.method_reports()[-1]
    assert (report.name, report.inputs, report.outputs) == ("@call_add_0", ["x0", "x1"], ["y0"])
    assert run(loaded, "@call_add_0", (number(4), number(5))) == [{"y0": 9}]
    assert os.environ["SERVING_DEVICE_ID"] == "2"


def test_a_worker_without_devices_to_share_offers_none(write):
    names = [report.name for report in load(write(CALLING)).method_reports()]
    assert names == ["call_one", "call_many", "call_subgraph", "call_dtype"]


class Remote:
    """A worker elsewhere that adds."""

    def __init__(self):
        self.started = []

    def start(self, key, subgraph, jobs, stage):
        assert stage.kind is StageKind.MODEL
        self.started.append((key, subgraph, jobs))

    def call(self, key, subgraph, rows):
        if key != "add":
            raise ServingError("unknown")
        return [(x1 + x2,) for x1, x2 in rows]


def test_a_worker_without_models_calls_models_of_other_workers(write):
    remote = Remote()
    setup = write(CALLING, owns_models=False, models={"add": ModelReport(0, [ADD])})
    loaded = load(setup, remote)
    assert loaded.backends == {}
    assert run(loaded, "call_one", (number(4),)) == [{"y": 8}]
    assert run(loaded, "call_many", (number(4),)) == [{"y": 104}]


MIXED = (
    ADD_MODEL
    + DOUBLE
    + """
@register.register_method(output_names=["y"])
def only_model(x1, x2):
    return register.add_stage(model, x1, x2, outputs_count=1)

@register.register_method(output_names=["y"])
def mixed(x1, x2):
    y = register.add_stage(model, x1, x2, outputs_count=1)
    return register.add_stage(double, y, outputs_count=1)
"""
)


def test_model_stages_of_a_worker_without_models_are_sent_away(write):
    remote = Remote()
    setup = write(MIXED, owns_models=False, models={"add": ModelReport(4, [ADD])})
    loaded = load(setup, remote)
    assert list(loaded.programs) == ["mixed"]  # a model alone is better called where it is
    assert loaded.method_reports()[0].signature.inputs == (X1, ValueSpec("x2"))
    executor = Executor(loaded.programs)
    item = RunningPart(1, loaded.programs["mixed"], Numbers, None)
    executor.add(item, [{"x1": number(1), "x2": number(2)}])
    executor.run_next(0.0)
    ((key, subgraph, jobs),) = remote.started
    assert (key, subgraph, len(jobs)) == ("add", 0, 1)
    executor.resume(jobs, [(number(3),)])
    executor.run_next(0.0)
    assert item.outputs == [{"y": 6}]


def test_a_worker_without_models_needs_somebody_who_has_them(write):
    with pytest.raises(StartError, match="Model 'add': the model is not loaded by any worker"):
        load(write(MIXED, owns_models=False))


# --- errors at start, and the end ---------------------------------------------------------------


def test_a_model_that_cannot_be_made_is_a_start_error(write):
    setup = write("""
class Broken:
    def __init__(self):
        raise OSError("no weights")
    def __call__(self, x):
        return x

model = register.declare_model(Broken, model_format="Python")

@register.register_method(output_names=["y"])
def m(x):
    return register.add_stage(model, x, outputs_count=1)
""")
    with pytest.raises(StartError, match="no weights"):
        load(setup)


def test_a_distributed_servable_is_not_started_like_this(write):
    setup = write("""
from mindspore_serving.server import distributed

model = distributed.declare_servable(rank_size=8, stage_size=1)

@register.register_method(output_names=["y"])
def m(x):
    return register.add_stage(model, x, outputs_count=1)
""")
    with pytest.raises(StartError, match="is declared as distributed servable"):
        load(setup)


def test_close_closes_the_models(write):
    loaded = load(
        write("""
closed = []

class Model:
    def __call__(self, x):
        return x
    def close(self):
        closed.append(True)

model = register.declare_model(Model, model_format="Python")

@register.register_method(output_names=["y"])
def m(x):
    return register.add_stage(model, x, outputs_count=1)
""")
    )
    loaded.close()
    assert loaded.declaration.models["Model"].factory.__call__.__globals__["closed"] == [True]


# --- a bare directory ---------------------------------------------------------------------------


@pytest.mark.onnx
def test_a_bare_model_gets_a_method_from_its_own_signature(write, tmp_path):
    from onnx import TensorProto, helper, save

    x1 = helper.make_tensor_value_info("x1", TensorProto.FLOAT, ["n", 2])
    x2 = helper.make_tensor_value_info("x2", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph([helper.make_node("Add", ["x1", "x2"], ["sum"])], "g", [x1, x2], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for version in (1, 12):
        directory = tmp_path / "bare" / str(version)
        directory.mkdir(parents=True)
        save(model, directory / "model.onnx")
    loaded = load(write("", servable_name="bare"))
    assert loaded.version == 12
    (report,) = loaded.method_reports()
    assert (report.name, report.inputs, report.outputs) == ("predict", ["x1", "x2"], ["sum"])
    rows = np.array([[1, 2], [3, 4]], np.float32)
    assert run(loaded, "predict", (rows[0], rows[1]), (rows[1], rows[1])) == [
        {"sum": [4.0, 6.0]},
        {"sum": [6.0, 8.0]},
    ]
    loaded.close()
