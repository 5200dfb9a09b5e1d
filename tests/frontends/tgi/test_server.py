"""The protocol before a real engine, asked by real clients; answers are those of the offline
interface."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.outputs import Completion
from tests.e2e.harness import Calls, config, engine_of, eventually, is_idle, serving
from tests.llm import chatty
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow]
MAX_SEQS = 4
CONTEXT = 16384
# Seconds of tokens: far more than any test waits for.
LONG = {"max_new_tokens": 16_000, "grammar": {"type": "regex", "value": "[0-9]{60000}"}}
PROMPT = "Hello"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tgi")
    chatty.build(directory, context=CONTEXT)
    return directory


@pytest.fixture(scope="module")
def calls(place: Path) -> Iterator[Calls]:
    options = {
        "dtype": "f32",
        "kv_cache_dtype": "f32",
        "kv_cache_memory": 64 << 20,
        "max_num_seqs": MAX_SEQS,
        "max_num_waiting": MAX_SEQS,
    }
    with serving(place, config(place, "chatty", llm_options=options)) as found:
        yield found


@pytest.fixture(scope="module")
def expected(place: Path) -> Iterator[Callable[..., Completion]]:
    """expected(count, **params): the offline answer to PROMPT, greedy if not said otherwise."""
    with LLM(place / "chatty", dtype="f32", kv_cache_dtype="f32") as llm:

        def run(count: int, **options: Any) -> Completion:
            params = SamplingParams(**{"max_tokens": count, "temperature": 0.0, **options})
            return llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0]

        yield run


@pytest.fixture
def client(calls: Calls) -> Iterator[Any]:
    """What users of TGI have: huggingface_hub's client."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    url = f"http://127.0.0.1:{calls.http}"
    with huggingface_hub.InferenceClient(model=url, provider="hf-inference") as found:
        yield found


def post(calls: Calls, path: str, parameters: dict[str, Any], **body: Any) -> tuple[int, Any]:
    whole = json.dumps({"inputs": PROMPT, "parameters": parameters, **body})
    status, answer = calls.http_call("POST", path, whole, JSON)
    return status, json.loads(answer)


def events(calls: Calls, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    body = json.dumps({"inputs": PROMPT, "parameters": parameters})
    _, answer = calls.http_call("POST", "/generate_stream", body, JSON)
    assert answer.endswith(b"\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in answer.decode().split("\n\n")[:-1]]


def test_the_answer_is_the_models_own(calls, expected):
    status, answer = post(calls, "/generate", {"max_new_tokens": 12, "details": True})
    own = expected(12, logprobs=0)
    assert status == 200
    assert answer["generated_text"] == own.text
    tokens = answer["details"]["tokens"]
    assert [one["id"] for one in tokens] == list(own.token_ids)
    for token, entry in zip(tokens, own.logprobs, strict=True):
        assert token["logprob"] == pytest.approx(entry[0].logprob, abs=1e-4)


def test_the_stream_has_the_same_tokens_and_their_texts_are_the_text(calls, expected):
    found = events(calls, {"max_new_tokens": 40, "details": True})
    own = expected(40)
    assert [one["token"]["id"] for one in found] == list(own.token_ids)
    shown = [one["token"]["text"] for one in found if not one["token"]["special"]]
    assert "".join(shown) == own.text == found[-1]["generated_text"]
    assert [one["index"] for one in found] == list(range(1, len(found) + 1))
    assert found[-1]["details"]["generated_tokens"] == len(found)


def test_a_seed_gives_the_same_answer_again(calls, expected):
    parameters = {"max_new_tokens": 12, "do_sample": True, "seed": 5, "details": True}
    _, first = post(calls, "/generate", parameters)
    _, second = post(calls, "/generate", parameters)
    assert first == second
    assert first["details"]["seed"] == 5
    assert first["generated_text"] == expected(12, temperature=1.0, seed=5).text


def test_the_seed_that_was_drawn_gives_the_answer_again(calls):
    parameters = {"max_new_tokens": 12, "do_sample": True, "details": True, "best_of": 2}
    _, answer = post(calls, "/generate", parameters)
    details = answer["details"]
    (other,) = details["best_of_sequences"]
    for text, seed in [
        (answer["generated_text"], details["seed"]),
        (other["generated_text"], other["seed"]),
    ]:
        again = {"max_new_tokens": 12, "do_sample": True, "seed": seed}
        assert post(calls, "/generate", again)[1]["generated_text"] == text
    means = [
        sum(token["logprob"] for token in one["tokens"]) / len(one["tokens"])
        for one in (details, other)
    ]
    assert means[0] >= means[1]


def test_the_prompts_logprobs_are_the_models_own(calls, expected):
    _, answer = post(calls, "/generate", {"max_new_tokens": 1, "decoder_input_details": True})
    prefill = answer["details"]["prefill"]
    assert "".join(one["text"] for one in prefill) == PROMPT
    assert prefill[0]["logprob"] is None
    assert all(one["logprob"] < 0 for one in prefill[1:])
    assert len(prefill) > 1


def test_top_tokens_begin_with_the_greedy_token(calls):
    found = events(calls, {"max_new_tokens": 5, "top_n_tokens": 3})
    assert found
    for one in found:
        assert len(one["top_tokens"]) == 3
        assert one["top_tokens"][0]["id"] == one["token"]["id"]


def test_a_stop_string_stays_in_the_text(calls, expected):
    stop = expected(12).text[3:5]
    parameters = {"max_new_tokens": 12, "stop": [stop], "details": True}
    _, answer = post(calls, "/generate", parameters)
    assert answer["generated_text"].endswith(stop)
    assert answer["generated_text"].count(stop) == 1
    assert answer["details"]["finish_reason"] == "stop_sequence"


def test_a_regex_is_followed(calls):
    grammar = {"type": "regex", "value": "[0-9]{3}-[a-c]{2}"}
    _, answer = post(calls, "/generate", {"max_new_tokens": 20, "grammar": grammar})
    head, _, tail = answer["generated_text"].partition("-")
    assert head.isdigit()
    assert len(head) == 3
    assert set(tail) <= set("abc")
    assert len(tail) == 2


@pytest.mark.parametrize("kind", ["json", "json_object", "json_schema"])
def test_a_schema_is_followed_without_many_spaces(calls, kind):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    }
    value = {"name": "one", "schema": schema} if kind == "json_schema" else schema
    grammar = {"type": kind, "value": value}
    _, answer = post(calls, "/generate", {"max_new_tokens": 40, "grammar": grammar})
    assert 0 <= json.loads(answer["generated_text"])["a"] <= 9
    assert "  " not in answer["generated_text"]


def test_a_grammar_that_cannot_be_is_refused(calls):
    for kind, value in [("regex", "[0-9"), ("json", {"properties": {"a": {"type": "odd"}}})]:
        grammar = {"type": kind, "value": value}
        status, answer = post(calls, "/generate", {"grammar": grammar})
        assert status == 422
        assert answer["error"].startswith("Input validation error: grammar is not valid: ")


def test_lengths_are_told_in_numbers(calls):
    long = "Hello " * 9000
    count = len(post(calls, "/tokenize", {}, inputs=long)[1])
    for parameters in ({}, {"max_new_tokens": 5}):
        status, answer = post(calls, "/generate", parameters, inputs=long)
        text = f"`inputs` must have less than {CONTEXT - 1} tokens. Given: {count}"
        assert (status, answer["error"]) == (422, f"Input validation error: {text}")


def test_truncation_keeps_the_end_of_the_prompt(calls):
    text = "What a long prompt, and this is its end"
    tokens = post(calls, "/tokenize", {"truncate": 4}, inputs=text)[1]
    end = "".join(token["text"] for token in tokens)
    assert text.endswith(end)
    details = {"max_new_tokens": 6, "details": True}
    cut = post(calls, "/generate", {**details, "truncate": 4}, inputs=text)[1]
    assert cut == post(calls, "/generate", details, inputs=end)[1]
    assert cut != post(calls, "/generate", details, inputs=text)[1]


def test_tokens_of_a_text_stand_where_they_say(calls):
    text = "Grüße, 你好!"
    _, tokens = post(calls, "/tokenize", {}, inputs=text)
    assert tokens[0]["start"] == 0
    assert tokens[-1]["stop"] == len(text)
    assert all(one["text"] == text[one["start"] : one["stop"]] for one in tokens)


def test_tokens_of_a_chat_show_the_template(calls):
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]})
    status, answer = calls.http_call("POST", "/chat_tokenize", body, JSON)
    assert status == 200
    assert json.loads(answer)["templated_text"] == "<|user|>Hi<|end|><|assistant|>"


def test_requests_beyond_room_and_queue_are_overloaded(calls):
    streams = []
    try:
        for place in ("num_running", "num_waiting"):
            streams += [open_stream(calls) for _ in range(MAX_SEQS)]
            eventually(lambda place=place: engine_of(calls, "chatty")[place] == MAX_SEQS)
        status, answer = post(calls, "/generate", {"max_new_tokens": 1})
        assert status == 429
        assert answer == {"error": "Model is overloaded", "error_type": "overloaded"}
    finally:
        for stream in streams:
            stream.close()
    eventually(lambda: is_idle(calls, "chatty"))


def open_stream(calls: Calls, path: str = "/generate_stream") -> socket.socket:
    body = json.dumps({"inputs": PROMPT, "parameters": LONG})
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    stream = calls.connect()
    stream.sendall((head + body).encode())
    return stream


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_a_client_that_leaves_frees_its_request(calls, path):
    before = engine_of(calls, "chatty")["num_generated_tokens"]
    with open_stream(calls, path):
        eventually(lambda: engine_of(calls, "chatty")["num_generated_tokens"] > before)
    eventually(lambda: is_idle(calls, "chatty"), what="the request is dropped")
    assert engine_of(calls, "chatty")["num_generated_tokens"] - before < LONG["max_new_tokens"]


def test_hub_client_gets_the_text(client, expected):
    text = client.text_generation(PROMPT, max_new_tokens=12, return_full_text=False)
    assert text == expected(12).text


def test_hub_client_gets_the_details(client, expected):
    found = client.text_generation(
        PROMPT, max_new_tokens=12, details=True, decoder_input_details=True, top_n_tokens=2
    )
    own = expected(12)
    assert found.generated_text == PROMPT + own.text
    assert [token.id for token in found.details.tokens] == list(own.token_ids)
    assert found.details.finish_reason == "length"
    assert found.details.generated_tokens == 12
    assert len(found.details.top_tokens[0]) == 2
    assert "".join(token.text for token in found.details.prefill) == PROMPT


def test_hub_client_streams(client, expected):
    pieces = list(client.text_generation(PROMPT, max_new_tokens=12, stream=True))
    assert "".join(pieces) == expected(12).text
    found = list(client.text_generation(PROMPT, max_new_tokens=12, stream=True, details=True))
    assert [one.token.text for one in found] == pieces
    assert len(found) == 12
    assert found[-1].generated_text == PROMPT + expected(12).text
    assert found[-1].details.finish_reason == "length"
    assert all(one.details is None for one in found[:-1])


def test_hub_client_raises_the_servers_errors(client):
    from huggingface_hub.errors import ValidationError

    with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
        client.text_generation(PROMPT, temperature=0.0)
    with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
        list(client.text_generation(PROMPT, temperature=0.0, stream=True))


def test_hub_client_constrains_the_answer(client):
    grammar = {
        "type": "json",
        "value": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
        },
    }
    text = client.text_generation(
        PROMPT, max_new_tokens=40, grammar=grammar, return_full_text=False
    )
    assert json.loads(text)["a"] in (True, False)


def test_hub_client_chats(client):
    messages = [{"role": "user", "content": "Hi"}]
    found = client.chat_completion(messages, max_tokens=5)
    assert found.choices[0].message.role == "assistant"
    assert found.usage.completion_tokens <= 5
    pieces = list(client.chat_completion(messages, max_tokens=5, stream=True))
    assert pieces


def test_feature_extraction_of_a_generator_is_an_error(client):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    with pytest.raises(
        huggingface_hub.errors.HfHubHTTPError, match="is a field of embeddings, but"
    ):
        client.feature_extraction("Hi", normalize=True)
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match="inputs"):
        client.feature_extraction(["Hi", "you"])
    with pytest.raises(TypeError):  # it asks as for text, and gets some
        client.feature_extraction("Hi")


def test_hub_client_asks_how_the_server_is(client):
    assert client.health_check()
    assert client.get_endpoint_info()["max_total_tokens"] == CONTEXT


def test_invocations_speak_every_protocol(calls):
    status, answer = post(calls, "/invocations", {"max_new_tokens": 3, "return_full_text": False})
    assert status == 200
    assert list(answer[0]) == ["generated_text"]
    chat = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})
    status, answer = calls.http_call("POST", "/invocations", chat, JSON)
    assert (status, json.loads(answer)["object"]) == (200, "chat.completion")


def test_a_connection_is_kept_for_more_requests(calls):
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    body = json.dumps({"inputs": PROMPT, "parameters": {"max_new_tokens": 2}})
    for path in ("/generate", "/generate_stream", "/generate"):
        connection.request("POST", path, body, JSON)
        assert connection.getresponse().read()
    connection.close()


def test_the_metrics_count_requests(calls):
    def count() -> float:
        lines = calls.http_call("GET", "/metrics")[1].decode().splitlines()
        (line,) = [one for one in lines if one.startswith("tgi_request_success ")]
        return float(line.split()[1])

    before = count()
    post(calls, "/generate", {"max_new_tokens": 2})
    events(calls, {"max_new_tokens": 2})
    assert count() == before + 2
