"""CatBoost's files, trained here on a few rows and compared with the library's own answers."""

import numpy as np
import pytest

from mindspore_serving.core.dtype import TEXT
from mindspore_serving.errors import StartError
from mindspore_serving.servable.model_files import recognize

catboost = pytest.importorskip("catboost", reason="it trains and runs these models")
SMALL = {"iterations": 3, "depth": 2, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
COLOURS = np.array(["red", "green", "blue"])


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    return random.normal(size=(40, 3)).astype(np.float32), random.integers(0, 3, 40)


@pytest.fixture
def served(opened, tmp_path):
    """A function that writes a model and opens the file."""

    def serve(model, suffix="cbm"):
        path = tmp_path / f"model.{suffix}"
        model.save_model(str(path), format=suffix)
        assert recognize(str(path)).format == "catboost"
        return opened("catboost", path, options={"thread_num": 1})

    return serve


@pytest.mark.parametrize("suffix", ["cbm", "json"])
@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers_answer_the_classes_of_training(rows, served, suffix, classes):
    x, colours = rows
    model = catboost.CatBoostClassifier(**SMALL).fit(x, COLOURS[colours % classes])
    backend = served(model, suffix)
    (signature,) = backend.signature
    assert [(s.name, s.dtype, s.shape) for s in (*signature.inputs, *signature.outputs)] == [
        ("x", np.float32, (-1, 3)),
        ("prediction", TEXT, (-1,)),
        ("probabilities", np.float64, (-1, classes)),
    ]
    x = x.copy()
    x[3, 1] = np.nan
    prediction, probabilities = backend.run([x])
    assert prediction.tolist() == model.predict(x).ravel().tolist()
    np.testing.assert_allclose(probabilities, model.predict_proba(x), rtol=1e-6)


@pytest.mark.parametrize("loss", ["RMSE", "Poisson", "Tweedie:variance_power=1.5", "MultiRMSE"])
def test_regressors_answer_as_their_scikit_learn_interface(rows, served, loss):
    x, y = rows
    target = np.stack([y, x[:, 0]], 1) if loss == "MultiRMSE" else y
    model = catboost.CatBoostRegressor(loss_function=loss, **SMALL).fit(x, target)
    np.testing.assert_allclose(served(model).run([x])[0], model.predict(x), rtol=1e-6)


def test_models_of_several_labels_answer_a_probability_of_each(rows, served):
    x, y = rows
    labels = np.stack([y > 0, y > 1], 1).astype(int)
    model = catboost.CatBoostClassifier(loss_function="MultiLogloss", **SMALL).fit(x, labels)
    (probabilities,) = served(model).run([x])
    np.testing.assert_allclose(probabilities, model.predict_proba(x), rtol=1e-6)


def table(rows):
    x, y = rows
    columns = np.empty((len(x), 3), object)
    columns[:, 0], columns[:, 1], columns[:, 2] = x[:, 0], COLOURS[y], y
    return columns


@pytest.mark.parametrize("names", [None, ["size", "colour", "rooms"]])
def test_categories_are_columns_of_texts(rows, served, names):
    columns = table(rows)
    pool = catboost.Pool(columns, rows[1] > 0, cat_features=[1, 2], feature_names=names)
    model = catboost.CatBoostClassifier(one_hot_max_size=1, **SMALL).fit(pool)
    backend = served(model)
    inputs = backend.signature[0].inputs
    assert [spec.name for spec in inputs] == (names or ["x0", "x1", "x2"])
    assert [spec.dtype for spec in inputs] == [np.float32, TEXT, TEXT]
    texts = np.array([str(n) for n in columns[:, 2]], object)
    answer = backend.run([columns[:, 0].astype(np.float32), columns[:, 1], texts])[1]
    np.testing.assert_allclose(answer, model.predict_proba(pool), rtol=1e-6)


@pytest.mark.parametrize("size", [6, 100, -1])
def test_a_truncated_file_is_refused(rows, served, opened, tmp_path, size):
    served(catboost.CatBoostRegressor(**SMALL).fit(*rows))
    path = tmp_path / "model.cbm"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StartError, match=r"model\.cbm.*(?i:read|pod)"):
        opened("catboost", path)


def test_rows_have_the_names_of_the_columns_of_training(rows, served):
    x, y = rows
    pool = catboost.Pool(x, y, feature_names=["a", "b", "c"])
    (spec,) = served(catboost.CatBoostRegressor(**SMALL).fit(pool)).signature[0].inputs
    assert spec.columns == ("a", "b", "c")
