"""Limits and usage of API keys, of one process and with front ends, by all protocols."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mindspore_serving.proto import ms_service_pb2 as ms
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.llm import chatty
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2
"""
KEYS = """
keys:
  - {name: root, key: key-of-the-operator, operator: true}
  - {name: minute, key: key-of-a-minute, tokens_per_minute: 30}
  - {name: day, key: key-of-a-day, tokens_per_day: 10}
  - {name: few, key: key-of-few-requests, requests_per_minute: 2}
  - {name: toys, key: key-of-toys, models: [toy]}
  - {name: counted, key: key-of-counts}
  - {name: classic, key: key-of-classic-calls, tokens_per_day: 20}
  - {name: instances, key: key-of-instances, tokens_per_day: 6}
weights: {chatty: 2, toy: 3}
"""
PROMPT = {"model": "chatty", "prompt": "def build", "max_tokens": 4, "ignore_eos": True}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("tenants")
    chatty.build(directory)
    write_servable(directory, "toy", SOURCE)
    (directory / "keys.yaml").write_text(KEYS)
    (directory / "keys.yaml").chmod(0o600)
    return directory


@pytest.fixture(scope="module", params=[1, 2], ids=["one_process", "front_ends"])
def calls(place: Path, request: Any) -> Iterator[Calls]:
    options = {"dtype": "f32", "kv_cache_memory": 8 << 20}
    servables = (config(place, "chatty", llm_options=options), config(place, "toy"))
    front_ends = {"front_ends": request.param, "use_status_codes": True}
    with serving(place, *servables, api_keys=place / "keys.yaml", **front_ends) as served:
        yield served


def send(calls: Calls, path: str, key: str, body: Any = None, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.request(
        "POST" if body is not None else "GET",
        f"http://127.0.0.1:{calls.http}{path}",
        json=body,
        headers={**bearer(key), **names},
        timeout=PATIENCE,
    )


def usage_of(calls: Calls, key: str) -> dict[str, Any]:
    return {row["key"]: row for row in send(calls, "/usage", key).json()["keys"]}


def test_tokens_per_minute_are_refused_with_the_headers_of_each_protocol(calls):
    first = send(calls, "/v1/completions", "a-minute", {**PROMPT, "max_tokens": 20})
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-tokens"] == "30"
    refused = send(calls, "/v1/completions", "a-minute", {**PROMPT, "stream": True})
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "'minute' may use 30 tokens per minute" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    message = {"model": "chatty", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}
    refused = send(calls, "/v1/messages", "a-minute", message, anthropic_version="2023-06-01")
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.headers["anthropic-ratelimit-tokens-remaining"] == "0"
    assert refused.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")


def test_tokens_of_a_day_are_weighted_by_their_model(calls):
    assert send(calls, "/v1/completions", "a-day", PROMPT).status_code == 200
    used = usage_of(calls, "a-day")["day"]
    (row,) = used["servables"]
    assert (row["servable"], row["requests"], row["generated_tokens"]) == ("chatty", 1, 4)
    tokens = row["prompt_tokens"] + row["generated_tokens"]
    (left,) = used["limits"]
    assert (left["kind"], left["remaining"]) == ("tokens-day", max(0, 10 - 2 * tokens))
    refused = send(calls, "/v1/completions", "a-day", PROMPT)
    assert refused.status_code == 429
    assert "10 tokens per day" in refused.json()["error"]["message"]
    assert send(calls, "/v1/models", "a-day").status_code == 200


def test_instances_of_weighted_servables_count_as_tokens(calls):
    body = {"instances": [{"x": 1}, {"x": 2}]}
    assert send(calls, "/model/toy:double", "instances", body).json()["instances"][1] == {"y": 4}
    refused = send(calls, "/model/toy:double", "instances", body)
    assert (refused.status_code, refused.headers["x-ratelimit-limit-tokens-day"]) == (429, "6")
    with grpc.insecure_channel(calls.grpc) as channel:
        predict = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")
        request = ms.PredictRequest(servable_spec=ms.ServableSpec(name="toy", method_name="double"))
        request.instances.add()
        sent = {"metadata": list(bearer("instances").items()), "timeout": PATIENCE}
        answer = ms.PredictReply.FromString(predict(request.SerializeToString(), **sent))
        assert b"6 tokens per day" in answer.error_msg[0].error_msg


def test_classic_calls_of_language_models_cost_tokens_by_their_bytes(calls):
    body = {"instances": [{"prompt": "x" * 100, "max_tokens": 2}]}
    assert send(calls, "/model/chatty:generate", "classic-calls", body).status_code == 200
    assert usage_of(calls, "classic-calls")["classic"]["limits"][0]["remaining"] == 0
    assert send(calls, "/model/chatty:generate", "classic-calls", body).status_code == 429


def test_requests_per_minute_are_refused_by_rest_and_grpc(calls):
    body = {"instances": [{"x": 1}]}
    for _ in range(2):
        assert send(calls, "/model/toy:double", "few-requests", body).status_code == 200
    refused = send(calls, "/model/toy:double", "few-requests", body)
    assert refused.status_code == 429
    assert "may send 2 requests per minute" in refused.json()["error_msg"]
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    with grpc.insecure_channel(calls.grpc) as channel:
        predict = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")
        with pytest.raises(grpc.RpcError) as caught:
            predict(b"", metadata=list(bearer("few-requests").items()), timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = dict(caught.value.trailing_metadata())
    assert trailing["x-ratelimit-limit-requests"] == "2"
    assert int(trailing["retry-after"]) >= 1


def test_models_that_a_key_may_not_use_are_refused(calls):
    refused = send(calls, "/v1/completions", "toys", PROMPT)
    assert refused.status_code == 403
    assert "may not use 'chatty'; it may use toy" in refused.json()["error"]["message"]
    answer = send(calls, "/model/toy:double", "toys", {"instances": [{"x": 3}]})
    assert answer.json() == {"instances": [{"y": 6}]}


def test_usage_is_shown_to_its_key_and_to_operators(calls):
    streamed = send(calls, "/v1/completions", "counts", {**PROMPT, "stream": True})
    assert streamed.status_code == 200
    assert "x-ratelimit-limit-requests" not in streamed.headers
    assert send(calls, "/v1/completions", "counts", PROMPT).status_code == 200
    assert send(calls, "/v1/completions", "counts", {**PROMPT, "model": "none"}).status_code == 404
    usage = usage_of(calls, "counts")
    assert list(usage) == ["counted"]
    (row,) = usage["counted"]["servables"]
    assert (row["requests"], row["failed"], row["generated_tokens"]) == (2, 0, 8)
    assert {"counted", "day", "root"} <= set(usage_of(calls, "the-operator"))
    page = send(calls, "/metrics", "the-operator").text
    samples = {
        (sample.labels["key"], sample.labels["kind"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "serving_key_tokens_total"
    }
    assert samples["counted", "generated"] == 8
    assert "key-of-" not in page
    assert "key-of-" not in json.dumps(usage_of(calls, "the-operator"))
