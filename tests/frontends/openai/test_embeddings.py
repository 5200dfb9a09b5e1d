"""Embeddings: what the model is asked, what the client is told; also with OpenAI's own client."""

import base64

import numpy as np
import openai
import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Refused
from mindspore_serving.core.reading_messages import Embed, Embedded
from mindspore_serving.errors import ServableUnavailable
from tests.frontends.openai.serving import CARD

VECTORS = np.array([[0.6, 0.0, 0.8], [0.0, -1.0, 0.0]], "<f4")


@pytest.fixture
def vectors(web):
    """A server whose first model, "vectors", gives each prompt a row of VECTORS."""
    can = {"can_generate": False, "can_embed": True, "embedding_size": 3, "adapters": ("tuned",)}
    can["any_dimensions"] = True
    web.control.card = replace(CARD, **can)

    def script(request):
        count = len(request.prompts)
        return [Embedded(VECTORS[:count].tobytes(), 3, tuple(range(4, 4 + count)))]

    web.inference.script = script
    return web


def embed(web, given="hello", **fields):
    return web.call("POST", "/v1/embeddings", {"input": given, **fields})


def test_the_answer_is_a_list_of_vectors_with_usage(vectors):
    answer = embed(vectors, ["a", "b"], model="toy")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": VECTORS[0].tolist()},
            {"object": "embedding", "index": 1, "embedding": VECTORS[1].tolist()},
        ],
        "model": "toy",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hello", ["hello"]),
        (["a", "b"], ["a", "b"]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
def test_an_input_has_four_forms(vectors, given, prompts):
    assert embed(vectors, given).status == 200
    assert vectors.sent == Embed(prompts=prompts)


def test_base64_is_float32_little_endian(vectors):
    (entry,) = embed(vectors, encoding_format="base64").json["data"]
    assert base64.b64decode(entry["embedding"]) == bytes.fromhex("9a99193f000000 00cdcc4c3f")


def test_numbers_are_exactly_those_of_base64(vectors):
    (numbers,) = embed(vectors, encoding_format="float").json["data"]
    assert np.array(numbers["embedding"], "<f4").tobytes() == VECTORS[0].tobytes()


def test_dimensions_keep_the_first_numbers_scaled_to_length_1(vectors):
    data = embed(vectors, ["a", "b"], dimensions=2).json["data"]
    assert [entry["embedding"] for entry in data] == [[1.0, 0.0], [0.0, -1.0]]


def test_nought_stays_nought_in_fewer_dimensions(vectors):
    data = embed(vectors, ["a", "b"], dimensions=1).json["data"]
    assert [entry["embedding"] for entry in data] == [[1.0], [0.0]]


def test_without_a_name_the_model_that_embeds_is_asked(web):
    web.inference.script = lambda request: [Embedded(VECTORS[:1].tobytes(), 3, (1,))]
    assert embed(web).json["model"] == "vectors"
    assert web.inference.calls[-1].request.servable == "vectors"


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"encoding_format": "int8"}, "encoding_format", 'is "int8", expected float or base64'),
        ({"dimensions": 0}, "dimensions", "is 0, expected 1 to 3"),
        ({"dimensions": 4}, "dimensions", "is 4, expected 1 to 3"),
        ({"input": []}, "input", "expected a text, texts, token ids"),
        ({"input": [5, "a"]}, "input", "expected a text, texts, token ids"),
        ({"input": [300]}, "input", "token id 300, expected 0 to 299"),
        ({"input": [[-1]]}, "input", "token id -1, expected 0 to 299"),
        ({"input": None}, "input", "null"),
        ({"input": ["a"] * 13}, "input", "has 13 prompts, expected at most 12"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not supported"),
        ({"model": "tuned"}, "model", "is a LoRA adapter and cannot embed"),
    ],
)
def test_a_wrong_field_is_named(vectors, fields, param, text):
    answer = vectors.call("POST", "/v1/embeddings", {"input": "hello", **fields})
    assert (answer.status, answer.error["param"]) == (400, param)
    assert text in answer.error["message"]
    assert not vectors.inference.calls


def test_a_body_without_an_input_is_refused(vectors):
    answer = vectors.call("POST", "/v1/embeddings", {"model": "toy"})
    assert (answer.status, answer.error["message"]) == (400, "input is missing")


def test_a_model_that_does_not_embed_is_refused(web):
    answer = embed(web, model="toy")
    assert (answer.status, answer.error["param"]) == (400, "model")
    assert "generates text; to embed" in answer.error["message"]


def test_a_model_that_is_not_there_is_404(vectors):
    answer = embed(vectors, model="nope")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("refused", "status", "code"),
    [
        (
            Refused("context", "a prompt has 200 tokens", 200, 128),
            400,
            "context_length_exceeded",
        ),
        (Refused("empty", "a prompt is empty"), 400, None),
        (Refused("overloaded", "too many wait"), 429, "rate_limit_exceeded"),
    ],
)
def test_refusals_of_the_model_are_reported(vectors, refused, status, code):
    vectors.answers(refused)
    answer = embed(vectors)
    assert (answer.status, answer.error["code"]) == (status, code)
    assert refused.text in answer.error["message"]


def test_a_model_that_is_lost_is_told(vectors):
    vectors.inference.script = lambda request: ServableUnavailable("nobody runs it")
    assert embed(vectors).status == 503


def test_a_long_answer_is_written_whole(vectors):
    random = np.random.default_rng(0)
    rows = random.normal(size=(12, 3000)).astype("<f4")
    vectors.inference.script = lambda request: [Embedded(rows.tobytes(), 3000, (1,) * 12)]
    data = embed(vectors, ["a"] * 12).json["data"]
    assert [entry["index"] for entry in data] == list(range(12))
    assert np.array([entry["embedding"] for entry in data], "<f4").tobytes() == rows.tobytes()


@pytest.mark.parametrize(
    "fields", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}]
)
def test_openais_client_gets_numbers(vectors, fields):
    with openai.OpenAI(base_url=vectors.url, api_key="x", max_retries=0) as client:
        found = client.embeddings.create(model="toy", input=["a", "b"], **fields)
    if fields.get("encoding_format") == "base64":  # then the client leaves them as they are
        rows = [base64.b64decode(entry.embedding) for entry in found.data]
        assert b"".join(rows) == VECTORS.tobytes()
    else:
        assert np.array([e.embedding for e in found.data], "<f4").tobytes() == VECTORS.tobytes()
    assert found.usage.total_tokens == 9


def test_openais_client_raises_the_servers_errors(vectors):
    with (
        openai.OpenAI(base_url=vectors.url, api_key="x", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="expected 1 to 3"),
    ):
        client.embeddings.create(model="toy", input="a", dimensions=9)
