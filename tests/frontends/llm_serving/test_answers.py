"""Every form of answer, byte for byte."""

from collections.abc import Sequence

import pytest

from mindspore_serving.core.llm_messages import Event
from mindspore_serving.frontends.llm_serving.frames import Form
from tests.frontends.mounting import llm_serving_routes
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

STREAMED: Sequence[Event] = (
    begun(),
    piece(HELLO),
    piece(WORLD, text=' "wörld"'),
    piece(EOS, finish_reason="stop"),
    ended(generated=3),
)
TOKENS = (
    b'{"id": 5, "logprob": -0.5, "special": false, "text": " Hello"}',
    '{"id": 6, "logprob": -0.25, "special": false, "text": " \\"wörld\\""}'.encode(),
    b'{"id": 2, "logprob": -0.125, "special": true, "text": ""}',
)


def server(form: Form = "r21", *answers: Sequence[Event]) -> Server:
    return Server(lambda state: llm_serving_routes(state, form), *(answers or (STREAMED,)))


async def stream(form: Form, protocol: str, **parameters: object) -> bytes:
    body = {"inputs": "Hi", "parameters": {"return_protocol": protocol, **parameters}}
    reply = await server(form).post("/models/llama2/generate_stream", body)
    assert reply.status_code == 200
    return reply.content


async def test_the_first_release_sends_events_of_text() -> None:
    assert (
        await stream("r21", "sse")
        == (
            'data: {"event": "message", "retry": 30000, "data": " Hello"}\r\n\r\n'
            'data: {"event": "message", "retry": 30000, "data": " \\"wörld\\""}\r\n\r\n'
            'data: {"event": "message", "retry": 30000, "data": ""}\r\n\r\n'
            'data: {"event": "message", "retry": 30000, "data": " Hello \\"wörld\\""}\r\n\r\n'
        ).encode()
    )


async def test_the_first_release_counts_tokens_in_its_other_form() -> None:
    assert (
        await stream("r21", "lines")
        == (
            'data:{"token": {"text": " Hello", "index": 1}}\n'
            'data:{"token": {"text": " \\"wörld\\"", "index": 2}}\n'
            'data:{"token": {"text": "", "index": 3}}\n'
            'data:{"generated_text": " Hello \\"wörld\\""}\n'
        ).encode()
    )


async def test_later_releases_send_bare_lines() -> None:
    lines = (await stream("bare", "sse")).split(b"\n")
    texts = (b'" Hello"', '" \\"wörld\\""'.encode(), b'""')
    for line, shown, text in zip(lines, TOKENS, texts, strict=False):
        assert line == (
            b'{"event": "message", "retry": 30000, "data": [{"details": null, '
            b'"generated_text": %b, "tokens": %b, "top_tokens": [%b]}]}' % (text, shown, shown)
        )
    assert lines[3] == (
        b'{"event": "message", "retry": 30000, "data": [{"details": null, '
        b'"generated_text": %b, "finish_reason": "eos", "generated_tokens": 3, '
        b'"prefill": [%b], "seed": 0, "tokens": [%b], "top_tokens": [[%b]]}]}'
        % ('" Hello \\"wörld\\""'.encode(), TOKENS[0], b", ".join(TOKENS), TOKENS[0])
    )
    assert lines[4:] == [b""]


async def test_later_releases_have_another_form_too() -> None:
    lines = (await stream("bare", "data")).split(b"\n")
    assert lines[0] == (
        b'data:{"details": null, "generated_text": " Hello", "tokens": %b, "top_tokens": [%b]}'
        % (TOKENS[0], TOKENS[0])
    )
    assert lines[3] == (
        b'data:{"generated_text": %b, "finish_reason": "eos", "generated_tokens": 3, '
        b'"prefill": [%b], "seed": 0, "tokens": [%b], "top_tokens": [[%b]], "details": null}'
        % ('" Hello \\"wörld\\""'.encode(), TOKENS[0], b", ".join(TOKENS), TOKENS[0])
    )
    assert lines[4:] == [b""]


@pytest.mark.parametrize("form", ["r21", "bare"])
async def test_the_full_answer_is_a_single_line(form: Form) -> None:
    reply = await server(form, WHOLE).post("/models/llama2/generate", {"inputs": "Hi"})
    first = b'{"id": 5, "logprob": -0.5, "special": false, "text": " Hello"}'
    assert reply.content == (
        b'{"generated_text": " Hello world", "finish_reason": "eos", "generated_tokens": 3, '
        b'"prefill": [%b], "seed": 0, "tokens": [%b, '
        b'{"id": 6, "logprob": -0.25, "special": false, "text": " world"}, '
        b'{"id": 2, "logprob": -0.125, "special": true, "text": ""}], '
        b'"top_tokens": [[%b]], "details": null}\n' % (first, first, first)
    )


async def test_without_full_text_a_stream_ends_with_the_last_token() -> None:
    assert (await stream("r21", "sse", return_full_text="False")).count(b"data: ") == 3
    assert (await stream("r21", "sse", return_full_text=None)).count(b"data: ") == 3


async def test_headers_keep_the_stream_alive_and_unbuffered() -> None:
    body = {"inputs": "Hi", "stream": True}
    reply = await server().post("/models/llama2", body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["connection"] == "keep-alive"
    assert reply.headers["x-accel-buffering"] == "no"


async def test_the_stream_flag_decides_where_the_path_does_not() -> None:
    for flag, path, is_stream in [
        ("True", "/models/llama2", True),
        ("False", "/models/llama2", False),
        (False, "/models/llama2/generate_stream", True),
        (True, "/models/llama2/generate", False),
    ]:
        asked = server("r21", STREAMED if is_stream else WHOLE)
        reply = await asked.post(path, {"inputs": "Hi", "stream": flag})
        assert asked.sent.is_stream == is_stream
        assert reply.content.startswith(b"data: ") == is_stream


async def test_details_and_the_prompt_come_if_they_are_asked_for() -> None:
    from mindspore_serving.core.llm_messages import Started

    prompt = (token(1, "<s>", is_special=True), token(3, "Hi"))
    asked = server("r21", (Started(2, 7, prompt), *WHOLE[1:]))
    parameters = {"details": True, "decoder_input_details": True, "seed": 7}
    body = {"inputs": "Hi", "parameters": parameters}
    found = (await asked.post("/models/llama2/generate", body)).json()
    assert found["details"] == {
        "finish_reason": "eos",
        "generated_tokens": 3,
        "seed": 7,
        "input_length": 2,
    }
    assert [one["text"] for one in found["prefill"]] == ["<s>", "Hi"]
    assert found["seed"] == 7


async def test_top_tokens_are_the_likeliest_if_they_are_asked_for() -> None:
    tops = [token(5, " Hello", -0.5), token(9, " Hallo", -1.5)]
    hello = token(5, " Hello", -0.5, top=tops)
    events = (begun(), piece(hello, finish_reason="length"), ended())
    body = {"inputs": "Hi", "parameters": {"top_n_tokens": 2}}
    found = (await server("r21", events).post("/models/llama2/generate", body)).json()
    assert [[one["id"] for one in place] for place in found["top_tokens"]] == [[5, 9]]
    assert found["finish_reason"] == "length"


async def test_a_stop_string_is_a_finish_reason() -> None:
    last = piece(HELLO, finish_reason="stop", stop_reason="lo")
    body = {"inputs": "Hi", "parameters": {"stop": ["lo"]}}
    asked = server("r21", (begun(), last, ended()))
    found = (await asked.post("/models/llama2/generate", body)).json()
    assert found["finish_reason"] == "stop_sequence"


async def test_a_piece_of_several_tokens_is_shown_with_its_last() -> None:
    both = piece(HELLO, WORLD, finish_reason="length")
    asked = server("r21", (begun(), both, ended()))
    body = {"inputs": "Hi", "parameters": {"return_protocol": ""}}
    reply = await asked.post("/models/llama2/generate_stream", body)
    assert reply.content == (
        b'data:{"token": {"text": "", "index": 1}}\n'
        b'data:{"token": {"text": " Hello world", "index": 2}}\n'
        b'data:{"generated_text": " Hello world"}\n'
    )
