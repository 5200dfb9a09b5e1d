"""Embeddings of texts and images by a model that generates, as Qwen3-VL-Embedding does."""

import json

import numpy as np
import openai
import pytest
import transformers

from tests.e2e.harness import config, serving
from tests.llm import seeing
from tests.waiting import PATIENCE

pytestmark = pytest.mark.torch

KIND, MERGED = "qwen3-vl", 4  # patches of a vector
OPTIONS = {"dtype": "f32", "kv_cache_memory": 8 << 20, "max_images": 3,
           "preparation_timeout": PATIENCE, "max_num_batched_tokens": 64}  # fmt: skip
FIRST, SECOND = seeing.image(1, 70, 50), seeing.image(2, 60, 100)
SYSTEM = "system:Represent the user's input."
QUERY = "Find an image."


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = seeing.build(tmp_path_factory.mktemp("embeds"), KIND, "see")
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in kinds.items()
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    pooling = {"pooling_mode_lasttoken": True, "word_embedding_dimension": 64}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    prompts = {"prompts": {"query": QUERY}}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return directory


@pytest.fixture(scope="module")
def calls(directory):
    with serving(directory.parent, config(directory.parent, "see", llm_options=OPTIONS)) as served:
        yield served


@pytest.fixture(scope="module")
def client(calls):
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def reference(directory):
    return seeing.Reference(directory, KIND)


@pytest.fixture(scope="module")
def expect(directory, reference):
    """Compute the vector of a text with "<image>" for each image."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)

    def compute(text, *images):
        parts = text.split("<image>")
        for index, image in enumerate(images):
            grid = seeing.processor(KIND)([image], return_tensors="np")["image_grid_thw"][0]
            marks = "<image>" * int(grid.prod() // MERGED)
            parts[index] += f"<start_of_image>{marks}<end_of_image>"
        return reference.vector(tokenizer("".join(parts)).input_ids, list(images))

    return compute


def embed(client, inputs, **more):
    answer = client.embeddings.create(model="see", input=inputs, extra_body=more)
    return np.array([entry.embedding for entry in answer.data], np.float32)


def test_texts_and_images_are_embedded_as_conversations(client, expect):
    vectors = embed(client, [seeing.part(SECOND), "a cat", seeing.part(FIRST)])
    expected = [
        expect(f"{SYSTEM}user:<image>assistant:", SECOND),
        expect(f"{SYSTEM}user:a catassistant:"),
        expect(f"{SYSTEM}user:<image>assistant:", FIRST),
    ]
    assert np.abs(vectors - expected).max() < 1e-4
    assert np.abs(embed(client, "a cat") - expected[1]).max() < 1e-4


def test_a_prompt_name_replaces_the_message_of_the_system(client, expect):
    expected = expect(f"system:{QUERY}user:a catassistant:")
    assert np.abs(embed(client, "a cat", prompt_name="query") - expected).max() < 1e-4
    none = expect("user:a catassistant:")
    assert np.abs(embed(client, "a cat", prompt_name="") - none).max() < 1e-4


def test_a_conversation_of_texts_and_images_has_a_vector(calls, expect):
    content = ["cats ", seeing.part(FIRST), "and", seeing.part(SECOND)]
    parts = [{"type": "text", "text": x} if isinstance(x, str) else x for x in content]
    body = {"model": "see", "messages": [{"role": "user", "content": parts}]}
    status, answer = calls.http_call("POST", "/v1/embeddings", json.dumps(body))
    assert status == 200, answer
    vector = json.loads(answer)["data"][0]["embedding"]
    expected = expect(f"{SYSTEM}user:cats <image>and<image>assistant:", FIRST, SECOND)
    assert np.abs(np.array(vector) - expected).max() < 1e-4


def test_token_ids_are_embedded_without_a_template(client, reference):
    expected = reference.vector([20, 40, 30], [])
    assert np.abs(embed(client, [[20, 40, 30]]) - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ([seeing.part(FIRST)] * 4, "3"),
        ([seeing.part("data:image/png;base64,AAAA")], "input[0].image_url"),
        ([{"type": "text"}], "input[0]"),
    ],
)
def test_a_wrong_input_is_refused_by_its_field(client, inputs, told):
    with pytest.raises(openai.BadRequestError) as caught:
        embed(client, inputs)
    assert told in str(caught.value)
