import pytest

from mindspore_serving.core.graph import StageKind
from mindspore_serving.servable import check, legacy

HEAD = """
import numpy as np
from mindspore_serving.server import register

def cast(x1, x2):
    return x1.astype(np.float32), x2.astype(np.float32)

def post(y):
    return y

def batch(instances):
    return instances

"""
SERVABLE = HEAD + 'register.declare_servable("add.mindir", "MindIR", with_batch_dim=False)\n'


@pytest.fixture
def method(declare):
    """The method "predict" that a body of deprecated calls gives."""

    def build(*lines, outputs='"y"', head=SERVABLE):
        body = "\n".join(f"    {line}" for line in lines)
        text = f"\n@register.register_method({outputs})\ndef predict(x1, x2):\n{body}\n"
        return declare(text, head).methods["predict"]

    return build


@pytest.fixture
def refusal(method):
    def text_of(*lines, **options):
        with pytest.raises(RuntimeError) as caught:
            method(*lines, **options)
        return str(caught.value)

    return text_of


PRE = "x1, x2 = register.call_preprocess(cast, x1, x2)"
SERVE = "y = register.call_servable(x1, x2)"
POST = "y = register.call_postprocess(post, y)"


def test_the_three_calls_are_three_stages(method):
    stages = method('"""Adds."""', PRE, SERVE, POST, "return y").stages
    assert [(s.kind, s.target, s.tag, s.batch_size) for s in stages] == [
        (StageKind.FUNCTION, "tiny.cast", "Preprocess", None),
        (StageKind.MODEL, "add.mindir", "Model 'add.mindir'", None),
        (StageKind.FUNCTION, "tiny.post", "Postprocess", None),
    ]
    assert [(s.inputs, s.outputs) for s in stages] == [
        ((0, 1), (2, 3)),
        ((2, 3), (4,)),
        ((4,), (5,)),
    ]


def test_pipeline_calls_get_batches_of_the_servers_choice(method):
    stages = method(
        "x1, x2 = register.call_preprocess_pipeline(batch, x1, x2)",
        SERVE,
        "return y",
    ).stages
    assert (stages[0].batch_size, stages[0].tag, len(stages[0].outputs)) == (0, "Preprocess", 2)
    stages = method(SERVE, "y = register.call_postprocess_pipeline(batch, y)", "return y").stages
    assert (stages[1].batch_size, stages[1].tag) == (0, "Postprocess")


def test_the_calls_may_be_imported_by_name(method):
    head = SERVABLE + "from mindspore_serving.server.register import call_servable\n"
    assert len(method("y = call_servable(x1, x2)", "return y", head=head).stages) == 1


def test_returning_a_call_gives_as_many_outputs_as_the_method_has(method):
    built = method("return register.call_servable(x1, x2)", outputs='["a", "b"]')
    assert built.stages[0].outputs == (2, 3)
    assert built.returns == (2, 3)


def test_a_subgraph_may_be_named(method):
    built = method("y = register.call_servable(x1, x2, subgraph=1)", "return y")
    assert built.stages[0].subgraph == 1


def test_assignments_without_calls_are_fine(method):
    built = method("a: object = x1", "b = x2", "y = register.call_servable(a, b)", "return y")
    assert built.stages[0].inputs == (0, 1)


def test_declare_servable_declares_a_model(declare):
    body = '@register.register_method("y")\ndef same(x):\n    return x\n'
    head = HEAD + 'register.declare_servable("a", "OM", False, None, (1,))\n'
    spec = declare(body, head).models["a"]
    assert (spec.format, spec.with_batch_dim, spec.without_batch_dim_inputs) == ("om", False, (1,))


def test_each_call_is_logged_as_deprecated(method, monkeypatch):
    logged = []
    monkeypatch.setattr(check.log, "warning", lambda msg, *args: logged.append(msg % args))
    method(PRE, SERVE, POST, "return y")
    assert [line.split("'")[1::2] for line in logged] == [
        ["declare_servable", "declare_model"],
        ["call_preprocess", "add_stage"],
        ["call_servable", "add_stage"],
        ["call_postprocess", "add_stage"],
    ]
    assert logged[0] == (
        "'declare_servable' is deprecated from version 1.5.0 and will be removed in a future "
        "version, use 'declare_model' instead."
    )


EARLY = "x1, x2 = register.call_postprocess(cast, x1, x2)"
PRE_BATCH = "x1, x2 = register.call_preprocess_pipeline(batch, x1, x2)"
POST_BATCH = "y = register.call_postprocess_pipeline(batch, y)"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ((SERVE, PRE), "call_servable should be invoked after call_preprocess"),
        ((SERVE, PRE_BATCH), "call_servable should be invoked after call_preprocess_pipeline"),
        (
            (EARLY, PRE, SERVE),
            "call_postprocess or call_postprocess_pipeline should be invoked after call_preprocess",
        ),
        (
            (EARLY, SERVE),
            "call_postprocess or call_postprocess_pipeline should be invoked after call_servable",
        ),
        (
            (PRE, PRE, SERVE),
            "call_preprocess or call_preprocess_pipeline should not be invoked more than once",
        ),
        (
            (PRE, PRE_BATCH, SERVE),
            "call_preprocess or call_preprocess_pipeline should not be invoked more than once",
        ),
        ((SERVE, SERVE), "call_servable should not be invoked more than once"),
        (
            (SERVE, POST, POST_BATCH),
            "call_postprocess or call_postprocess_pipeline should not be invoked more than once",
        ),
    ],
)
def test_the_calls_have_an_order_and_are_made_once(refusal, lines, text):
    assert f"Check failed in method 'predict', {text}" in refusal(*lines, "return y")


def test_a_method_without_call_servable_is_refused(refusal):
    assert "Not find the invoke of 'call_servable'" in refusal(PRE, "return x1")


def test_a_call_without_arguments_is_refused(refusal):
    assert "Invalid 'call_servable' invoke args" in refusal(
        "y = register.call_servable()", "return y"
    )


@pytest.mark.parametrize(
    "lines",
    [
        ("if True:", "    pass", SERVE),
        (SERVE, "for _ in (): pass"),
        (SERVE, "print(1)"),
        (SERVE, "z = str(1)"),
        (SERVE, "y = register.add_stage(post, y, outputs_count=1)"),
        ("y = register.call_postprocess(post, register.call_servable(x1, x2))",),
        ("y, *z = register.call_servable(x1, x2)",),
        ("y = (register.call_servable(x1, x2), x1)",),
    ],
)
def test_other_statements_are_refused(refusal, lines):
    text = refusal(*lines, "return y")
    assert "Failed to parse method 'predict', complex statements such as conditions and" in text
    assert "is used, use 'add_stage' to replace 'call_" in text


def test_a_call_hidden_in_another_function_is_refused(refusal):
    head = SERVABLE + "def hidden(a, b):\n    return register.call_servable(a, b)\n"
    text = refusal("y = hidden(x1, x2)", "return y", head=head)
    assert "Failed to parse method 'predict'" in text


def test_a_call_made_by_a_decorator_of_the_method_is_refused(declare):
    body = """
import functools

def prepared(function):
    @functools.wraps(function)
    def run(x1, x2):
        return function(*register.call_preprocess(cast, x1, x2))
    return run

@register.register_method("y")
@prepared
def predict(x1, x2):
    y = register.call_servable(x1, x2)
    return y
"""
    with pytest.raises(RuntimeError, match="the call is not in the method's own body"):
        declare(body, SERVABLE)


def test_a_method_without_source_is_refused(declare):
    body = """
exec('''
@register.register_method("y")
def predict(x1, x2):
    y = register.call_servable(x1, x2)
    return y
''')
"""
    with pytest.raises(RuntimeError, match="Failed to parse method 'predict'"):
        declare(body, SERVABLE)


def test_a_lambda_is_refused(declare):
    body = 'register.register_method("y")(lambda x1, x2: register.call_servable(x1, x2))\n'
    with pytest.raises(RuntimeError, match="Failed to parse method"):
        declare(body, SERVABLE)


def test_call_servable_needs_a_model(refusal):
    text = refusal(SERVE, "return y", head=HEAD)
    assert "There is no model declared, you can use declare_model to declare models." in text


def test_call_servable_needs_a_single_model(refusal):
    head = SERVABLE + 'register.declare_model("sub.mindir", "MindIR")\n'
    text = refusal(SERVE, "return y", head=head)
    assert "There are more than one servable declared when the interface 'call_servable'" in text


def test_call_servable_runs_the_model_of_a_distributed_servable(method):
    head = HEAD + (
        "from mindspore_serving.server import distributed\ndistributed.declare_servable(8, 1)\n"
    )
    assert method(SERVE, "return y", head=head).stages[0].target == "tiny"


def test_a_function_of_the_wrong_arity_is_refused(refusal):
    text = refusal("x1 = register.call_preprocess(cast, x1)", SERVE, "return y")
    assert "function cast input args count 2 not match the count 1 registered in method" in text


def test_targets_of_calls_must_be_functions(refusal):
    text = refusal("x1 = register.call_preprocess(3, x1)", SERVE, "return y")
    assert "must be function or Model returned by declare_model, now is <class 'int'>" in text


def test_outside_a_method_nothing_can_be_called():
    with pytest.raises(RuntimeError, match="'call_servable' may only be called in a function"):
        legacy.call_servable(1)
