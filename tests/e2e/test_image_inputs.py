"""Images in every protocol that has them: equal answers, and errors that name the image."""

import json
import re
from pathlib import Path

import pytest

from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import ROOT, config, serving
from tests.llm import chatty, seeing, seeing_gguf
from tests.waiting import PATIENCE

pytestmark = pytest.mark.torch

JSON = {"Content-Type": "application/json"}
OPTIONS = {"dtype": "f32", "kv_cache_memory": 8 << 20, "preparation_timeout": PATIENCE}
IMAGE, TEXT, COUNT = seeing.image(1), "What is it?", 12


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("images")
    seeing.build(directory, "smolvlm")
    chatty.build(directory)
    model = seeing_gguf.write(directory / "smolvlm", "smolvlm", directory / "smol")
    model.with_name("mmproj-model.gguf").rename(directory / "tower.gguf")
    return directory


@pytest.fixture(scope="module")
def calls(place):
    options = {**OPTIONS, "max_images": 2}
    with serving(
        place,
        config(place, "smolvlm", llm_options=options),
        config(place, "chatty", llm_options=OPTIONS),
        config(place, "smol", llm_options={**OPTIONS, "mmproj": str(place / "tower.gguf")}),
    ) as found:
        yield found


@pytest.fixture(scope="module")
def answer(place):
    """What the model says to IMAGE and TEXT offline, greedily, and the tokens of that prompt."""
    with LLM(place / "smolvlm", **OPTIONS) as llm:
        params = SamplingParams(max_tokens=COUNT, temperature=0)
        (found,) = llm.chat(seeing.chat(IMAGE, TEXT), params, use_tqdm=False)
    return found.outputs[0].text, len(found.prompt_token_ids)


def post(calls, path, body, status=200):
    found, content = calls.http_call("POST", path, json.dumps(body), JSON)
    assert found == status, content
    return json.loads(content)


def with_url(url):
    return [{"role": "user", "content": [seeing.part(url)]}]


def completion(calls, messages, status=200, model="smolvlm"):
    body = {"model": model, "messages": messages, "max_tokens": COUNT, "temperature": 0}
    return post(calls, "/v1/chat/completions", body, status)


def test_openai_chats_have_images_which_usage_counts(calls, answer):
    text, count = answer
    for messages in (seeing.chat(IMAGE, TEXT), seeing.chat(IMAGE, TEXT)):  # the second is cached
        found = completion(calls, messages)
        assert found["choices"][0]["message"]["content"] == text
        assert found["usage"]["prompt_tokens"] == count


def test_a_model_in_a_gguf_file_has_the_images_of_its_chosen_tower(calls, answer):
    reply = completion(calls, seeing.chat(IMAGE, TEXT), model="smol")
    assert reply["choices"][0]["message"]["content"] == answer[0]
    assert reply["usage"]["prompt_tokens"] == answer[1]


def test_prompts_of_tgi_have_images_in_markdown(calls, answer):
    """The whole prompt as the chat template writes it, with the image in Markdown."""
    inputs = f"user:![]({seeing.uri(IMAGE)}){TEXT}assistant:"
    body = {"inputs": inputs, "parameters": {"max_new_tokens": COUNT, "adapter_id": "smolvlm"}}
    found = post(calls, "/generate", body)
    assert found["generated_text"] == answer[0]
    status, content = calls.http_call("POST", "/generate_stream", json.dumps(body), JSON)
    last = json.loads(content.decode().strip().rpartition("data:")[2])
    assert (status, last["generated_text"]) == (200, answer[0])


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("data:image/png;base64,!!", "prompt is no valid base64"),
        ("https://images.example/cat.png", "this server fetches no files"),
    ],
)
def test_an_image_of_tgi_that_cannot_be_used_is_refused(calls, url, says):
    body = {"inputs": f"![]({url})", "parameters": {"adapter_id": "smolvlm"}}
    assert says in post(calls, "/generate", body, 422)["error"]


def test_markdown_without_an_image_is_text(calls):
    """Markdown without an image is text for each model, also an image for a model without any."""
    inputs = {"smolvlm": "![](cat.png) ![a](data:,)", "chatty": "![](data:image/png;base64,)"}
    for model, text in inputs.items():
        parameters = {"max_new_tokens": 1, "adapter_id": model, "decoder_input_details": True}
        found = post(calls, "/generate", {"inputs": text, "parameters": parameters})
        prefill = "".join(one["text"] for one in found["details"]["prefill"])
        assert prefill.endswith(text)


def test_openai_responses_have_images(calls, answer):
    content = [
        {"type": "input_image", "image_url": seeing.uri(IMAGE)},
        {"type": "input_text", "text": TEXT},
    ]
    body = {"model": "smolvlm", "input": [{"role": "user", "content": content}]}
    body |= {"max_output_tokens": COUNT, "temperature": 0}
    found = post(calls, "/v1/responses", body)
    assert found["output"][-1]["content"][0]["text"] == answer[0]


def test_anthropic_messages_have_images(calls, answer):
    source = {"type": "base64", "media_type": "image/png", "data": seeing.encoded(IMAGE)}
    content = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    body = {"model": "smolvlm", "messages": [{"role": "user", "content": content}]}
    found = post(calls, "/v1/messages", {**body, "max_tokens": COUNT, "temperature": 0})
    usage = found["usage"]
    count = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert (found["content"][0]["text"], count) == answer
    assert post(calls, "/v1/messages/count_tokens", body)["input_tokens"] == answer[1]


def test_ollama_chats_and_prompts_have_images(calls, answer):
    images = [seeing.encoded(IMAGE)]
    common = {"model": "smolvlm", "stream": False}
    common["options"] = {"num_predict": COUNT, "temperature": 0}
    messages = [{"role": "user", "content": TEXT, "images": images}]
    found = post(calls, "/api/chat", {**common, "messages": messages})
    assert found["message"]["content"] == answer[0]
    found = post(calls, "/api/generate", {**common, "prompt": TEXT, "images": images})
    assert found["response"] == answer[0]
    assert "vision" in post(calls, "/api/show", {"model": "smolvlm"})["capabilities"]


def test_models_list_their_input_modalities(calls):
    status, content = calls.http_call("GET", "/v1/models")
    found = {one["id"]: one.get("input_modalities") for one in json.loads(content)["data"]}
    of_images = dict.fromkeys(("smolvlm", "smol"), ["text", "image"])
    assert (status, found) == (200, {**of_images, "chatty": None})


@pytest.mark.parametrize(
    ("messages", "model", "told"),
    [
        (seeing.chat(IMAGE), "chatty", "the model reads no images"),
        (with_url("data:;base64,@"), "smolvlm", "no valid base64"),
        (with_url("data:;base64,aGk="), "smolvlm", "is no JPEG, PNG"),
        (with_url("http://127.0.0.1/a.png"), "smolvlm", "this server fetches no files"),
        (seeing.chat(IMAGE, IMAGE, IMAGE), "smolvlm", "3 images, expected at most 2"),
        (seeing.chat(IMAGE, "<image>"), "smolvlm", "the placeholder of an image"),
    ],
)
def test_errors_of_images_name_the_cause(messages, model, told, calls):
    error = completion(calls, messages, 400, model)["error"]
    assert told in error["message"]
    assert error["param"].startswith("messages")


def test_the_page_of_images_runs(calls, place, answer, capsys, monkeypatch):
    """Its Python, with the tiny model in place of SmolVLM."""
    pytest.importorskip("openai")
    page = (ROOT / "docs/images.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(place)
    IMAGE.save(Path("cat.png"))
    for block in blocks:
        source = block.replace("127.0.0.1:1500", f"127.0.0.1:{calls.http}")
        source = source.replace("/models/SmolVLM-256M-Instruct", "smolvlm")
        source = source.replace('LLM("smolvlm")', 'LLM("smolvlm", kv_cache_memory=8 << 20)')
        names = {}
        exec(compile(source, "docs/images.md", "exec"), names)
        if "client" in names:
            names["client"].close()
        assert capsys.readouterr().out.strip()
