"""The spans of requests to a language model: generative AI as OpenTelemetry describes it."""

import http.client
import json
from typing import Any

from tests.e2e.harness import eventually, in_flight
from tests.tracing.collector import Trace
from tests.tracing.conftest import CONTEXT, Traced
from tests.waiting import PATIENCE

SERVED = ["chatty"]
CHAT = "POST /v1/chat/completions"
JSON = {"content-type": "application/json"}
SECRET = "xylophone"
PHASES = ["prepare", "queue", "prefill", "decode"]


def ask(traced: Traced, path: str, body: Any, status: int = 200) -> Trace:
    def send(headers: dict[str, str]) -> None:
        body_text = json.dumps(body)
        found, answer = traced.calls.http_call("POST", path, body_text, {**headers, **JSON})
        assert found == status, answer

    return traced.ask(send, f"POST {path}")


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": SECRET}]
    return {"model": "chatty", "messages": messages, "max_tokens": 8, **fields}


def test_a_streamed_chat_has_spans_of_its_queue_prefill_and_decode(traced: Traced) -> None:
    trace = ask(traced, "/v1/chat/completions", chat(stream=True, temperature=0.5, seed=7))
    whole = trace.one("chat chatty")
    assert trace.path(whole) == [CHAT, "worker", "chat chatty"]
    parts = sorted(
        (one for one in trace.spans if one.parent_id == whole.id), key=lambda one: one.begin
    )
    assert [part.name for part in parts] == PHASES
    ends = [part.end for part in parts]
    assert [part.begin for part in parts] == [whole.begin, *ends[:-1]]
    assert ends[-1] == whole.end


def test_a_generation_span_has_parameters_and_token_counts(traced: Traced) -> None:
    trace = ask(traced, "/v1/chat/completions", chat(stream=True, temperature=0.5, seed=7))
    found = trace.one("chat chatty")
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.model"] == "chatty"
    assert found["gen_ai.request.max_tokens"] == 8
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.request.seed"] == 7
    assert found["gen_ai.request.stream"] is True
    assert 0 < found["gen_ai.usage.output_tokens"] <= 8
    assert found["gen_ai.usage.input_tokens"] > 0
    (reason,) = found["gen_ai.response.finish_reasons"]
    assert reason in ("stop", "length")


def test_no_prompt_and_no_answer_is_in_a_trace(traced: Traced) -> None:
    trace = ask(traced, "/v1/chat/completions", chat())
    assert SECRET not in str(trace.spans)
    assert not [name for span in trace.spans for name in span.attributes if "messages" in name]


def test_a_language_model_that_is_a_stage_has_the_same_spans(traced: Traced) -> None:
    def send(headers: dict[str, str]) -> None:
        instance = {"prompt": SECRET, "max_tokens": 4}
        traced.calls.post("chatty", "generate", [instance], headers)

    trace = traced.ask(send, "POST /model/{path}")
    whole = trace.one("text_completion chatty")
    assert trace.parent(trace.parent(whole)).name == "worker"
    assert {one.name for one in trace.spans if one.parent_id == whole.id} == set(PHASES)


def test_embeddings_count_their_tokens(traced: Traced) -> None:
    trace = ask(traced, "/v1/embeddings", {"model": "chatty", "input": [SECRET, "b"]})
    found = trace.one("embeddings chatty")
    assert found["gen_ai.usage.input_tokens"] > 1
    assert "gen_ai.usage.output_tokens" not in found.attributes


def test_refusals_of_the_model_are_errors_of_the_client(traced: Traced) -> None:
    trace = ask(
        traced, "/v1/completions", {"prompt": "x" * 5 * CONTEXT, "max_tokens": 1}, status=400
    )
    found = trace.one("text_completion chatty")
    assert found["error.type"] == "invalid_inputs"
    assert not found.is_error
    assert not trace.one("POST /v1/completions").is_error


def test_a_generation_whose_client_leaves_is_cancelled(traced: Traced) -> None:
    def send(headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", traced.calls.http, timeout=PATIENCE)
        body = json.dumps(chat(stream=True, max_tokens=CONTEXT - 100, ignore_eos=True))
        connection.request("POST", "/v1/chat/completions", body, {**headers, **JSON})
        reply = connection.getresponse()
        assert all(reply.readline() for _ in range(6))  # three events, the first without a token
        reply.close()
        connection.close()
        eventually(lambda: in_flight(traced.calls) == 0)

    trace = traced.ask(send, CHAT, "worker", "chat chatty")
    assert trace.one("chat chatty")["error.type"] == "cancelled"
    assert trace.one(CHAT)["error.type"] == "cancelled"
    assert trace.one("prefill").end <= trace.one("decode").begin
