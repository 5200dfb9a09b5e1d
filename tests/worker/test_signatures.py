"""What a worker reports of the inputs and outputs of its methods."""

import numpy as np
import pytest

from mindspore_serving.core.declaration import Declaration, DeclaredModel
from mindspore_serving.core.examples import Example
from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.core.signature import InstanceSignature, ValueSpec, describe
from mindspore_serving.core.value import Signature, TensorSpec
from mindspore_serving.ipc.messages import ModelReport
from mindspore_serving.servable.language import add_generate
from mindspore_serving.worker.signatures import of_method, of_model

ADD = Signature(
    (
        TensorSpec("a", np.dtype("f4"), (-1, 3)),
        TensorSpec("b", np.dtype("i8"), (8, -1)),
    ),
    (TensorSpec("sum", np.dtype("f2"), (-1, 3, 2)),),
)
X = ValueSpec("x", "float32", (3,))
WEIGHTS = ValueSpec("w", "float32", (4, 4))
SUM = ValueSpec("sum", "float16", (2,))


def model_stage(inputs, outputs, key="add", subgraph=0):
    return Stage(StageKind.MODEL, key, inputs, outputs, "Model", subgraph=subgraph)


def function_stage(inputs, outputs):
    return Stage(StageKind.FUNCTION, "f", inputs, outputs, "Function")


def method(inputs, stages, returns, **options):
    outputs = tuple(f"y{i}" for i in range(len(returns)))
    return Method("m", inputs, outputs, stages, returns, **options)


def models(*inputs):
    return {"add": ModelReport(0, [InstanceSignature(inputs, (SUM,))])}


def test_an_instance_of_a_model_has_no_batch_dimension():
    assert of_model(DeclaredModel("add", "onnx"), ADD) == InstanceSignature(
        (ValueSpec("a", "float32", (3,)), ValueSpec("b", "int64", (None,))),
        (ValueSpec("sum", "float16", (3, 2)),),
    )


def test_without_batch_dimension_an_instance_has_the_shape_of_the_model():
    known = of_model(DeclaredModel("add", "onnx", with_batch_dim=False), ADD)
    assert [spec.shape for spec in known.inputs] == [(None, 3), (8, None)]
    assert known.outputs[0].shape == (None, 3, 2)


def test_an_input_without_batch_dimension_keeps_its_first():
    known = of_model(DeclaredModel("add", "onnx", without_batch_dim_inputs=(1,)), ADD)
    assert [spec.shape for spec in known.inputs] == [(3,), (8, None)]


def test_shapes_and_dtypes_that_a_model_does_not_tell_are_unknown():
    silent = Signature((TensorSpec("x", None, None),), (TensorSpec("y", np.dtype("f4"), None),))
    assert of_model(DeclaredModel("add", "python"), silent) == InstanceSignature(
        (ValueSpec("x"),), (ValueSpec("y", "float32"),)
    )


def test_a_type_that_requests_cannot_carry_is_unknown():
    outputs = (TensorSpec("y", np.dtype("c8"), (-1,)),)
    assert of_model(DeclaredModel("add", "onnx"), Signature((), outputs)).outputs == (
        ValueSpec("y", None, ()),
    )


def test_a_method_of_a_model_alone_has_its_types_under_the_method_s_names():
    one = method(("p", "q"), (model_stage((1, 0), (2,)),), (2,))
    assert of_method(one, models(X, WEIGHTS)) == InstanceSignature(
        (ValueSpec("p", "float32", (4, 4)), ValueSpec("q", "float32", (3,))),
        (ValueSpec("y0", "float16", (2,)),),
    )


def test_inputs_and_outputs_of_python_stages_are_unknown():
    before = (function_stage((0,), (2,)), model_stage((2, 1), (3,)))
    known = of_method(method(("p", "q"), before, (2, 3)), models(X, WEIGHTS))
    assert known.inputs == (ValueSpec("p"), ValueSpec("q", "float32", (4, 4)))
    assert known.outputs == (ValueSpec("y0"), ValueSpec("y1", "float16", (2,)))


def test_an_input_of_a_function_and_a_model_has_the_type_of_the_model():
    both = (function_stage((0,), (1,)), model_stage((0,), (2,)))
    assert of_method(method(("p",), both, (2,)), models(X)).inputs[0].dtype == "float32"


def test_an_input_that_models_want_differently_is_known_where_they_agree():
    twice = method(("p",), (model_stage((0, 0), (1,)),), (1,))
    other = ValueSpec("w", "int32", (3,))
    assert of_method(twice, models(X, other)).inputs == (ValueSpec("p", None, (3,)),)
    assert of_method(twice, models(X, WEIGHTS)).inputs == (ValueSpec("p", "float32"),)


def test_an_input_that_is_returned_is_an_output_of_the_same_type():
    one = method(("p",), (model_stage((0,), (1,)),), (0, 1))
    assert of_method(one, models(X)).outputs[0] == ValueSpec("y0", "float32", (3,))


def test_an_input_with_a_default_is_optional():
    one = method(("p", "q"), (model_stage((0,), (2,)),), (2,), defaults={"p": "", "q": ""})
    assert [spec.is_optional for spec in of_method(one, models(X)).inputs] == [True, True]
    assert not of_method(one, models(X)).outputs[0].is_optional


def test_a_language_model_gives_texts():
    stage = Stage(StageKind.LANGUAGE, "llm", (0,), (1, 2), "Model", streams=True)
    known = of_method(method(("prompt",), (stage,), (1,)), {})
    (prompt,) = known.inputs
    assert (prompt.dtype, prompt.example.value) == (None, "Once upon a time")
    assert known.outputs == (ValueSpec("y0", "str", ()),)


def test_a_language_model_without_a_tokenizer_gets_token_ids():
    stage = Stage(StageKind.LANGUAGE, "llm", (0,), (1, 2), "Model", streams=True)
    known = of_method(method(("prompt",), (stage,), (1,)), {}, has_tokenizer=False)
    assert known.inputs[0].example.nested() == (1, 2, 3)


def test_a_declared_example_has_the_dtype_of_the_model():
    example = Example([1, 2])
    stages = (model_stage((0,), (1,)),)
    known = of_method(method(("a",), stages, (1,), examples={"a": example}), models(X))
    assert known.inputs[0] == ValueSpec("a", "float32", (3,), declared=example)


def test_sampling_parameters_have_their_range_and_declared_default():
    declaration = Declaration("talk")
    add_generate(declaration)
    params = SamplingParams(max_tokens=99, temperature=0.0, seed=None)
    known = of_method(declaration.methods["generate"], {}, params)
    rows = {row["name"]: row.get("schema") for row in describe(known.inputs)}
    assert [name for name, schema in rows.items() if schema is None] == [
        "prompt",
        "stop",
        "parameters",
    ]
    schema = {**rows["max_tokens"], "description": ""}
    assert schema == {"type": "integer", "description": "", "minimum": 1, "default": 99}
    assert (rows["temperature"]["maximum"], rows["temperature"]["default"]) == (100.0, 0.0)
    assert rows["top_p"]["exclusiveMinimum"] == 0.0
    assert "default" not in rows["seed"]


def test_a_stage_has_the_signature_of_its_subgraph():
    graphs = [InstanceSignature((X,)), InstanceSignature((WEIGHTS,))]
    second = method(("p",), (model_stage((0,), (1,), subgraph=1),), (1,))
    known = of_method(second, {"add": ModelReport(0, graphs)})
    assert known == InstanceSignature((ValueSpec("p", "float32", (4, 4)),), (ValueSpec("y0"),))


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        (ValueSpec("x"), {"name": "x", "dtype": None, "shape": None}),
        (ValueSpec("x", "str", ()), {"name": "x", "dtype": "str", "shape": []}),
        (
            ValueSpec("x", "int8", (None, 3), is_optional=True),
            {"name": "x", "dtype": "int8", "shape": [None, 3], "optional": True},
        ),
    ],
)
def test_a_value_is_shown_as_json(spec, shown):
    assert describe([spec]) == [shown]
