"""A model with an encoder and a decoder behind the protocols of generation, by a real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

pytest.importorskip("openvino")

from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.outputs import Completion
from tests.e2e.harness import Calls, config, eventually, is_idle, serving
from tests.llm import translators

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow]
PROMPT = "hello, you!"
NUM_PROMPT = 13  # tokens of the encoder
NAME = "flan-t5"
OPTIONS = {"dtype": "f32", "max_num_seqs": 4}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return translators.build(NAME, tmp_path_factory.mktemp("translators"))


@pytest.fixture(scope="module")
def calls(directory: Path) -> Iterator[Calls]:
    options = config(directory.parent, NAME, llm_options=OPTIONS)
    with serving(directory.parent, options) as served:
        yield served


@pytest.fixture(scope="module")
def answer(directory: Path) -> Completion:
    """The answer of 12 tokens by the offline interface, which ends at none."""
    params = SamplingParams(max_tokens=12, temperature=0.0)
    with LLM(directory, **OPTIONS) as llm:
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    assert len(output.prompt_token_ids) == NUM_PROMPT
    assert len(output.outputs[0].token_ids) == 12
    return output.outputs[0]


def post(calls: Calls, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    return calls.http_call("POST", path, json.dumps(body), JSON)


def lines(content: bytes) -> list[Any]:
    texts = (line.removeprefix(b"data:").strip() for line in content.split(b"\n"))
    return [json.loads(text) for text in texts if text and text != b"[DONE]"]


def test_generate_of_tgi(calls, answer):
    parameters = {"max_new_tokens": 12, "details": True}
    status, content = post(calls, "/generate", {"inputs": PROMPT, "parameters": parameters})
    body = json.loads(content)
    assert (status, body["generated_text"]) == (200, answer.text)
    assert [token["id"] for token in body["details"]["tokens"]] == list(answer.token_ids)
    _, content = post(calls, "/generate_stream", {"inputs": PROMPT, "parameters": parameters})
    events = lines(content)
    assert [event["token"]["id"] for event in events] == list(answer.token_ids)
    assert events[-1]["generated_text"] == answer.text
    assert events[-1]["details"]["input_length"] == NUM_PROMPT


def test_info_of_tgi_has_the_limits_of_both_sides(calls):
    body = json.loads(calls.http_call("GET", "/info")[1])
    assert body["max_input_tokens"] == translators.LONGEST
    assert body["max_total_tokens"] == 2 * translators.LONGEST


def test_completions_of_openai(calls, answer):
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key="-") as client:
        completions = client.completions
        whole = completions.create(model=NAME, prompt=PROMPT, max_tokens=12, logprobs=2)
        assert whole.choices[0].text == answer.text
        assert whole.choices[0].finish_reason == "length"
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (NUM_PROMPT, 12)
        assert len(whole.choices[0].logprobs.top_logprobs) == 12
        pieces = completions.create(model=NAME, prompt=PROMPT, max_tokens=12, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == answer.text
        stop = answer.text[6:8]
        stopped = completions.create(model=NAME, prompt=PROMPT, max_tokens=12, stop=stop)
        assert stopped.choices[0].text == answer.text[: answer.text.index(stop)]
        both = completions.create(model=NAME, prompt=[PROMPT, "bye"], max_tokens=3)
        assert len(both.choices) == 2
        with pytest.raises(openai.BadRequestError, match="chat template"):
            client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": "hello"}]
            )
        with pytest.raises(openai.BadRequestError, match="encoder"):
            completions.create(model=NAME, prompt=PROMPT, echo=True, logprobs=1, max_tokens=1)
        with pytest.raises(openai.BadRequestError, match=f"at most {translators.LONGEST}"):
            completions.create(model=NAME, prompt="a" * 300, max_tokens=1)


@pytest.fixture(scope="module")
def best(directory: Path) -> list[str]:
    """The two best answers of a search by the offline interface."""
    params = SamplingParams(max_tokens=12, temperature=0.0, num_beams=3, n=2, length_penalty=0.5)
    with LLM(directory, **OPTIONS) as llm:
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    return [completion.text for completion in output.outputs]


def test_beam_search_by_each_protocol(calls, answer, best):
    fields = {"num_beams": 3, "length_penalty": 0.5}
    parameters = {"max_new_tokens": 12, **fields}
    _, content = post(calls, "/generate", {"inputs": PROMPT, "parameters": parameters})
    assert json.loads(content)["generated_text"] == best[0] != answer.text
    body = {"text_input": PROMPT, "max_tokens": 12, "exclude_input_in_output": True, **fields}
    _, content = post(calls, f"/v2/models/{NAME}/generate", body)
    assert json.loads(content)["text_output"] == best[0]
    url = f"http://127.0.0.1:{calls.http}/v1"
    with openai.OpenAI(base_url=url, api_key="-") as client:
        create = client.completions.create
        options = {"model": NAME, "prompt": PROMPT, "max_tokens": 12}
        whole = create(**options, n=2, logprobs=1, extra_body=fields)
        assert [choice.text for choice in whole.choices] == best
        assert whole.usage.completion_tokens == 24
        assert len(whole.choices[1].logprobs.tokens) == 12
        pieces = [*create(**options, stream=True, extra_body=fields)]
        texts = [piece.choices[0].text for piece in pieces if piece.choices[0].text]
        assert texts == best[:1]
        pair = create(**options, n=2, extra_body={"use_beam_search": True})
        assert len({choice.text for choice in pair.choices}) == 2
        with pytest.raises(openai.BadRequestError, match="num_beams is 5, expected at most 4"):
            create(**options, extra_body={"num_beams": 5})
        with pytest.raises(openai.BadRequestError, match="expected temperature=0 with it"):
            create(**options, temperature=0.5, extra_body=fields)


@pytest.mark.parametrize("field", ["src_lang", "tgt_lang"])
def test_a_model_without_tokens_of_languages_takes_none(calls, field):
    status, content = post(calls, "/v1/completions", {"prompt": PROMPT, field: "fr_XX"})
    error = json.loads(content)["error"]
    assert (status, error["param"]) == (400, field)
    assert error["message"].startswith(f"{field} is 'fr_XX', expected none: the model has no")


@pytest.mark.parametrize(
    ("path", "body", "texts"),
    [
        (
            f"/v2/models/{NAME}/generate",
            {"text_input": PROMPT, "max_tokens": 12, "exclude_input_in_output": True},
            "text_output",
        ),
        (
            "/api/generate",
            {"model": NAME, "prompt": PROMPT, "stream": False, "options": {"num_predict": 12}},
            "response",
        ),
        (
            f"/models/{NAME}/generate",
            {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "do_sample": False}},
            "generated_text",
        ),
    ],
)
def test_other_protocols(calls, answer, path, body, texts):
    status, content = post(calls, path, body)
    assert (status, json.loads(content)[texts]) == (200, answer.text)


def test_a_client_that_leaves_frees_the_memory(calls):
    body = json.dumps({"inputs": PROMPT, "parameters": {"max_new_tokens": 150}})
    head = f"POST /generate_stream HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n"
    with calls.connect() as stream:
        stream.sendall(f"{head}content-type: application/json\r\n\r\n{body}".encode())
        assert stream.recv(100)
    eventually(lambda: is_idle(calls, NAME))
