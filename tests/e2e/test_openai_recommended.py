"""Sampling that generation_config.json recommends, through a real server and worker."""

import json
from collections.abc import Iterator
from urllib.request import Request, urlopen

import openai
import pytest

from tests.e2e.harness import config, serving
from tests.llm import chatty
from tests.waiting import PATIENCE

ENDLESS = {"ignore_eos": True}
RECOMMENDED = {"temperature": 0.7, "top_k": 1, "top_p": 0.9, "repetition_penalty": 1}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    place = tmp_path_factory.mktemp("models")
    directory = chatty.build(place)
    (directory / "generation_config.json").write_text(json.dumps(RECOMMENDED))
    options = {"dtype": "f32", "kv_cache_memory": 8 << 20, "default_max_tokens": 5}
    with serving(place, config(place, "chatty", llm_options=options)) as calls:
        url = f"http://127.0.0.1:{calls.http}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as one:
            yield one


def test_the_best_token_is_taken_where_top_k_of_1_is_recommended(client):
    asked = {"model": "chatty", "prompt": "Hello", "max_tokens": 24}
    found, greedy = (
        client.completions.create(**asked, **more) for more in ({}, {"temperature": 0})
    )
    assert found.choices[0].text == greedy.choices[0].text


def test_a_response_has_its_sampling_parameters(client):
    found = client.responses.create(model="chatty", input="Hello", max_output_tokens=4)
    assert (found.temperature, found.top_p) == (0.7, 0.9)


def test_requested_parameters_take_precedence(client):
    asked = {"model": "chatty", "prompt": "Hello", "max_tokens": 24, "extra_body": {"top_k": 0}}
    texts = {client.completions.create(**asked, seed=seed).choices[0].text for seed in range(4)}
    assert len(texts) > 1


def test_an_answer_without_max_tokens_ends_at_the_operators_limit(client):
    found = client.chat.completions.create(
        model="chatty", messages=[{"role": "user", "content": "Hello"}], extra_body=ENDLESS
    )
    assert (found.usage.completion_tokens, found.choices[0].finish_reason) == (5, "length")


def test_the_model_says_its_defaults(client):
    found = client.models.retrieve("chatty").to_dict()
    assert found["default_sampling"] == {**RECOMMENDED, "min_p": 0.0}
    limits = (found["default_max_tokens"], found["suggested_max_tokens"])
    assert (found["sampling_source"], limits) == ("model", (5, 5))


def test_the_method_generate_has_the_models_defaults(client):
    url = str(client.base_url).replace("/v1/", "/model/chatty:generate")
    asked = {"model": "chatty", "prompt": "Hello", "temperature": 0, "max_tokens": 5}
    greedy = client.completions.create(**asked).choices[0].text
    for _ in range(3):  # drawn at temperature 1, they would differ
        body = json.dumps({"instances": [{"prompt": "Hello"}]}).encode()
        with urlopen(Request(url, body), timeout=PATIENCE) as reply:
            assert json.load(reply)["instances"][0]["text"] == greedy
