"""MindsporeInferenceClient against a server that sends what it is told to."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mindspore_serving.client import MindsporeInferenceClient
from mindspore_serving.client.llm import StreamResponse, Token
from mindspore_serving.errors import (
    InvalidInputs,
    NotFound,
    Overloaded,
    ServingError,
    Unauthorized,
)


class Told:
    """What the server answers, and what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.chunks: list[bytes] = []
        self.is_complete = True
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body: Any = None


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def url(told: Told) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            told.path = self.path
            told.headers = dict(self.headers)
            told.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(told.status)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for chunk in told.chunks:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if told.is_complete:
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ask(told: Told, url: str) -> Callable[..., list[StreamResponse]]:
    """ask(chunks, **parameters): the responses to a stream of `chunks`."""

    def run(chunks: list[bytes], **parameters: Any) -> list[StreamResponse]:
        told.chunks = chunks
        return list(MindsporeInferenceClient("llama2", url).generate_stream("Hi", **parameters))

    return run


TOKEN = b'{"id": 5, "logprob": -0.5, "special": false, "text": " Hi"}'


def test_a_whole_answer_is_read(told: Told, url: str) -> None:
    told.chunks = [
        b'{"generated_text": " Hi", "finish_reason": "length", "generated_tokens": 1, '
        b'"prefill": [%b], "seed": 0, "tokens": [%b], "top_tokens": [[%b]], "details": null}\n'
        % (TOKEN, TOKEN, TOKEN)
    ]
    answer = MindsporeInferenceClient("llama2", url + "/").generate("Hello", max_new_tokens=1)
    assert answer.generated_text == " Hi"
    assert (answer.finish_reason, answer.generated_tokens) == ("length", 1)
    assert answer.tokens == [Token(" Hi", 5, -0.5, False)]
    assert told.path == "/models/llama2"
    assert told.body == {
        "inputs": "Hello",
        "parameters": {
            "do_sample": False,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 1,
            "top_p": 1,
            "max_new_tokens": 1,
        },
        "stream": False,
    }


def test_an_answer_of_the_text_alone_is_read(told: Told, url: str) -> None:
    told.chunks = [b'{"generated_text": " Hi"}\n']
    assert MindsporeInferenceClient("llama2", url).generate("Hello").generated_text == " Hi"


EVENTS = [
    b'data: {"event": "message", "retry": 30000, "data": " Hi"}\r\n\r\n',
    b": You can't see this ping\r\n\r\n",
    b'data: {"event": "message", "retry": 30000, "data": " you"}\r\n\r\n',
]
INDEXED = [
    b'data:{"token": {"text": " Hi", "index": 1}}\n',
    b'data:{"token": {"text": " you", "index": 2}}\n',
]
BARE = [
    b'{"event": "message", "retry": 30000, "data": [{"details": null, "generated_text": " Hi", '
    b'"tokens": %b, "top_tokens": [%b]}]}\n' % (TOKEN, TOKEN),
    b'{"event": "message", "retry": 30000, "data": [{"details": null, "generated_text": " you", '
    b'"tokens": {"id": 6, "logprob": -1.0, "special": false, "text": " you"}}]}\n',
]
DATA = [
    b'data:{"details": null, "generated_text": " Hi", "tokens": %b, "top_tokens": []}\n' % TOKEN,
    b'data:{"details": null, "generated_text": " you", "tokens": '
    b'{"id": 6, "logprob": -1.0, "special": false, "text": " you"}}\n',
]
LAST = {
    "events": b'data: {"event": "message", "retry": 30000, "data": " Hi you"}\r\n\r\n',
    "indexed": b'data:{"generated_text": " Hi you"}\n',
    "bare": b'{"event": "message", "data": [{"generated_text": " Hi you", "tokens": [%b]}]}\n'
    % TOKEN,
    "data": b'data:{"generated_text": " Hi you", "tokens": [%b]}\n' % TOKEN,
}


@pytest.mark.parametrize(
    ("form", "chunks"),
    [("events", EVENTS), ("indexed", INDEXED), ("bare", BARE), ("data", DATA)],
)
def test_streams_of_every_form_are_read(
    ask: Callable[..., list[StreamResponse]], form: str, chunks: list[bytes]
) -> None:
    found = ask([*chunks, LAST[form]])
    assert [one.token.text for one in found if one.token] == [" Hi", " you"]
    assert found[-1] == StreamResponse(generated_text=" Hi you")
    found = ask(chunks, return_full_text=False)
    assert [one.token.text for one in found if one.token] == [" Hi", " you"]


def test_tokens_have_the_fields_of_the_form(ask: Callable[..., list[StreamResponse]]) -> None:
    (first, *_) = ask([*BARE, LAST["bare"]])
    assert first == StreamResponse(Token(" Hi", 5, -0.5, False))


def test_lines_may_be_cut_anywhere(ask: Callable[..., list[StreamResponse]]) -> None:
    whole = b"".join([*EVENTS, LAST["events"]])
    found = ask([whole[place : place + 7] for place in range(0, len(whole), 7)])
    assert [one.token.text for one in found if one.token] == [" Hi", " you"]


def test_parameters_and_the_key_are_sent(told: Told, url: str) -> None:
    told.chunks = [LAST["events"]]
    client = MindsporeInferenceClient("my model", url, token="secret")
    list(client.generate_stream("Hi", False, 1.1, 0.5, 5, 0.9, 10, True, seed=3))
    assert told.path == "/models/my%20model"
    assert told.headers["authorization"] == "Bearer secret"
    assert told.body["stream"] is True
    assert told.body["parameters"] == {
        "do_sample": False,
        "repetition_penalty": 1.1,
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "max_new_tokens": 10,
        "return_full_text": True,
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, b'{"detail": "100 wait"}', Overloaded("100 wait (HTTP 429)")),
        (404, b'{"detail": "no model x"}', NotFound("no model x (HTTP 404)")),
        (401, b"", Unauthorized(" (HTTP 401)")),
        (
            422,
            b'{"detail": [{"loc": ["body", "inputs"], "msg": "is 5", "type": "v"}]}',
            InvalidInputs("body.inputs: is 5 (HTTP 422)"),
        ),
        (502, b"<html>bad gateway</html>", ServingError("<html>bad gateway</html> (HTTP 502)")),
    ],
)
def test_a_status_is_an_error_of_its_kind(
    told: Told, url: str, status: int, body: bytes, error: ServingError
) -> None:
    told.status, told.chunks = status, [body] if body else []
    client = MindsporeInferenceClient("llama2", url)
    for call in (lambda: client.generate("Hi"), lambda: list(client.generate_stream("Hi"))):
        with pytest.raises(ServingError) as caught:
            call()
        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)


def test_an_error_in_place_of_an_answer_is_raised(told: Told, url: str) -> None:
    client = MindsporeInferenceClient("llama2", url)
    text = b'"Error202: prompt out of range"'
    told.chunks = [b'{"generated_text": %b, "finish_reason": "prompt_out_of_range"}\n' % text]
    with pytest.raises(InvalidInputs, match="^Error202: prompt out of range$"):
        client.generate("Hi")
    failed = b'"error304: generation task stop abnormally!, please retry!"'
    frames = [b'data: {"event": "message", "data": %b}\r\n\r\n' % one for one in (failed, failed)]
    told.chunks = [EVENTS[0], *frames]
    stream = client.generate_stream("Hi")
    assert next(stream).token == Token(" Hi")
    with pytest.raises(ServingError, match="error304"):
        next(stream)


def test_an_answer_may_speak_of_errors(told: Told, url: str) -> None:
    text = b'"It said Error202: prompt out of range"'
    told.chunks = [b'{"generated_text": %b, "finish_reason": "eos"}\n' % text]
    answer = MindsporeInferenceClient("llama2", url).generate("Hi")
    assert answer.generated_text == "It said Error202: prompt out of range"


def test_a_stream_that_breaks_off_is_an_error(told: Told, url: str) -> None:
    told.chunks, told.is_complete = EVENTS, False
    with pytest.raises(ServingError, match="calling 127.0.0.1:"):
        list(MindsporeInferenceClient("llama2", url).generate_stream("Hi"))


def test_answers_that_are_not_json_are_errors(told: Told, url: str) -> None:
    told.chunks = [b"<html>"]
    client = MindsporeInferenceClient("llama2", url)
    with pytest.raises(ServingError, match="not a JSON object: b'<html>'"):
        client.generate("Hi")


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    client = MindsporeInferenceClient("llama2", f"http://127.0.0.1:{port}")
    with pytest.raises(ServingError, match=f"calling 127.0.0.1:{port} failed"):
        client.generate("Hi")


@pytest.mark.parametrize("url", ["127.0.0.1:9800", "ftp://host", "http://host:x", "", 5])
def test_an_address_that_is_none_is_refused(url: Any) -> None:
    with pytest.raises(InvalidInputs, match="server_url"):
        MindsporeInferenceClient("llama2", url)
