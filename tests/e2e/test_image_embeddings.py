"""Texts and images in the same space on a real server: vectors, and what is refused."""

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import openai
import pytest
from PIL import Image

from tests.e2e.harness import config, serving
from tests.llm import dual_towers
from tests.tasks.checkpoints import build
from tests.waiting import PATIENCE

pytestmark = pytest.mark.torch

JSON = {"Content-Type": "application/json"}
NAMES = ("clip", "siglip")
OPTIONS = {"preparation_timeout": PATIENCE, "image_hosts": ["127.0.0.1", "*"], "max_images": 5}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    for name in NAMES:
        dual_towers.build(directory / name, name)
    build(directory / "words", "bert", "Model")
    dual_towers.build_detector(directory / "owl", "owlvit")
    return directory


@pytest.fixture(scope="module")
def calls(place):
    models = [config(place, name, llm_options=OPTIONS) for name in NAMES]
    with serving(place, *models, config(place, "words"), config(place, "owl")) as served:
        yield served


@pytest.fixture(scope="module")
def client(calls):
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def expected(place, name):
    """Vectors of the texts and of the pictures by transformers."""
    reference = dual_towers.Reference(place / name, name)
    return reference.texts(dual_towers.TEXTS), reference.images(dual_towers.pictures())


PICTURES = dual_towers.pictures()
FILES = [dual_towers.file_of(picture) for picture in PICTURES]


def uri(file, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def embed(client, name, inputs):
    answer = client.embeddings.create(model=name, input=inputs)
    return np.array([entry.embedding for entry in answer.data], np.float32)


def ask(calls, body, model="clip"):
    body = json.dumps({"model": model, **body})
    status, content = calls.http_call("POST", "/v1/embeddings", body, JSON)
    return status, json.loads(content)


def test_texts_and_images_in_a_request_have_the_vectors_of_the_reference(client, name, expected):
    texts, images = expected
    inputs = [part(uri(FILES[0])), dual_towers.TEXTS[0], part(uri(FILES[2])), {"text": "dog"}]
    wanted = np.stack([images[0], texts[0], images[2], texts[1]])
    assert np.abs(embed(client, name, inputs) - wanted).max() < 1e-4
    assert np.abs(embed(client, name, dual_towers.TEXTS) - texts).max() < 1e-4
    forms = [{"image_url": uri(FILES[1])}, {"image": uri(FILES[3])}, part(uri(FILES[4]))]
    assert np.abs(embed(client, name, forms) - images[[1, 3, 4]]).max() < 1e-4


def test_a_chat_with_an_image_is_embedded(calls, name, expected):
    texts, images = expected
    contents = [([part(uri(FILES[3]))], images[3]), ("dog", texts[1])]
    for content, wanted in contents:
        status, answer = ask(calls, {"messages": [{"role": "user", "content": content}]}, name)
        assert status == 200
        assert np.abs(np.array(answer["data"][0]["embedding"]) - wanted).max() < 1e-4


def test_many_clients_at_once_get_their_own_vectors(client, name, expected):
    texts, images = expected

    def check(place):
        first, second = place % len(FILES), place % len(texts)
        vectors = embed(client, name, [part(uri(FILES[first])), dual_towers.TEXTS[second]])
        return np.abs(vectors - np.stack([images[first], texts[second]])).max()

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(check, range(32))) < 1e-4


@contextmanager
def files_on_a_server(answers):
    """Serve a file, or a redirect, for each path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = answers[self.path]
            self.send_response(302 if isinstance(content, str) else 200)
            if isinstance(content, str):
                self.send_header("Location", content)
            self.end_headers()
            if isinstance(content, bytes):
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_images_are_fetched_from_allowed_hosts_alone(calls, client, expected, name):
    inside = "http://127.0.0.2/secret"
    with files_on_a_server({"/a.png": FILES[1], "/away": inside, "/text": b"hello"}) as url:
        vectors = embed(client, name, [part(f"{url}/a.png")])
        assert np.abs(vectors - expected[1][[1]]).max() < 1e-4
        for path, told in (("/away", "address is not public"), ("/text", "is no JPEG, PNG")):
            status, answer = ask(calls, {"input": [part(url + path)]}, name)
            assert (status, answer["error"]["param"]) == (400, "input[0].image_url")
            assert told in answer["error"]["message"]


BOMB = dual_towers.file_of(Image.new("1", (9000, 9000)))


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({"input": ["a", part(uri(BOMB))]}, "input[1].image_url", "9000 x 9000 pixels"),
        ({"input": [part(uri(FILES[0][:300]))]}, "input[0].image_url", "is broken"),
        ({"input": [part(uri(b"%PDF-1.7"))]}, "input[0].image_url", "is no JPEG, PNG"),
        ({"input": [part(uri(b"RIFF", "audio/wav"))]}, "input[0].image_url", "is no JPEG, PNG"),
        ({"input": [part("data:image/png;base64,@")]}, "input[0].image_url", "no valid base64"),
        ({"input": [part("http://169.254.169.254/")]}, "input[0].image_url", "is not public"),
        ({"input": [part("http://[::1]:1/")]}, "input[0].image_url", "is not public"),
        ({"input": [part("file:///etc/passwd")]}, "input[0].image_url", "no http or https URL"),
        ({"input": [part("")]}, "input[0].image_url", "has no url"),
        ({"input": [part(uri(FILES[0]))] * 6}, "input", "6 images, expected at most 5"),
        ({"input": [{"type": "image_url"}]}, "input[0]", "expected one of them"),
        ({"input": [{"text": "a", "image": "b"}]}, "input[0]", "expected one of them"),
        ({"input": [{"type": "video_url"}]}, "input[0].type", "expected text or image_url"),
        ({"input": [[1], part(uri(FILES[0]))]}, "input", "objects with text or image_url"),
        ({"input": ["cat " * 40]}, "input", "maximum context length is 16 tokens"),
        ({"messages": []}, "messages", "have 0 texts and images"),
        ({"messages": [{"content": "a"}], "input": "a"}, "messages", "beside input"),
        ({"messages": [{"content": [part("x"), part("y")]}]}, "messages", "have 2 texts"),
        ({}, "input", "is missing"),
    ],
)
def test_a_wrong_input_is_named_and_the_model_goes_on(calls, body, param, told):
    status, answer = ask(calls, body)
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert told in answer["error"]["message"]
    assert ask(calls, {"input": [part(uri(FILES[0])), "cat"]})[0] == 200


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({"input": [part(uri(FILES[0]))]}, "input[0]", "the model embeds texts only"),
        ({"messages": [{"content": "a"}]}, "messages", "is for models that embed images"),
    ],
)
def test_a_model_of_texts_refuses_images(calls, body, param, told):
    status, answer = ask(calls, body, "words")
    assert (status, answer["error"]["param"]) == (400, param)
    assert told in answer["error"]["message"]


def test_a_model_that_embeds_images_generates_nothing(calls, client):
    with pytest.raises(openai.BadRequestError, match="cannot generate"):
        client.chat.completions.create(
            model="clip", messages=[{"role": "user", "content": [part(uri(FILES[0]))]}]
        )
    listed = {model.id: model for model in client.models.list().data}
    assert listed["clip"].input_modalities == ["text", "image"]


def test_predict_classifies_with_the_labels_of_the_request(calls, place, name):
    body = {"instances": [{"image": {"b64": base64.b64encode(FILES[0]).decode()}}]}
    body["instances"][0]["candidate_labels"] = json.dumps(["cat", "dog"])
    status, content = calls.http_call("POST", f"/model/{name}:predict", json.dumps(body), JSON)
    assert status == 200, content
    (answer,) = json.loads(content)["instances"]
    texts = [f"This is a photo of {label}." for label in json.loads(answer["labels"])]
    logits = dual_towers.Reference(place / name, name).logits(PICTURES[0], texts)
    odds = 1 / (1 + np.exp(-logits))
    if name == "clip":
        odds = np.exp(logits) / np.exp(logits).sum()
    assert np.abs(answer["scores"] - odds).max() < 1e-4


def test_predict_finds_boxes_of_the_labels_of_the_request(calls):
    image = {"b64": base64.b64encode(FILES[0]).decode()}
    body = {
        "instances": [{"image": image, "candidate_labels": "cat,dog", "threshold": 0, "top_k": 0}]
    }
    status, content = calls.http_call("POST", "/model/owl:predict", json.dumps(body), JSON)
    assert status == 200, content
    boxes = json.loads(json.loads(content)["instances"][0]["detections"])
    assert len(boxes) == 16
    assert {box["label"] for box in boxes} <= {"cat", "dog"}
