"""MLflow's MLmodel, as mlflow 3.17 writes it: flavours, signature and input example."""

import json
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving.core.dtype import TEXT
from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.servable.foreign import formats
from mindspore_serving.servable.foreign.mlflow import FILE
from mindspore_serving.servable.foreign.model import ForeignModel

CODE = "python_function: {loader_module: mlflow.sklearn, predict_fn: predict}"
COLUMNS = [
    {"type": "double", "name": "a", "required": True},
    {"type": "string", "name": "b", "required": True},
]
TENSORS = [
    {"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}, "name": "x"},
    {"type": "tensor", "tensor-spec": {"dtype": "object", "shape": [-1]}, "name": "y"},
]


def write(tmp_path: Path, flavour: str, file: str, more: str = "", code: str = CODE) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    text = f"flavors:\n  {code}\n  {flavour}\nmlflow_version: 3.17.2\n{more}\n"
    (tmp_path / FILE).write_text(text)


def read(tmp_path: Path, *parts: str, code: str = CODE) -> ForeignModel:
    write(tmp_path, *parts, code=code)
    model = formats.read(str(tmp_path))
    assert model is not None
    return model


def signature(rows: object) -> str:
    return f"signature:\n  inputs: {json.dumps(json.dumps(rows))}\n  params: null"


@pytest.mark.parametrize(
    ("flavour", "file", "model_format"),
    [
        ("sklearn: {pickled_model: model.pkl}", "model.pkl", "sklearn"),
        ("sklearn: {pickled_model: model.skops}", "model.skops", "sklearn"),
        ("xgboost: {data: model.ubj, model_format: ubj}", "model.ubj", "xgboost"),
        ("xgboost: {data: model.xgb, model_format: xgb}", "model.xgb", "xgboost"),
        ("lightgbm: {data: model.lgb}", "model.lgb", "lightgbm"),
        ("lightgbm: {data: model.skops, serialization_format: skops}", "model.skops", "sklearn"),
        ("catboost: {data: model.cb, save_format: cbm}", "model.cb", "catboost"),
        ("onnx: {data: model.onnx}", "model.onnx", "onnx"),
        ("pytorch: {model_data: data}", "data/model.pth", "pytorch"),
        ("pytorch: {model_data: data}", "data/model.pt2", "pytorch"),
    ],
)
def test_the_flavour_of_a_library_is_served_from_its_file(
    tmp_path: Path, flavour: str, file: str, model_format: str
) -> None:
    model = read(tmp_path, flavour, file)
    assert model.model is not None
    assert (model.model.format, model.model.files) == (model_format, (f"../{file}",))
    assert model.note("iris") == ""


def test_columns_of_the_signature_have_the_values_of_the_input_example(tmp_path: Path) -> None:
    example = {"columns": ["a", "b"], "data": [[0.5, "red"], [1, "blue"]]}
    (tmp_path / "input_example.json").write_text(json.dumps(example))
    info = "saved_input_example_info: {artifact_path: input_example.json, pandas_orient: split}"
    more = f"{signature(COLUMNS)}\n{info}"
    assert read(tmp_path, "sklearn: {pickled_model: m.pkl}", "m.pkl", more).inputs == (
        TensorSpec("a", None, None, example=0.5),
        TensorSpec("b", None, None, example="red"),
    )


def test_tensors_of_the_signature_have_dtypes_and_shapes(tmp_path: Path) -> None:
    model = read(tmp_path, "onnx: {data: model.onnx}", "model.onnx", signature(TENSORS))
    assert model.inputs == (
        TensorSpec("x", np.dtype("float32"), (-1, 2)),
        TensorSpec("y", TEXT, (-1,)),
    )


def test_settings_without_effect_are_named(tmp_path: Path) -> None:
    code = "python_function: {predict_fn: predict_proba}"
    more = 'signature: {params: \'[{"name": "k"}]\'}'
    model = read(tmp_path, "sklearn: {pickled_model: m.pkl, code: src}", "m.pkl", more, code=code)
    assert model.note("iris") == (
        "iris: without effect here, of MLflow's MLmodel: signature.params, code, "
        "python_function.predict_fn predict_proba"
    )


@pytest.mark.parametrize(
    ("flavour", "more", "text"),
    [
        ("extra: {}", "", "flavour extra is not served here; served are sklearn, xgboost"),
        ("transformers: {}", "", "the directory of the checkpoint in it, which has a config.json"),
        ("xgboost: 3", "", "MLmodel: xgboost is 3, expected a mapping"),
        ("xgboost: {data: ../m.pkl}", "", "expected a path inside"),
        ("xgboost: {data: other.ubj}", "", "MLmodel names 'other.ubj', but there is no"),
        ("onnx: {data: m.pkl}", "signature: {inputs: '[3]'}", "signature.inputs is '\\[3\\]'"),
        ("onnx: {data: m.pkl}", "a: [", "MLmodel"),
    ],
)
def test_an_unusable_description_is_refused(
    tmp_path: Path, flavour: str, more: str, text: str
) -> None:
    write(tmp_path, flavour, "m.pkl", more)
    with pytest.raises(StartError, match=text):
        formats.read(str(tmp_path))


def test_code_of_python_function_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("flavors: {python_function: {loader_module: mine}}")
    with pytest.raises(StartError, match="code, which is never run from a model directory: log"):
        formats.read(str(tmp_path))
