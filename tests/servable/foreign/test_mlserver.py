"""MLServer's model-settings.json: runtimes, the model's file, and options."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.core.value import TensorSpec
from mindspore_serving.errors import StartError
from mindspore_serving.servable.foreign import formats
from mindspore_serving.servable.foreign.mlserver import FILE
from mindspore_serving.servable.foreign.model import ForeignModel

SETTINGS: dict[str, Any] = {
    "name": "iris",
    "implementation": "mlserver_sklearn.SKLearnModel",
    "parameters": {"uri": "./model.joblib"},
}


def read(tmp_path: Path, settings: object, file: str = "model.joblib") -> ForeignModel:
    (tmp_path / file).touch()
    (tmp_path / FILE).write_text(json.dumps(settings))
    model = formats.read(str(tmp_path))
    assert model is not None
    return model


def test_settings_are_options(tmp_path: Path) -> None:
    settings = SETTINGS | {
        "max_batch_size": 16,
        "max_batch_time": 0.25,
        "parallel_workers": 2,
        "inputs": [{"name": "row", "datatype": "FP32", "shape": [-1, 4]}],
        "cache_enabled": True,
        "parameters": {"uri": "./model.joblib", "version": "v2", "content_type": "pd"},
    }
    model = read(tmp_path, settings)
    assert model.options == {"alias": "iris", "max_batch_delay_ms": 250, "num_parallel_workers": 2}
    assert (model.max_batch_size, model.inputs) == (16, (TensorSpec("row", None, None),))
    assert model.note("iris") == (
        "iris: without effect here, of MLServer's model-settings.json: cache_enabled, "
        "parameters.content_type, parameters.version v2 (it is version 1 here)"
    )


def test_settings_of_the_server_are_named_with_our_options(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"http_port": 8080, "debug": false}')
    (tmp_path / "iris").mkdir()
    assert read(tmp_path / "iris", SETTINGS).without_effect == (
        "settings.json http_port (write --http-port 8080)",
        "settings.json debug",
    )


@pytest.mark.parametrize(
    ("implementation", "file", "model_format"),
    [
        ("mlserver_sklearn.SKLearnModel", "model.pickle", "sklearn"),
        ("mlserver_xgboost.XGBoostModel", "model.json", "xgboost"),
        ("mlserver_lightgbm.LightGBMModel", "model.bst", "lightgbm"),
        ("mlserver_catboost.CatboostModel", "model.cbm", "catboost"),
    ],
)
def test_without_a_uri_the_usual_file_is_served(
    tmp_path: Path, implementation: str, file: str, model_format: str
) -> None:
    model = read(tmp_path, {"implementation": implementation}, file).model
    assert model is not None
    assert (model.format, model.files) == (model_format, (f"../{file}",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"implementation": "models.Mine"}, "other runtimes are Python, which is not run"),
        ({"implementation": "mlserver_huggingface.HuggingFaceRuntime"}, "serve DIR"),
        ({"parameters": {"uri": "../model.joblib"}}, "expected a path inside"),
        ({"parameters": {"uri": "none.joblib"}}, "there is no"),
        ({"parameters": {}, "implementation": "mlserver_xgboost.XGBoostModel"}, "no parameters.ur"),
        ({"parameters": 1}, "parameters is not an object"),
        ({"max_batch_size": "many"}, "max_batch_size is 'many', expected a number"),
        ({"max_batch_time": -1}, "max_batch_time is -1, expected seconds"),
        ({"inputs": [1]}, "inputs is [1], expected objects with a name"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError) as caught:
        read(tmp_path, SETTINGS | changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000])
def test_a_file_that_is_no_object_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StartError, match="model-settings.json is not"):
        formats.read(str(tmp_path))
