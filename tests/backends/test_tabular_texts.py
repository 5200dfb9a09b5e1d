"""Models of scikit-learn that take texts, compared with the library's own answers."""

import numpy as np
import pytest

from mindspore_serving.backends.run import run_model
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.errors import StartError

skops_io = pytest.importorskip("skops.io", reason="it writes these models")
SPEC = DeclaredModel("m", "sklearn")
COLOURS = [["red", "s"], ["blue", "m"], ["red", "m"], ["green", "s"]]
MIXED = [["red", 1.0, 2.5], ["blue", 2.0, 0.5], ["red", 3.0, 1.0], ["green", 1.0, 4.0]]
REVIEWS = ["good fine", "bad awful", "great good", "awful poor"]
RATED = [[text, number] for text, number in zip(REVIEWS, (1.0, 5.0, 2.0, 4.0), strict=True)]
Y = [0, 1, 0, 1]


def pipeline(*steps):
    from sklearn.pipeline import make_pipeline

    return make_pipeline(*steps)


def classifier():
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()


def one_hot(x):
    from sklearn.preprocessing import OneHotEncoder

    return pipeline(OneHotEncoder(), classifier()).fit(x, Y)


def ordinal_after_imputer():
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OrdinalEncoder

    steps = SimpleImputer(strategy="most_frequent"), OrdinalEncoder(), classifier()
    return pipeline(*steps).fit(np.array(COLOURS, object), Y)


def target_encoder():
    from sklearn.preprocessing import TargetEncoder

    return pipeline(TargetEncoder(cv=2), classifier()).fit(np.array(COLOURS, object), Y)


def by_columns(chosen):
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    parts = [("scaled", StandardScaler(), [2, 1]), ("texts", OneHotEncoder(), chosen)]
    return pipeline(ColumnTransformer(parts), classifier()).fit(np.array(MIXED, object), Y)


def words_in_a_column():
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_extraction.text import TfidfVectorizer

    parts = [("words", TfidfVectorizer(), 0), ("number", "passthrough", [1])]
    return pipeline(ColumnTransformer(parts), classifier()).fit(np.array(RATED, object), Y)


def voting():
    from sklearn.ensemble import VotingClassifier

    model = VotingClassifier([("a", one_hot(COLOURS)), ("b", ordinal_after_imputer())])
    return model.fit(np.array(COLOURS, object), Y)


def searched():
    from sklearn.model_selection import GridSearchCV

    search = GridSearchCV(one_hot(COLOURS), {"logisticregression__C": [1.0]}, cv=2)
    search.estimator.steps[0][1].handle_unknown = "ignore"
    return search.fit(np.array(COLOURS, object), Y)


OF_COLUMNS = {
    "one-hot, objects": (lambda: one_hot(np.array(COLOURS, object)), COLOURS, (0, 1)),
    "one-hot, texts of numpy": (lambda: one_hot(np.array(COLOURS)), COLOURS, (0, 1)),
    "one column": (lambda: one_hot(np.array(COLOURS)[:, :1]), [row[:1] for row in COLOURS], (0,)),
    "one-hot, a column of numbers": (
        lambda: one_hot(np.array([row[:2] for row in MIXED], object)),
        [row[:2] for row in MIXED],
        (0,),
    ),
    "imputer and ordinal": (ordinal_after_imputer, COLOURS, (0, 1)),
    "target encoder": (target_encoder, COLOURS, (0, 1)),
    "columns by number": (lambda: by_columns([0]), MIXED, (0,)),
    "columns by slice": (lambda: by_columns(slice(0, 1)), MIXED, (0,)),
    "columns by mask": (lambda: by_columns([True, False, False]), MIXED, (0,)),
    "words in a column": (words_in_a_column, RATED, (0,)),
    "voting": (voting, COLOURS, (0, 1)),
    "searched": (searched, COLOURS, (0, 1)),
}


@pytest.fixture
def saved(tmp_path, opened):
    """A function that opens an estimator as it is read from a file of skops."""

    def save(model, **options):
        skops_io.dump(model, tmp_path / "model.skops")
        return opened("sklearn", tmp_path / "model.skops", **options)

    return save


def inputs(backend):
    return [(one.name, one.dtype, one.shape) for one in backend.signature[0].inputs]


@pytest.mark.parametrize("name", OF_COLUMNS)
def test_each_column_of_a_model_that_takes_texts_is_an_input(saved, name):
    make, rows, texts = OF_COLUMNS[name]
    model = make()
    backend = saved(model, allow_pickle=True)
    width = len(rows[0])
    names = ["x"] if width == 1 else [f"x{number}" for number in range(width)]
    kinds = [TEXT if number in texts else np.dtype("f8") for number in range(width)]
    assert inputs(backend) == [(*one, (-1,)) for one in zip(names, kinds, strict=True)]
    outputs = backend.signature[0].outputs
    assert all(one.dtype is not None for one in outputs)  # it was warmed up
    instances = [[v if isinstance(v, str) else np.array(v) for v in row] for row in rows]
    results = run_model(backend, SPEC, 0, instances)
    array = np.array(rows, object)
    assert [one[0] for one in results] == list(model.predict(array))
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal([one[1] for one in results], model.predict_proba(array))


def test_columns_of_texts_have_the_names_of_the_training(saved):
    model = one_hot(np.array(COLOURS, object))
    model.steps[0][1].feature_names_in_ = np.array(["colour", "size"], object)
    backend = saved(model)
    assert [one.name for one in backend.signature[0].inputs] == ["colour", "size"]
    assert run_model(backend, SPEC, 0, [("blue", "m")])[0][0] == 1


def test_columns_of_texts_are_selected_by_name(saved):
    pandas = pytest.importorskip("pandas", reason="such a model is trained with it")
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    names = ["colour", "size", "weight"]
    frame = pandas.DataFrame({name: [row[i] for row in MIXED] for i, name in enumerate(names)})
    parts = [("texts", OneHotEncoder(), ["colour"]), ("scaled", StandardScaler(), ["weight"])]
    model = pipeline(ColumnTransformer(parts), classifier()).fit(frame, Y)
    backend = saved(model)
    assert inputs(backend) == list(zip(names, [TEXT, "f8", "f8"], [(-1,)] * 3, strict=True))
    rows = [(row[0], np.array(row[1]), np.array(row[2])) for row in MIXED]
    results = run_model(backend, SPEC, 0, rows)
    np.testing.assert_array_equal([one[1] for one in results], model.predict_proba(frame))


def test_a_category_that_was_not_trained_fails_only_in_its_run(saved):
    backend = saved(one_hot(np.array(COLOURS, object)))
    (bad,) = run_model(backend, SPEC, 0, [("pink", "s")])
    assert "unknown categories ['pink'] in column 0" in str(bad)
    ((prediction, _),) = run_model(backend, SPEC, 0, [("red", "s")])
    assert prediction == 0


def vectorisers():
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    union = FeatureUnion(
        [("words", TfidfVectorizer()), ("chars", CountVectorizer(analyzer="char"))]
    )
    nested = pipeline(pipeline(TfidfVectorizer()), classifier())
    return {
        "union": pipeline(union, classifier()),
        "hashing": pipeline(HashingVectorizer(n_features=64), classifier()),
        "nested": nested,
        "after passthrough": pipeline("passthrough", TfidfVectorizer(), classifier()),
    }


@pytest.mark.parametrize("name", ["union", "hashing", "nested", "after passthrough"])
def test_model_starting_with_a_vectoriser_takes_a_single_text(saved, name):
    model = vectorisers()[name].fit(REVIEWS, Y)
    backend = saved(model, allow_pickle=True)
    assert inputs(backend) == [("x", TEXT, (-1,))]
    results = run_model(backend, SPEC, 0, [(text,) for text in REVIEWS])
    np.testing.assert_array_equal([one[1] for one in results], model.predict_proba(REVIEWS))


def test_calibrated_vectorisers_take_a_single_text(saved):
    from sklearn.calibration import CalibratedClassifierCV

    model = CalibratedClassifierCV(vectorisers()["nested"], cv=2).fit(REVIEWS * 2, Y * 2)
    backend = saved(model, allow_pickle=True)
    assert inputs(backend) == [("x", TEXT, (-1,))]


def test_an_encoder_of_labels_takes_a_text(saved):
    from sklearn.preprocessing import LabelEncoder

    backend = saved(LabelEncoder().fit(["a", "b", "c"]))
    assert inputs(backend) == [("x", TEXT, (-1,))]
    assert run_model(backend, SPEC, 0, [("c",), ("a",)]) == [(2,), (0,)]


@pytest.mark.parametrize(
    ("kind", "items", "text"),
    [
        ("DictVectorizer", [{"a": 1}, {"b": 2}], "takes dictionaries"),
        ("FeatureHasher", [{"a": 1}, {"b": 2}], "takes dictionaries"),
        ("MultiLabelBinarizer", None, "takes lists of labels"),
    ],
)
def test_unsupported_input_kind_is_refused_at_load(saved, kind, items, text):
    from sklearn import feature_extraction, preprocessing

    made = getattr(feature_extraction, kind, None) or getattr(preprocessing, kind)
    model = made()
    model = model.fit([["a"], ["b"]]) if items is None else pipeline(model, classifier())
    model = model if items is None else model.fit(items, [0, 1])
    with pytest.raises(StartError, match=f"begins with a {kind}, which {text}"):
        saved(model, allow_pickle=True)


def test_transformer_with_several_text_outputs_is_refused_at_load(saved):
    from sklearn.impute import SimpleImputer

    model = SimpleImputer(strategy="most_frequent").fit(np.array(COLOURS, object))
    with pytest.raises(StartError, match="'transformed' is several texts, replies carry one"):
        saved(model, allow_pickle=True)
