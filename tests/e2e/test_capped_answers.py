"""More tokens than the context has room for: the answer is as long as there is room, in every
protocol, and a header names the field that asked for more, before the first byte of a stream."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import grpc
import ollama
import openai
import pytest

from mindspore_serving.frontends.chat.fields import CAPPED as HEADER
from mindspore_serving.frontends.v2.service import SERVICE
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, config, serving
from tests.llm import chatty
from tests.waiting import PATIENCE

CONTEXT = 64
MANY = 32_000  # what opencode asks for
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["Hi"]}
# The path, the body, where in it the length is asked for, and what the header calls that.
ROUTES = {
    "chat": ("/v1/chat/completions", CHAT, "max_tokens", ""),
    "chat, newer": ("/v1/chat/completions", CHAT, "max_completion_tokens", ""),
    "completions": ("/v1/completions", {"prompt": ["Hi", "You"]}, "max_tokens", ""),
    "responses": ("/v1/responses", {"input": "Hi"}, "max_output_tokens", ""),
    "anthropic": ("/v1/messages", CHAT, "max_tokens", ""),
    "ollama, chat": ("/api/chat", CHAT, "num_predict", "options"),
    "ollama": ("/api/generate", {"prompt": "Hi"}, "num_predict", "options"),
    "tgi": ("/generate", {"inputs": "Hi"}, "max_new_tokens", "parameters"),
    "tgi, stream": ("/generate_stream", {"inputs": "Hi"}, "max_new_tokens", "parameters"),
    "tgi, root": ("/", {"inputs": "Hi"}, "max_new_tokens", "parameters"),
    "llm-serving": ("/models/chatty", {"inputs": "Hi"}, "max_new_tokens", "parameters"),
    "v2": ("/v2/models/chatty/generate", {"text_input": "Hi"}, "max_tokens", ""),
    "v2, stream": ("/v2/models/chatty/generate_stream", {"text_input": "Hi"}, "max_tokens", ""),
}
NO_STREAM = ("v2", "tgi")  # their streams are paths of their own


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    directory = tmp_path_factory.mktemp("capped")
    chatty.build(directory, context=CONTEXT)
    options = {"dtype": "f32", "kv_cache_memory": 8 << 20}
    model = config(directory, "chatty", llm_options=options)
    with serving(directory, model, front_ends=2) as found:
        yield found


def post(calls: Calls, path: str, body: Any) -> tuple[int, str | None, bytes]:
    """The status, the header, and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, reply.headers[HEADER], reply.read()
    finally:
        connection.close()


def asking(body: dict[str, Any], name: str, inside: str, count: int) -> dict[str, Any]:
    return {**body, inside: {name: count}} if inside else {**body, name: count}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_length_beyond_the_context_is_named_in_the_header_of(calls, route, is_stream):
    path, body, name, inside = ROUTES[route]
    if route not in NO_STREAM:
        body = {**body, "stream": is_stream}
    status, header, answer = post(calls, path, asking(body, name, inside, MANY))
    assert (status, header) == (200, f"{inside}.{name}".lstrip(".")), answer
    assert b"error" not in answer.replace(b'"error":null', b""), answer
    status, header, answer = post(calls, path, asking(body, name, inside, 16))
    assert (status, header) == (200, None), answer


@pytest.mark.parametrize("route", ["chat", "anthropic", "ollama, chat"])
def test_a_prompt_beyond_the_context_is_refused_as_before(calls, route):
    path, body, name, inside = ROUTES[route]
    long = {"messages": [{"role": "user", "content": "?" * 2 * CONTEXT}]}
    status, header, answer = post(calls, path, asking({**body, **long}, name, inside, MANY))
    assert (status, header) == (400, None), answer


def test_openais_client_gets_a_whole_answer_and_the_header(calls):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{calls.http}/v1", api_key="none") as client:
        asked = {"model": "chatty", "input": "Hi", "max_output_tokens": MANY}
        raw = client.responses.with_raw_response.create(**asked)
        assert raw.headers[HEADER] == "max_output_tokens"
        answer = raw.parse()
        assert answer.usage.total_tokens <= CONTEXT
        with client.responses.with_streaming_response.create(**asked, stream=True) as streamed:
            assert streamed.headers[HEADER] == "max_output_tokens"
            kinds = [event.type for event in streamed.parse()]
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_anthropics_client_gets_a_whole_answer_and_the_header(calls):
    url = f"http://127.0.0.1:{calls.http}"
    asked = {"model": "chatty", "max_tokens": MANY, **CHAT}
    with (
        anthropic.Anthropic(base_url=url, api_key="none") as client,
        client.messages.stream(**asked) as stream,
    ):
        assert stream.response.headers[HEADER] == "max_tokens"
        usage = stream.get_final_message().usage
    assert usage.input_tokens + usage.output_tokens <= CONTEXT


def test_ollamas_client_gets_a_whole_answer(calls):
    with ollama.Client(host=f"http://127.0.0.1:{calls.http}") as client:
        answer = client.chat("chatty", CHAT["messages"], options={"num_predict": MANY})
    assert answer.done
    assert answer.prompt_eval_count + answer.eval_count <= CONTEXT


def test_infer_by_http_names_the_field(calls):
    body = {"inputs": [TEXT], "parameters": {"max_tokens": MANY}}
    status, header, answer = post(calls, "/v2/models/chatty/infer", body)
    assert (status, header) == (200, "max_tokens"), answer


@pytest.mark.parametrize("is_stream", [False, True], ids=["ModelInfer", "ModelStreamInfer"])
def test_the_trailing_metadata_of_grpc_name_the_field(calls, is_stream):
    request = pb.ModelInferRequest(model_name="chatty")
    for name, text in (("text_input", b"Hi"), ("sampling_parameters", b'{"max_tokens": 32000}')):
        request.inputs.add(name=name, datatype="BYTES", shape=[1])
        request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    sent = request.SerializeToString()
    metadata = (("x-request-id", "req_1"),)
    with grpc.insecure_channel(calls.grpc) as channel:
        if is_stream:
            streaming = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
            call = streaming(iter([sent]), timeout=PATIENCE, metadata=metadata)
            pieces = [pb.ModelStreamInferResponse.FromString(piece) for piece in call]
            assert not any(piece.error_message for piece in pieces)
        else:
            unary = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            _, call = unary.with_call(sent, timeout=PATIENCE, metadata=metadata)
        found = dict(call.trailing_metadata())
    assert (found[HEADER], found["x-request-id"]) == ("max_tokens", "req_1")
