"""Methods of other servables as stages, and called from functions."""

import numpy as np
import pytest

from mindspore_serving.core.graph import Stage, StageKind
from mindspore_serving.errors import InvalidInputs, ServableUnavailable
from mindspore_serving.servable.servable_method import ServableMethod, method

CHAIN = """
    def double(x):
        return 2 * x

    @register.register_method(output_names=["y"])
    def doubled(x):
        return register.add_stage(double, x, outputs_count=1)

    @register.register_method(output_names=["z", "y"])
    def chain(x):
        y = register.add_stage(register.method("other.sum", version=2), x, x, outputs_count=1)
        z = register.add_stage(register.method("tiny.doubled"), y, outputs_count=1)
        return z, y
"""


def test_another_servables_method_is_a_stage(declare):
    stage, _ = declare(CHAIN).methods["chain"].stages
    assert stage == Stage(
        StageKind.SERVABLE, "other.sum", (0, 0), (1,), "Method 'other.sum' of version 2", version=2
    )


def test_a_method_of_the_same_servable_gives_its_stages(declare):
    chain = declare(CHAIN).methods["chain"]
    _, stage = chain.stages
    assert (stage.kind, stage.target) == (StageKind.FUNCTION, "tiny.double")
    assert (stage.inputs, stage.outputs, chain.returns) == ((1,), (2,), (2, 1))


@pytest.mark.parametrize(
    ("stage", "count", "text"),
    [
        ('register.method("tiny.later")', 1, "must be registered above"),
        ('register.method("tiny.doubled", version=1)', 1, "without a version"),
        ('register.method("tiny.doubled")', 2, "has 1 input(s) and 1 output(s), but add_stage was"),
    ],
)
def test_a_wrong_method_of_the_same_servable_is_refused(declare, stage, count, text):
    source = CHAIN.replace(
        'register.method("tiny.doubled"), y, outputs_count=1', f"{stage}, y, outputs_count={count}"
    )
    with pytest.raises(RuntimeError) as error:
        declare(source)
    assert text in str(error.value)


def test_a_name_without_a_method_is_refused():
    for name in ("ocr", "ocr.", ".predict", "ocr.two words"):
        with pytest.raises(InvalidInputs):
            method(name)
    assert method("a.b.predict") == ServableMethod("a.b", "predict")


def test_a_call_runs_instances_elsewhere(bind_method_runner):
    asked = []

    def run(servable, name, version, instances):
        asked.append((servable, name, version))
        return [(x + y, x - y) for x, y in instances]

    bind_method_runner(run)
    both = method("other.both", version=3)
    assert [value.item() for value in both.call(3, 2)] == [5, 1]
    assert both.call([[np.int64(1), 2], [3, 4]]) == ((3, -1), (7, -1))
    assert asked == [("other", "both", 3)] * 2


def test_a_call_names_the_method_that_failed(bind_method_runner):
    with pytest.raises(RuntimeError, match=r"Method\('other.both'\).call\(\) failed: it may be"):
        method("other.both").call(1)

    def fail(servable, name, version, instances):
        raise ServableUnavailable("nobody serves it")

    bind_method_runner(fail)
    with pytest.raises(ServableUnavailable, match=r"'other.both'.* failed: nobody serves it"):
        method("other.both").call(1)
