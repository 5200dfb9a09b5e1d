"""ONNX files as skl2onnx writes them by default: texts in, ZipMaps out; against scikit-learn."""

import numpy as np
import pytest

from mindspore_serving.backends.run import run_model
from mindspore_serving.core.declaration import DeclaredModel
from mindspore_serving.core.dtype import TEXT
from mindspore_serving.errors import InvalidInputs, StartError

pytest.importorskip("onnxruntime", reason="it runs these models")
skl2onnx = pytest.importorskip("skl2onnx", reason="it writes these models")
pytestmark = pytest.mark.onnx

TEXTS = ["good fine great", "bad awful", "great good", "awful poor bad"] * 3
LABELS = ["pos", "neg", "pos", "neg"] * 3


def outcomes(backend, rows, **fields):
    spec = DeclaredModel("m", "onnx", ("m",), **fields)
    return run_model(backend, spec, 0, rows)


@pytest.fixture(scope="module")
def reviews():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def iris():
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    x, y = load_iris(return_X_y=True)
    return LogisticRegression(max_iter=500).fit(x, y + 5)


@pytest.fixture(scope="module")
def files(reviews, iris, tmp_path_factory):
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.feature_extraction.text import TfidfVectorizer

    directory = tmp_path_factory.mktemp("skl2onnx")

    def save(name, model, kind, **options):
        onnx = skl2onnx.convert_sklearn(model, initial_types=[("x", kind)], **options)
        (directory / f"{name}.onnx").write_bytes(onnx.SerializeToString())

    save("iris", iris, FloatTensorType([None, 4]))
    plain = {TfidfVectorizer: {"locale": "C"}}  # else it wants one that may not be installed
    save("flat", reviews, StringTensorType([None]), options=plain)
    save("column", reviews, StringTensorType([None, 1]), options=plain)
    return directory


@pytest.mark.parametrize("name", ["flat", "column"])
def test_texts_go_in_and_class_names_and_probabilities_come_out(files, reviews, opened, name):
    backend = opened("onnx", files / f"{name}.onnx")
    (signature,) = backend.signature
    assert [(spec.name, spec.dtype) for spec in signature.inputs] == [("x", TEXT)]
    assert [spec.dtype for spec in signature.outputs] == [TEXT, np.float32]
    given = ["good", "awful awful", "", "ünknown wörds"]
    for texts in (given, given[:1]):
        results = outcomes(backend, [(text,) for text in texts])
        assert [label for label, _ in results] == list(reviews.predict(texts))
        assert all(type(label) is str for label, _ in results)
        probabilities = np.array([row for _, row in results])
        np.testing.assert_allclose(probabilities, reviews.predict_proba(texts), atol=1e-5)


def test_a_zipmap_is_an_array_in_the_order_of_the_classes(files, iris, opened):
    backend = opened("onnx", files / "iris.onnx")
    x = np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]], np.float32)
    labels, probabilities = backend.run([x])
    assert labels.tolist() == list(iris.predict(x)) == [5, 7]
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities, iris.predict_proba(x), atol=1e-5)
    results = outcomes(backend, [(row,) for row in x])
    np.testing.assert_array_equal(results[1][1], probabilities[1])


def test_non_text_value_fails_only_its_instance(files, opened):
    backend = opened("onnx", files / "flat.onnx")
    bad, good = outcomes(backend, [(np.ones(2, np.float32),), ("good",)])
    assert isinstance(bad, InvalidInputs)
    assert "data type kMSI_Float32 not match the data type kMSI_String" in str(bad)
    assert good[0] == "pos"


def test_texts_go_through_a_model_without_batch_dimension(onnx, opened):
    backend = opened("onnx", onnx / "text.onnx")
    assert outcomes(backend, [("hello",)], with_batch_dim=False) == [("hello",)]


def write_identity(path, inputs, outputs):
    """Texts of shape `inputs` in, the same as shape `outputs` out."""
    from onnx import TensorProto, helper, numpy_helper, save

    shape = [dim if isinstance(dim, int) else -1 for dim in outputs]
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "columns",
        [helper.make_tensor_value_info("x", TensorProto.STRING, inputs)],
        [helper.make_tensor_value_info("y", TensorProto.STRING, outputs)],
        [numpy_helper.from_array(np.array(shape), "shape")],
    )
    opset = helper.make_opsetid("", 17)
    save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        (["N", 3], ["N", 3], "input 0 'x' has 3 texts for an instance, requests carry"),
        (["N", 1], ["M", 2], "output 0 'y' has 2 texts for an instance, replies carry one"),
    ],
)
def test_several_texts_in_an_instance_are_refused_by_name(opened, tmp_path, inputs, outputs, text):
    write_identity(tmp_path / "columns.onnx", inputs, outputs)
    with pytest.raises(StartError, match=text):
        opened("onnx", tmp_path / "columns.onnx")


def test_texts_are_refused_by_name_where_openvino_runs_the_file(opened, tmp_path):
    pytest.importorskip("openvino", reason="it reads the file")
    write_identity(tmp_path / "text.onnx", ["N", 1], ["N", 1])
    with pytest.raises(StartError, match="input 0 'x' is of type string, which requests cannot"):
        opened("onnx_openvino", tmp_path / "text.onnx")


@pytest.fixture(scope="module")
def houses():
    """A pipeline over columns of texts and numbers, and its rows."""
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rows = np.empty((12, 3), object)
    rows[:, 0], rows[:, 1] = ["red", "blue", "green", "red"] * 3, np.arange(12.0)
    rows[:, 2] = np.linspace(0, 3, 12)
    parts = [("texts", OneHotEncoder(), [0]), ("scaled", StandardScaler(), [1, 2])]
    labels = np.array(["low", "mid", "high"])[np.arange(12) // 4]
    return make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(rows, labels), rows


@pytest.mark.parametrize("zipmap", [True, "columns"])
def test_columns_are_inputs_and_outputs_are_labels_and_probabilities(
    houses, opened, tmp_path, zipmap
):
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.linear_model import LogisticRegression

    model, rows = houses
    kinds = {"colour": StringTensorType, "age": FloatTensorType, "size": FloatTensorType}
    types = [(name, kind([None, 1])) for name, kind in kinds.items()]
    options = {LogisticRegression: {"zipmap": zipmap}}
    onnx = skl2onnx.convert_sklearn(model, initial_types=types, options=options)
    (tmp_path / "houses.onnx").write_bytes(onnx.SerializeToString())
    backend = opened("onnx", tmp_path / "houses.onnx")
    assert [spec.name for spec in backend.signature[0].inputs] == ["colour", "age", "size"]
    instances = [(row[0], np.float32(row[1]), np.float32(row[2])) for row in rows]
    results = outcomes(backend, instances)
    assert [result[0] for result in results] == list(model.predict(rows))
    expected = model.predict_proba(rows)
    if zipmap == "columns":  # an output for each class
        answers = np.array([[float(value) for value in result[1:]] for result in results])
    else:
        answers = np.array([result[1] for result in results])
    np.testing.assert_allclose(answers, expected, atol=1e-5)
