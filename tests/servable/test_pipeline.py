import numpy as np
import pytest

from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.errors import ServableUnavailable
from mindspore_serving.servable import check
from mindspore_serving.servable.pipeline import PipelineServable, register_pipeline

PIPELINE = """
    other = register.PipelineServable("other", "predict", 2)

    @register.register_pipeline(output_names=["a", "b"])
    def chain(x1, x2):
        return other.run(x1, x2), x2
"""


def test_a_pipeline_is_a_method_with_a_single_function(declare):
    declaration = declare(PIPELINE)
    stage = Stage(StageKind.FUNCTION, "tiny.chain", (0, 1), (2, 3), tag="Pipeline")
    assert declaration.methods["chain"] == Method(
        "chain", ("x1", "x2"), ("a", "b"), (stage,), (2, 3)
    )


def test_the_function_runs_another_servables_method(declare, bind_method_runner):
    seen = []

    def run(servable, method, version, instances):
        seen.append((servable, method, version))
        return [(x1 + x2,) for x1, x2 in instances]

    bind_method_runner(run)
    function = declare(PIPELINE).functions["tiny.chain"]
    total, same = function(np.array([1]), np.array([2]))
    assert total == [3]
    assert same == [2]
    assert seen == [("other", "predict", 2)]


def test_several_outputs_are_a_tuple_and_inputs_become_values(bind_method_runner):
    bind_method_runner(lambda servable, method, version, instances: instances)
    number, text = PipelineServable("other", "predict").run(3, "a")
    assert (number.dtype, number.item(), text) == (np.int64, 3, "a")


def test_errors_of_the_other_servable_reach_the_function(bind_method_runner):
    def fail(servable, method, version, instances):
        raise ServableUnavailable("nobody serves it")

    bind_method_runner(fail)
    with pytest.raises(ServableUnavailable, match="nobody serves it"):
        PipelineServable("other", "predict").run(1)


def test_outside_a_worker_a_pipeline_cannot_run():
    with pytest.raises(
        RuntimeError, match=r"PipelineServable\('other', 'predict'\).run\(\) failed"
    ):
        PipelineServable("other", "predict").run(1)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((1, "m"), "Parameter 'servable_name' should be str"),
        (("s", ""), "Parameter 'method' should not be empty str"),
        (("s", "m", -1), "Parameter 'version_number' should be >= 0"),
    ],
)
def test_a_pipeline_servable_checks_its_arguments(args, text):
    with pytest.raises(RuntimeError, match=text):
        PipelineServable(*args)


def test_a_pipeline_shares_the_names_of_methods(declare):
    with pytest.raises(RuntimeError, match="Method chain has been registered more than once."):
        declare(PIPELINE + PIPELINE)


def test_a_pipeline_is_declared_in_a_servable_config():
    with pytest.raises(RuntimeError, match="'register_pipeline' may only be called while"):
        register_pipeline("y")(lambda x: x)


def test_pipelines_are_logged_as_deprecated(monkeypatch):
    logged = []
    monkeypatch.setattr(check.log, "warning", lambda msg, *args: logged.append(msg % args))
    register_pipeline("y")
    PipelineServable("other", "predict")
    assert [line.split("'")[1] for line in logged] == ["register_pipeline", "PipelineServable"]
