"""Model files that are served as they are, called as clients call them: over REST and gRPC."""

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest

from mindspore_serving.client import Client
from tests import printed
from tests.cli.commands import SERVING, Command
from tests.e2e.harness import ROOT
from tests.ports import free_port

pytest.importorskip("openvino", reason="it runs one of the models")
pytest.importorskip("onnxruntime", reason="it runs one of the models")
pytest.importorskip("skops", reason="it writes one of the models")
skl2onnx = pytest.importorskip("skl2onnx", reason="it writes one of the models")
pytestmark = [pytest.mark.e2e, pytest.mark.onnx]
ROWS = [[5.1, 3.5, 1.4, 0.2], [6, 3, 5, 2]]  # as a client writes them: not all have a point
TEXTS = ["a good fine day", "bad and awful"]


def train_iris():
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    x, y = load_iris(return_X_y=True)
    return LogisticRegression(max_iter=500).fit(x, np.array(["setosa", "versicolor", "other"])[y])


def train_reviews():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = ["good fine great", "bad awful", "great good", "awful poor bad"]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, list("+-+-"))
    plain = {TfidfVectorizer: {"locale": "C"}}
    kind = skl2onnx.common.data_types.StringTensorType([None, 1])
    return model, skl2onnx.convert_sklearn(model, initial_types=[("text", kind)], options=plain)


def train_colours():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rows = np.array([["red", 1.0], ["blue", 2.0], ["red", 2.0]], object)
    return make_pipeline(OneHotEncoder(), LogisticRegression()).fit(rows, [0, 1, 0])


class Served:
    """What runs, and the models as their libraries have them."""

    def __init__(self, directory: Path) -> None:
        import skops.io
        from sklearn.preprocessing import StandardScaler

        self.iris = train_iris()
        (directory / "iris").mkdir(parents=True)
        skops.io.dump(self.iris, directory / "iris" / "any name.skops")
        self.colours = train_colours()
        (directory / "colours").mkdir()
        skops.io.dump(self.colours, directory / "colours" / "pipeline.skops")
        self.reviews, onnx = train_reviews()
        (directory / "reviews" / "3").mkdir(parents=True)
        (directory / "reviews" / "3" / "pipeline.onnx").write_bytes(onnx.SerializeToString())
        self.scaler = StandardScaler().fit(ROWS)
        (directory / "scaler" / "1").mkdir(parents=True)
        (directory / "scaler" / "1" / "model.pkl").write_bytes(pickle.dumps(self.scaler))
        shutil.copytree(ROOT / "tests" / "backends" / "foreign" / "saved", directory / "saved")
        self.http, self.grpc = free_port(), free_port()
        self.printed = ""  # by the server

    def post(self, name: str, *instances: object) -> list[dict[str, object]]:
        url = f"http://127.0.0.1:{self.http}/model/{name}:predict"
        body = json.dumps({"instances": instances}).encode()
        with urlopen(Request(url, body)) as answer:
            found: dict[str, list[dict[str, object]]] = json.load(answer)
        return found["instances"]

    def call(self, name: str, *instances: dict[str, object]) -> list[dict[str, object]]:
        with Client(f"127.0.0.1:{self.grpc}", name, "predict") as client:
            return client.infer(list(instances))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("files")
    made = Served(directory / "models")
    ports = ["--http-port", str(made.http), "--grpc-port", str(made.grpc)]
    with Command([*SERVING, "serve", "models", "--allow-pickle", *ports], directory) as command:
        command.says("Ctrl-C stops")
        made.printed = command.text
        yield made


def test_a_scikit_learn_model_takes_rows_of_plain_numbers(served: Served) -> None:
    for call in (served.post, served.call):
        answers = call("iris", *({"x": row} for row in ROWS))
        assert [one["prediction"] for one in answers] == list(served.iris.predict(ROWS))
        np.testing.assert_allclose(
            [one["probabilities"] for one in answers], served.iris.predict_proba(ROWS), rtol=1e-12
        )


def test_a_pipeline_that_encodes_texts_takes_an_input_for_each_column(served: Served) -> None:
    rows = [("blue", 1), ("red", 2)]
    expected = served.colours.predict_proba(np.array(rows, object))
    for call in (served.post, served.call):
        answers = call("colours", *({"x0": colour, "x1": size} for colour, size in rows))
        found = [one["probabilities"] for one in answers]
        np.testing.assert_array_equal(found, expected)


def test_a_pickle_is_served_if_the_command_line_allows_pickles(served: Served) -> None:
    answers = served.call("scaler", *({"x": row} for row in ROWS))
    transformed = [one["transformed"] for one in answers]
    np.testing.assert_array_equal(transformed, served.scaler.transform(ROWS))


def test_a_pipeline_in_onnx_takes_texts_and_answers_texts(served: Served) -> None:
    for call in (served.post, served.call):
        answers = call("reviews", *({"text": text} for text in TEXTS))
        assert [one["output_label"] for one in answers] == list(served.reviews.predict(TEXTS))
        np.testing.assert_allclose(
            [one["output_probability"] for one in answers],
            served.reviews.predict_proba(TEXTS),
            atol=1e-6,
        )


def test_an_instance_that_is_no_text_fails_alone(served: Served) -> None:
    good, bad = served.post("reviews", {"text": TEXTS[0]}, {"text": 1.5})
    assert good["output_label"] == "+"
    assert "not match the data type kMSI_String" in str(bad["error_msg"])


def test_a_saved_model_is_its_directory(served: Served) -> None:
    for call in (served.post, served.call):
        answers = call("saved", {"x": [1, 2, 3]}, {"x": [0.5, 0, -1]})
        assert [np.asarray(one["y"]).tolist() for one in answers] == [[12.0, 18.0], [0.0, 0.0]]


def test_the_printed_commands_work(served: Served, tmp_path: Path) -> None:
    printed.paste_all(printed.commands(served.printed), tmp_path)


def test_types_and_shapes_are_shown_to_clients(served: Served) -> None:
    with urlopen(f"http://127.0.0.1:{served.http}/servables") as answer:
        rows = {row["name"]: row["methods"]["predict"] for row in json.load(answer)["servables"]}
    (x,) = rows["iris"]["input_specs"]
    assert x == {
        "name": "x", "dtype": "float64", "shape": [4], "example": {"value": 1.0, "shape": [4]}
    }  # fmt: skip
    (prediction, probabilities) = rows["iris"]["output_specs"]
    assert prediction == {"name": "prediction", "dtype": "str", "shape": []}
    assert probabilities["shape"] == [3]
    (text,) = rows["reviews"]["input_specs"]
    assert (text["dtype"], text["shape"], text["example"]["value"]) == ("str", [1], "text")


def test_texts_and_rows_go_through_the_open_inference_protocol(served: Served) -> None:
    def infer(model: str, **tensor: object) -> dict[str, list[object]]:
        url = f"http://127.0.0.1:{served.http}/v2/models/{model}/infer"
        with urlopen(Request(url, json.dumps({"inputs": [tensor]}).encode())) as answer:
            outputs = json.load(answer)["outputs"]
        return {one["name"]: one["data"] for one in outputs}

    found = infer("reviews", name="text", datatype="BYTES", shape=[2, 1], data=TEXTS)
    assert found["output_label"] == list(served.reviews.predict(TEXTS))
    flat = [number for row in ROWS for number in row]
    found = infer("iris", name="x", datatype="FP64", shape=[2, 4], data=flat)
    assert found["prediction"] == list(served.iris.predict(ROWS))
