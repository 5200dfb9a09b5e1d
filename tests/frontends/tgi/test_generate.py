"""/generate and POST /: the answer's bytes, what is asked of the model, and the headers."""

import json
from unittest.mock import patch

from mindspore_serving.core.llm_messages import Finished, Grammar, PromptScored, Started
from mindspore_serving.frontends.tgi.fields import SPACES
from mindspore_serving.frontends.tgi.writing import Times
from tests.frontends.mounting import tgi_routes
from tests.frontends.tgi.scripted import (
    EOS,
    HELLO,
    WHOLE,
    WORLD,
    Server,
    begun,
    ended,
    piece,
    token,
)


async def test_the_text_alone_is_the_whole_answer() -> None:
    server = Server(tgi_routes, WHOLE)
    reply = await server.post("/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 3}})
    assert reply.status_code == 200
    assert reply.content == b'{"generated_text":" Hello world"}'
    assert reply.headers["content-type"] == "application/json"
    assert not server.sent.has_tokens
    assert server.sent.params.logprobs is None


async def test_details_have_every_field_in_its_place() -> None:
    server = Server(tgi_routes, WHOLE)
    body = {"inputs": "Hi", "parameters": {"details": True, "seed": 7, "do_sample": True}}
    reply = await server.post("/generate", body)
    assert reply.content == (
        b'{"generated_text":" Hello world","details":{"finish_reason":"eos_token",'
        b'"generated_tokens":3,"seed":42,"prefill":[],"tokens":['
        b'{"id":5,"text":" Hello","logprob":-0.5,"special":false},'
        b'{"id":6,"text":" world","logprob":-0.25,"special":false},'
        b'{"id":2,"text":"</s>","logprob":-0.125,"special":true}]}}'
    )


async def test_a_greedy_answer_has_no_seed() -> None:
    server = Server(tgi_routes, WHOLE)
    reply = await server.post("/generate", {"inputs": "Hi", "parameters": {"details": True}})
    assert reply.json()["details"]["seed"] is None
    assert server.sent.params.temperature == 0


async def test_top_tokens_stand_beside_the_tokens() -> None:
    other = token(9, " Hallo", -1.5)
    hello = token(5, " Hello", -0.5, top=[token(5, " Hello", -0.5), other])
    server = Server(tgi_routes, (begun(), piece(hello, finish_reason="length"), ended()))
    body = {"inputs": "Hi", "parameters": {"details": True, "top_n_tokens": 2}}
    reply = await server.post("/generate", body)
    assert server.sent.params.logprobs == 2
    assert reply.content.endswith(
        b'"tokens":[{"id":5,"text":" Hello","logprob":-0.5,"special":false}],'
        b'"top_tokens":[[{"id":5,"text":" Hello","logprob":-0.5,"special":false},'
        b'{"id":9,"text":" Hallo","logprob":-1.5,"special":false}]]}}'
    )


async def test_decoder_input_details_are_the_prompt_with_its_logprobs() -> None:
    prompt = PromptScored((token(1, "<s>", is_special=True), token(3, "Hi", -2.5)))
    server = Server(tgi_routes, (begun(), prompt, *WHOLE[1:]))
    body = {"inputs": "Hi", "parameters": {"decoder_input_details": True}}
    reply = await server.post("/generate", body)
    assert server.sent.params.prompt_logprobs == 0
    assert reply.json()["details"]["prefill"] == [
        {"id": 1, "text": "<s>", "logprob": None},
        {"id": 3, "text": "Hi", "logprob": -2.5},
    ]


async def test_the_best_of_two_has_the_higher_mean_logprob() -> None:
    long = piece(token(5, "a", -1.0), token(6, "b", -0.2), finish_reason="stop")  # mean -0.6
    short = piece(token(7, "c", -0.5), finish_reason="length")
    server = Server(tgi_routes, (begun(seed=1), long, ended()), (begun(seed=2), short, ended()))
    body = {"inputs": "Hi", "parameters": {"best_of": 2, "do_sample": True, "details": True}}
    reply = await server.post("/generate", body)
    assert reply.content == (
        b'{"generated_text":"c","details":{"finish_reason":"length","generated_tokens":1,"seed":2,'
        b'"prefill":[],"tokens":[{"id":7,"text":"c","logprob":-0.5,"special":false}],'
        b'"best_of_sequences":[{"generated_text":"ab","finish_reason":"eos_token",'
        b'"generated_tokens":2,"seed":1,"prefill":[],"tokens":['
        b'{"id":5,"text":"a","logprob":-1.0,"special":false},'
        b'{"id":6,"text":"b","logprob":-0.2,"special":false}]}]}}'
    )
    assert len(server.inference.sent) == 2


async def test_the_full_text_begins_with_the_prompt() -> None:
    server = Server(tgi_routes, WHOLE)
    body = {"inputs": "Hi", "parameters": {"return_full_text": True}}
    reply = await server.post("/generate", body)
    assert reply.json() == {"generated_text": "Hi Hello world"}


async def test_the_root_answers_a_list_with_the_full_text() -> None:
    server = Server(tgi_routes, WHOLE)
    reply = await server.post("/", {"inputs": "Hi"})
    assert reply.content == b'[{"generated_text":"Hi Hello world"}]'
    body = {"inputs": "Hi", "parameters": {"return_full_text": False}}
    assert (await server.post("/", body)).json() == [{"generated_text": " Hello world"}]


async def test_headers_tell_times_and_counts() -> None:
    reply = await Server(tgi_routes, WHOLE).post("/generate", {"inputs": "Grüße"})
    headers = reply.headers
    assert headers["x-compute-type"] == "toy"
    assert headers["x-compute-characters"] == "5"
    assert headers["x-prompt-tokens"] == "4"
    assert headers["x-generated-tokens"] == "3"
    assert float(headers["x-compute-time"]) > 0
    for name in ("total", "validation", "queue", "inference"):
        assert int(headers[f"x-{name}-time"]) >= 0
    assert int(headers["x-time-per-token"]) >= 0


async def test_time_in_the_queue_is_told_and_is_no_inference() -> None:
    answer = [*WHOLE[:-1], Finished(4, 0, 3, 2.5)]
    headers = (await Server(tgi_routes, answer).post("/generate", {"inputs": "Hi"})).headers
    assert headers["x-queue-time"] == "2500"
    assert headers["x-inference-time"] == "0"  # this model waits in words alone


def test_times_are_told_without_counting_any_twice() -> None:
    """Ready at 1 s, taken at 3 s, computed from 6 s, done at 10 s."""
    times = Times(started=0.0)
    with patch("mindspore_serving.frontends.tgi.writing.perf_counter", side_effect=[3.0, 10.0]):
        times.begin(Started(4, 42, None, 2.0))
        times.end(8)
    times.queued = 5.0
    assert (times.begun, times.queued, times.inference) == (1.0, 5.0, 4.0)
    assert times.begun + times.queued + times.inference == times.ended


async def test_without_parameters_the_answer_is_sampled() -> None:
    server = Server(tgi_routes, WHOLE)
    await server.post("/generate", {"inputs": "Hi"})
    assert server.sent.params.temperature == 1
    await server.post("/generate", {"inputs": "Hi", "parameters": {}})
    assert server.sent.params.temperature == 0
    await server.post("/generate", {"inputs": "Hi", "parameters": {"top_p": 0.5}})
    assert (server.sent.params.temperature, server.sent.params.top_p) == (1, 0.5)


async def test_every_parameter_reaches_the_model() -> None:
    server = Server(tgi_routes, WHOLE)
    parameters = {
        "temperature": 0.7,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "typical_p": 0.8,
        "max_new_tokens": 9,
        "stop": ["END"],
        "truncate": 3,
        "seed": 11,
        "adapter_id": "poem",
        "unknown": "ignored",
    }
    await server.post("/generate", {"inputs": "Hi", "parameters": parameters})
    sent, params = server.sent, server.sent.params
    assert (params.temperature, params.repetition_penalty) == (0.7, 1.2)
    assert (params.frequency_penalty, params.top_k, params.top_p) == (0.5, 5, 0.9)
    assert (params.typical_p, params.max_tokens, params.seed) == (0.8, 9, 11)
    assert (list(params.stop), params.include_stop) == (["END"], True)
    assert (sent.prompt, sent.truncate, sent.adapter) == ("Hi", 3, "poem")


async def test_grammars_of_every_kind_are_understood() -> None:
    server = Server(tgi_routes, WHOLE)
    schema = {"properties": {"a": {"type": "integer"}}}
    compact = json.dumps({"x-guidance": SPACES} | schema)
    rows = [
        ({"type": "regex", "value": "[0-9]+"}, Grammar("regex", "[0-9]+")),
        ({"type": "json", "value": schema}, Grammar("json_schema", compact)),
        ({"type": "json", "value": json.dumps(schema)}, Grammar("json_schema", compact)),
        ({"type": "json_object", "value": schema}, Grammar("json_schema", compact)),
        (
            {"type": "json_schema", "value": {"name": "n", "schema": schema}},
            Grammar("json_schema", compact),
        ),
    ]
    for given, expected in rows:
        await server.post("/generate", {"inputs": "Hi", "parameters": {"grammar": given}})
        assert server.sent.grammar == expected


async def test_length_is_told_before_other_reasons_to_end() -> None:
    server = Server(tgi_routes, WHOLE)
    body = {"inputs": "Hi", "parameters": {"details": True, "max_new_tokens": 3}}
    reply = await server.post("/generate", body)
    assert reply.json()["details"]["finish_reason"] == "length"


async def test_a_stop_string_is_a_reason_of_its_own() -> None:
    last = piece(HELLO, WORLD, finish_reason="stop", stop_reason="world")
    server = Server(tgi_routes, (begun(), last, ended()))
    body = {"inputs": "Hi", "parameters": {"details": True, "stop": ["world"]}}
    details = (await server.post("/generate", body)).json()["details"]
    assert details["finish_reason"] == "stop_sequence"


async def test_the_first_model_that_generates_answers_unless_another_is_named() -> None:
    from msgspec.structs import replace

    from tests.frontends.tgi.scripted import CARD

    embedder = replace(CARD, can_generate=False, adapters=())
    models = [("embedder", 1, embedder), ("tiny", 1, CARD), ("other", 2, CARD)]
    server = Server(tgi_routes, WHOLE, models=models)
    assert (await server.send("GET", "/info")).json()["model_id"] == "tiny"
    parameters = {"adapter_id": "other"}
    reply = await server.post("/generate", {"inputs": "Hi", "parameters": parameters})
    assert reply.status_code == 200


async def test_text_of_half_characters_is_whole_again() -> None:
    halves = [token(8, "\ufffd", -1.0, data=b"\xc3"), token(9, "\ufffd", -1.0, data=b"\xa9")]
    server = Server(tgi_routes, (begun(), piece(*halves, EOS, finish_reason="stop"), ended()))
    reply = await server.post("/generate", {"inputs": "Hi", "parameters": {"details": True}})
    assert [one["text"] for one in reply.json()["details"]["tokens"]] == ["", "é", "</s>"]
    assert reply.json()["generated_text"] == "é"
