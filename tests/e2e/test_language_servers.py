"""Servers with a language model that lose their worker, are full, want a key, or cannot start."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import config, engine_of, eventually, serving, workers, write_servable
from tests.llm import chatty
from tests.waiting import PATIENCE

PLAIN = """
def twice(x):
    return x * 2
@register.register_method(output_names=["y"])
def double(x):
    return register.add_stage(twice, x, outputs_count=1)
"""
OPTIONS = {"dtype": "f32", "kv_cache_memory": 64 << 20}
LONG = {"max_tokens": 60_000, "parameters": '{"ignore_eos": true}'}  # half a minute of them


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("language")
    chatty.build(directory, context=65536)
    write_servable(directory, "plain", PLAIN)
    return directory


def test_a_stream_whose_worker_dies_ends_with_an_error_and_the_next_is_answered(place):
    with serving(place, config(place, "chatty", llm_options=OPTIONS)) as calls:
        (pid,) = workers(os.getpid())
        pieces = calls.client("chatty", "generate").infer_stream({"prompt": "Hello", **LONG})
        next(pieces)
        os.kill(pid, signal.SIGKILL)
        assert "worker process that had the request died" in list(pieces)[-1]["error"]
        eventually(lambda: workers(os.getpid()) not in ([], [pid]), what="a new worker")

        def ask() -> Any:
            return calls.post("chatty", "generate", [{"prompt": "Hello", "max_tokens": 2}]).get(
                "instances"
            )

        assert eventually(ask)[0]["text"]


def test_too_many_waiting_requests_are_refused(place):
    options = {**OPTIONS, "max_num_seqs": 1, "max_num_waiting": 1}
    with serving(place, config(place, "chatty", llm_options=options)) as calls:
        client = calls.client("chatty", "generate")
        running = client.infer_stream({"prompt": "Hello", **LONG})
        next(running)
        waiting = client.infer_async({"prompt": "Hello", **LONG})
        eventually(lambda: engine_of(calls, "chatty")["num_waiting"] == 1)
        futures = [client.infer_async({"prompt": "Hello", **LONG}) for _ in range(4)]
        errors = [str(future.result(PATIENCE)) for future in futures]
        assert all("wait already, at most 1 may; try again" in one for one in errors), errors
        waiting.result_future.cancel()
        running.close()


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
        pytest.raises(RuntimeError, match="'no_such' is no option"),
        serving(place, config(place, "chatty", llm_options={"no_such": 1})),
    ):
        pass
