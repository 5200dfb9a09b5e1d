"""Models of rows, trained here on a few rows and compared with the libraries' own answers."""

import pickle
import warnings

import numpy as np
import pytest

from mindspore_serving.backends import formats
from mindspore_serving.backends.run import run_model
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.errors import StageFailed, StartError

skops_io = pytest.importorskip("skops.io", reason="it writes these models")
joblib = pytest.importorskip("joblib", reason="it writes these models")
NAMES = np.array(["setosa", "versicolor", "virginica"])


@pytest.fixture(scope="module")
def iris():
    from sklearn.datasets import load_iris

    return load_iris(return_X_y=True)


@pytest.fixture
def saved(tmp_path):
    """A function that writes an estimator by skops."""

    def save(model, name="model.skops"):
        skops_io.dump(model, tmp_path / name)
        return tmp_path / name

    return save


def tell(backend):
    (signature,) = backend.signature
    return [(s.name, s.dtype, s.shape) for s in (*signature.inputs, *signature.outputs)]


# --- scikit-learn -----------------------------------------------------------------------------


def test_a_classifier_gives_its_prediction_and_the_probabilities(iris, saved, opened):
    from sklearn.linear_model import LogisticRegression

    x, y = iris
    model = LogisticRegression(max_iter=500).fit(x, y)
    backend = opened("sklearn", saved(model))
    assert tell(backend) == [
        ("x", np.float64, (-1, 4)),
        ("prediction", np.int64, (-1,)),
        ("probabilities", np.float64, (-1, 3)),
    ]
    prediction, probabilities = backend.run([x])
    np.testing.assert_array_equal(prediction, model.predict(x))
    np.testing.assert_array_equal(probabilities, model.predict_proba(x))


def test_classes_with_names_are_texts(iris, saved, opened):
    from sklearn.tree import DecisionTreeClassifier

    x, y = iris
    model = DecisionTreeClassifier(random_state=0).fit(x, NAMES[y])
    backend = opened("sklearn", saved(model), allow_pickle=True)
    assert backend.signature[0].outputs[0].dtype == TEXT
    spec = DeclaredModel("m", "sklearn", ("m",))
    results = run_model(backend, spec, 0, [(row,) for row in x[::30]])
    assert [name for name, _ in results] == list(NAMES[y][::30])
    assert results[0][1].shape == (3,)


def test_classes_that_are_objects_of_numbers_are_numbers(iris, opened, tmp_path):
    from sklearn.dummy import DummyClassifier

    x, y = iris
    model = DummyClassifier(strategy="most_frequent").fit(x, y.astype(object))
    write_pickle(model, tmp_path / "model.pkl")
    backend = opened("sklearn", tmp_path / "model.pkl", allow_pickle=True)
    assert backend.signature[0].outputs[0].dtype == np.int64
    assert backend.run([x[:2]])[0].tolist() == [0, 0]


def test_a_regressor_gives_a_prediction_alone(iris, saved, opened):
    from sklearn.ensemble import RandomForestRegressor

    x, _ = iris
    model = RandomForestRegressor(5, random_state=0).fit(x[:, :3], x[:, 3])
    backend = opened("sklearn", saved(model), allow_pickle=True)
    assert [name for name, _, _ in tell(backend)] == ["x", "prediction"]
    np.testing.assert_array_equal(backend.run([x[:, :3]])[0], model.predict(x[:, :3]))


def test_transformer_returns_transformed_rows(iris, saved, opened):
    from sklearn.decomposition import PCA

    x, _ = iris
    model = PCA(2).fit(x)
    backend = opened("sklearn", saved(model))
    assert tell(backend)[1] == ("transformed", np.float64, (-1, 2))
    np.testing.assert_array_equal(backend.run([x])[0], model.transform(x))


def test_a_pipeline_of_texts_takes_texts(saved, opened):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    texts = ["good fine", "bad awful", "great good", "awful poor"]
    model = make_pipeline(TfidfVectorizer(), MultinomialNB()).fit(texts, ["+", "-", "+", "-"])
    backend = opened("sklearn", saved(model))
    assert tell(backend)[0] == ("x", TEXT, (-1,))
    results = run_model(backend, DeclaredModel("m", "sklearn"), 0, [("good",), ("so awful",)])
    assert [name for name, _ in results] == ["+", "-"]
    expected = model.predict_proba(["good", "so awful"])
    np.testing.assert_array_equal([row for _, row in results], expected)


def test_a_category_that_zeros_do_not_have_fails_only_in_its_run(saved, opened):
    from sklearn.preprocessing import OneHotEncoder

    model = OneHotEncoder(sparse_output=True).fit([[1.0], [2.0]])
    backend = opened("sklearn", saved(model))
    np.testing.assert_array_equal(backend.run([np.array([[2.0]])])[0], [[0, 1]])
    with pytest.raises(StageFailed, match="unknown categories"):
        backend.run([np.array([[5.0]])])


def write_pickle(model, path):
    if path.suffix == ".joblib":
        joblib.dump(model, path, compress=3)
    else:
        path.write_bytes(pickle.dumps(model))


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib"])
def test_pickle_is_loaded_only_if_allowed(iris, opened, tmp_path, name):
    from sklearn.tree import DecisionTreeRegressor

    x, y = iris
    model = DecisionTreeRegressor(max_depth=2).fit(x, y)
    write_pickle(model, tmp_path / name)
    with pytest.raises(StartError, match="runs any code in it.*allow_pickle=True"):
        opened("sklearn", tmp_path / name)
    backend = opened("sklearn", tmp_path / name, allow_pickle=True)
    np.testing.assert_array_equal(backend.run([x])[0], model.predict(x))


class Bomb:
    """A pickle of it writes a file when it is loaded."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return open, (str(self._path), "w")


@pytest.mark.parametrize("name", ["model.pkl", "model.joblib", "model.skops"])
def test_code_in_a_file_runs_only_if_allowed(opened, tmp_path, name):
    proof = tmp_path / "ran"
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(proof)))
    with pytest.raises(StartError):
        opened("sklearn", tmp_path / name)
    assert not proof.exists()


class Unknown:
    """Of no library that skops trusts."""

    def predict(self, x):
        return x


def test_types_that_skops_does_not_trust_are_named(iris, saved, opened):
    from sklearn.tree import DecisionTreeClassifier

    model = DecisionTreeClassifier(max_depth=2).fit(*iris)
    with pytest.raises(StartError, match=r"not trust: sklearn.tree._tree.Tree; .* skl2onnx"):
        opened("sklearn", saved(model))
    with pytest.raises(StartError, match=r"types that skops does not trust: .*Unknown"):
        opened("sklearn", saved(Unknown()))


def test_a_file_that_holds_no_estimator_is_refused(opened, tmp_path):
    write_pickle({"weights": [1, 2]}, tmp_path / "model.pkl")
    with pytest.raises(StartError, match="it is a dict, without predict and transform"):
        opened("sklearn", tmp_path / "model.pkl", allow_pickle=True)


def test_a_library_that_a_pickle_needs_is_named(opened, tmp_path):
    (tmp_path / "model.pkl").write_bytes(b"cno_such_library\nModel\n.")
    with pytest.raises(StartError, match="it needs a library: No module named 'no_such_library'"):
        opened("sklearn", tmp_path / "model.pkl", allow_pickle=True)


def named_columns(iris):
    pandas = pytest.importorskip("pandas", reason="such a model is trained with it")
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = pandas.DataFrame(iris[0], columns=list("abcd"))
    scaled = ColumnTransformer([("scaled", StandardScaler(), ["c", "a"])])
    return make_pipeline(scaled, LogisticRegression()).fit(frame, iris[1]), frame


def test_columns_selected_by_name_come_from_rows_in_their_order(iris, saved, opened):
    model, frame = named_columns(iris)
    backend = opened("sklearn", saved(model))
    (x,) = backend.signature[0].inputs
    assert (x.name, x.shape, x.columns) == ("x", (-1, 4), ("a", "b", "c", "d"))
    np.testing.assert_array_equal(backend.run([iris[0]])[1], model.predict_proba(frame))


def test_without_pandas_columns_selected_by_name_are_refused(iris, saved, opened, monkeypatch):
    path = saved(named_columns(iris)[0])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pandas" else 1)
    monkeypatch.setattr(formats, "require", lambda name: None)
    with pytest.raises(StartError, match="pandas is not installed: pip install pandas"):
        opened("sklearn", path)


def test_files_of_models_trained_on_a_dataframe_have_the_names_of_columns(iris, saved, opened):
    from sklearn.linear_model import LinearRegression

    pandas = pytest.importorskip("pandas", reason="such a model is trained with it")
    frame = pandas.DataFrame(iris[0], columns=["a b", "c", "d", "e"])
    (x,) = opened("sklearn", saved(LinearRegression().fit(frame, iris[1]))).signature[0].inputs
    assert x.columns == ("a b", "c", "d", "e")


# --- XGBoost ----------------------------------------------------------------------------------


def fit_xgboost(iris, kind, classes=3, **options):
    xgboost = pytest.importorskip("xgboost", reason="it trains and runs these models")
    x, y = iris
    keep = y < classes
    options = {"n_estimators": 4, "max_depth": 2, "n_jobs": 1} | options
    return getattr(xgboost, kind)(**options).fit(x[keep], y[keep])


@pytest.mark.parametrize("suffix", ["json", "ubj"])
@pytest.mark.parametrize("classes", [2, 3])
def test_xgboost_classifiers(iris, opened, tmp_path, suffix, classes):
    model = fit_xgboost(iris, "XGBClassifier", classes)
    path = tmp_path / f"model.{suffix}"
    model.save_model(path)
    backend = opened("xgboost", path, options={"thread_num": 1})
    assert tell(backend) == [
        ("x", np.float32, (-1, 4)),
        ("prediction", np.int64, (-1,)),
        ("probabilities", np.float32, (-1, classes)),
    ]
    x = iris[0].astype(np.float32)
    x[3, 1] = np.nan
    prediction, probabilities = backend.run([x])
    np.testing.assert_array_equal(prediction, model.predict(x))
    np.testing.assert_array_equal(probabilities, model.predict_proba(x))


@pytest.mark.parametrize(
    ("objective", "names"),
    [
        ("multi:softmax", ["prediction", "probabilities"]),
        ("reg:squarederror", ["prediction"]),
        ("count:poisson", ["prediction"]),
    ],
)
def test_objectives_of_xgboost(iris, opened, tmp_path, objective, names):
    xgboost = pytest.importorskip("xgboost", reason="it trains and runs these models")
    x, y = iris
    parameters = {"objective": objective, "nthread": 1, "max_depth": 2}
    parameters |= {"num_class": 3} if "multi" in objective else {}
    booster = xgboost.train(parameters, xgboost.DMatrix(x, y), 4)
    booster.save_model(tmp_path / "model.json")
    backend = opened("xgboost", tmp_path / "model.json")
    assert [spec.name for spec in backend.signature[0].outputs] == names
    result = backend.run([x.astype(np.float32)])[0]
    np.testing.assert_array_equal(result, booster.predict(xgboost.DMatrix(x)))


@pytest.mark.parametrize("kind", ["gbtree", "gblinear", "dart"])
def test_boosters_of_each_kind_and_with_names_of_features(iris, opened, tmp_path, kind):
    xgboost = pytest.importorskip("xgboost", reason="it trains and runs these models")
    x, y = iris
    matrix = xgboost.DMatrix(x, y, feature_names=list("abcd"))
    booster = xgboost.train({"booster": kind, "nthread": 1}, matrix, 4)
    booster.save_model(tmp_path / "model.json")
    backend = opened("xgboost", tmp_path / "model.json")
    assert backend.signature[0].inputs[0].columns == ("a", "b", "c", "d")
    (result,) = backend.run([x.astype(np.float32)])
    np.testing.assert_allclose(result, booster.predict(matrix), rtol=1e-6)


def test_several_labels_have_a_probability_each(iris, opened, tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="it trains and runs these models")
    x, y = iris
    model = xgboost.XGBClassifier(n_estimators=3, n_jobs=1).fit(x, np.eye(3)[y].astype(int))
    model.save_model(tmp_path / "model.json")
    backend = opened("xgboost", tmp_path / "model.json")
    assert [spec.name for spec in backend.signature[0].outputs] == ["prediction"]
    (result,) = backend.run([x.astype(np.float32)])
    np.testing.assert_array_equal(result, model.predict_proba(x))


def test_the_best_iteration_counts_as_in_xgboosts_own_interface(iris, opened, tmp_path):
    xgboost = pytest.importorskip("xgboost", reason="it trains and runs these models")
    x, y = iris
    model = xgboost.XGBRegressor(n_estimators=40, early_stopping_rounds=1, n_jobs=1)
    model.fit(x[::2], y[::2], eval_set=[(x[::2], -y[::2])], verbose=False)
    model.save_model(tmp_path / "model.json")
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    (result,) = opened("xgboost", tmp_path / "model.json").run([x.astype(np.float32)])
    np.testing.assert_array_equal(result, model.predict(x))


# --- LightGBM ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def boosted(iris):
    """A function that trains a model of a kind on the first classes."""
    lightgbm = pytest.importorskip("lightgbm", reason="it trains and runs these models")

    def fit(kind, classes=3, **options):
        x, y = iris
        keep = y < classes
        options = {"n_estimators": 3, "num_leaves": 4, "n_jobs": 1, "verbose": -1} | options
        return getattr(lightgbm, kind)(**options).fit(x[keep], y[keep])

    return fit


@pytest.mark.parametrize("classes", [2, 3])
def test_lightgbm_classifiers(iris, boosted, opened, tmp_path, classes):
    model = boosted("LGBMClassifier", classes)
    model.booster_.save_model(tmp_path / "model.txt")
    backend = opened("lightgbm", tmp_path / "model.txt", options={"thread_num": 1})
    assert tell(backend) == [
        ("x", np.float64, (-1, 4)),
        ("prediction", np.int64, (-1,)),
        ("probabilities", np.float64, (-1, classes)),
    ]
    prediction, probabilities = backend.run([iris[0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names of features that it made up
        np.testing.assert_array_equal(prediction, model.predict(iris[0]))
        np.testing.assert_allclose(probabilities, model.predict_proba(iris[0]), rtol=1e-12)


def test_lightgbm_regressors(iris, boosted, opened, tmp_path):
    model = boosted("LGBMRegressor")
    model.booster_.save_model(tmp_path / "model.txt")
    (result,) = opened("lightgbm", tmp_path / "model.txt").run([iris[0]])
    np.testing.assert_array_equal(result, model.booster_.predict(iris[0]))


# --- what is wrong with a file ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_format", "name"),
    [("sklearn", "m.skops"), ("xgboost", "m.json"), ("xgboost", "m.ubj"), ("lightgbm", "m.txt")],
)
@pytest.mark.parametrize("content", [b"what is this?", b"\x00\xff\x80" * 50, b"{}", b"tree\n", b""])
def test_file_of_other_content_is_a_readable_error(opened, tmp_path, model_format, name, content):
    pytest.importorskip(model_format)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartError, match="Load model failed, model file: ") as caught:
        opened(model_format, tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def whole(iris, boosted, tmp_path_factory):
    """A file of each kind."""
    from sklearn.linear_model import LogisticRegression

    directory = tmp_path_factory.mktemp("whole")
    for suffix in ("json", "ubj"):
        fit_xgboost(iris, "XGBClassifier").save_model(directory / f"m.{suffix}")
    boosted("LGBMClassifier").booster_.save_model(directory / "m.txt")
    skops_io.dump(LogisticRegression(max_iter=500).fit(*iris), directory / "m.skops")
    return directory


@pytest.mark.parametrize(
    ("model_format", "name"),
    [("sklearn", "m.skops"), ("xgboost", "m.json"), ("xgboost", "m.ubj"), ("lightgbm", "m.txt")],
)
def test_file_truncated_anywhere_is_a_readable_error(whole, opened, tmp_path, model_format, name):
    content = (whole / name).read_bytes()
    if name == "m.txt":  # what follows the trees is only told
        content = content[: content.index(b"end of trees") + 5]
    for length in range(1, len(content), len(content) // 20):
        (tmp_path / name).write_bytes(content[:length])
        with pytest.raises(StartError, match="Load model failed, model file: ") as caught:
            opened(model_format, tmp_path / name)
        assert "\n" not in str(caught.value)


def test_another_device_than_a_cpu_is_refused(whole, opened):
    with pytest.raises(StartError, match="format xgboost run on device type cpu, not on gpu"):
        opened("xgboost", whole / "m.json", device_type="gpu")


def test_row_of_wrong_length_fails_with_the_librarys_message(whole, opened):
    for model_format, name in (
        ("xgboost", "m.json"),
        ("lightgbm", "m.txt"),
        ("sklearn", "m.skops"),
    ):
        backend = opened(model_format, whole / name)
        with pytest.raises(StageFailed):
            backend.run([np.zeros((1, 9), backend.signature[0].inputs[0].dtype)])
