"""Servers with a language model that are full, want a key, cannot start, or were started again."""

import json
from pathlib import Path

import pytest

from tests.e2e.harness import (
    Calls,
    config,
    eventually,
    row_of,
    serving,
    write_servable,
)
from tests.llm import chatty

PLAIN = """
@method("y")
def double(x):
    return x * 2
"""
OPTIONS = {"dtype": "f32", "kv_cache_memory": 64 << 20}
LONG = {"max_tokens": 60_000, "parameters": '{"ignore_eos": true}'}  # half a minute of them


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("language")
    chatty.build(directory, context=65536)
    write_servable(directory, "plain", PLAIN)
    return directory


def test_a_prompt_is_refused_after_waiting_too_long(place):
    options = {**OPTIONS, "max_num_seqs": 1}
    served = config(place, "chatty", llm_options=options, max_queue_seconds=0.5)
    with serving(place, served) as calls:
        client = calls.client("chatty", "generate")
        running = client.infer_stream({"prompt": "Hello", **LONG})
        next(running)
        body = json.dumps({"model": "chatty", "prompt": "Hello", "max_tokens": 2})
        status, text = calls.http_call("POST", "/v1/completions", body)
        assert status == 429
        assert (
            "the request waited for over 0.5 s (max_queue_seconds)"
            in json.loads(text)["error"]["message"]
        )
        next(running)
        running.close()
        eventually(lambda: calls.http_call("POST", "/v1/completions", body)[0] == 200)


def test_the_servable_says_which_runtime_computes_which_steps(place):
    pytest.importorskip("openvino")
    served = config(place, "chatty", llm_options={**OPTIONS, "runtime": "combined"})
    with serving(place, served) as calls:

        def runtimes():
            return row_of(calls, "chatty")["workers"][0].get("runtimes", "")

        eventually(lambda: "ms by tokens, native / openvino: 1: " in runtimes())
        body = json.dumps({"model": "chatty", "prompt": "Hello", "max_tokens": 2})
        assert calls.http_call("POST", "/v1/completions", body)[0] == 200
        steps = b'serving_llm_native_steps_total{servable="chatty",version="1"} '
        assert steps in calls.http_call("GET", "/metrics")[1]


def test_a_key_is_needed_everywhere_but_for_health(place):
    key = "a-long-enough-key"
    with serving(place, config(place, "plain"), api_keys=[key]) as calls:
        body = b'{"instances":[{"x":4}]}'
        for path in ("/model/plain:double", "/model/plain:double_stream", "/v1/models", "/metrics"):
            assert calls.http_call("POST", path, body)[0] == 401
            assert calls.http_call("POST", path, body, {"Authorization": "Bearer nearly"})[0] == 401
        assert calls.http_call("GET", "/health")[0] == 200
        headers = {"Authorization": f"Bearer {key}"}
        status, answer = calls.http_call("POST", "/model/plain:double", body, headers)
        assert (status, json.loads(answer)) == (200, {"instances": [{"y": 8}]})
        with pytest.raises(KeyError):
            calls.client("plain", "double").infer({"x": 4})[0]
        assert calls.client("plain", "double", api_key=key).infer({"x": 4}) == [{"y": 8}]


def test_a_model_that_cannot_be_loaded_is_a_start_error_that_says_why(place):
    with (
        pytest.raises(RuntimeError, match="there is no option 'no_such'"),
        serving(place, config(place, "chatty", llm_options={"no_such": 1})),
    ):
        pass


def test_a_prompt_is_known_to_a_server_that_was_started_again(place, tmp_path):
    options = {**OPTIONS, "prefix_cache_dir": str(tmp_path), "num_speculative_tokens": 0}
    prompt = "the sea and the sky " * 40
    body = json.dumps({"model": "chatty", "prompt": prompt, "max_tokens": 4, "temperature": 0})
    found = []
    for _ in range(2):
        with serving(place, config(place, "chatty", llm_options=options)) as calls:
            status, text = calls.http_call("POST", "/v1/completions", body)
            assert status == 200
            found.append(json.loads(text))
            whole = found[0]["usage"]["prompt_tokens"] // 32
            eventually(lambda whole=whole: len(list(tmp_path.glob("*.block"))) >= whole)
            if len(found) == 2:
                eventually(lambda calls=calls: num_disk_hits(calls) > 0)
    first, second = (answer["usage"] for answer in found)
    assert found[0]["choices"][0]["text"] == found[1]["choices"][0]["text"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    rest = second["prompt_tokens"] - second["prompt_tokens_details"]["cached_tokens"]
    assert 0 < rest <= 32  # of one block


def num_disk_hits(calls: Calls) -> float:
    page = calls.http_call("GET", "/metrics")[1].decode()
    name = "serving_llm_prefix_cache_disk_hits_total{"
    (line,) = [line for line in page.splitlines() if line.startswith(name)]
    return float(line.rpartition(" ")[2])
