"""One model asked in every protocol: the same text everywhere, and what is wrong told by each.

The independent source of what a model says is the offline interface.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from mindspore_serving.frontends.v2.service import SERVICE as V2_SERVICE
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, config, eventually, is_idle, serving
from tests.llm import chatty
from tests.waiting import PATIENCE

PROMPT, COUNT = "The sea is", 16
DEEP = b"[" * 100_000 + b"]" * 100_000
OPTIONS = {"dtype": "f32", "kv_cache_memory": 8 << 20, "embeddings": True}
JSON = {"Content-Type": "application/json"}
GENERATE = {"max_new_tokens": COUNT, "do_sample": False}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
one_front_end = pytest.mark.parametrize("calls", [1], ids=["one front end"], indirect=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("protocols")
    chatty.build(directory)
    return directory


@pytest.fixture(scope="module", params=[1, 2], ids=["one front end", "two front ends"])
def calls(place: Path, request: pytest.FixtureRequest) -> Iterator[Calls]:
    model = config(place, "chatty", llm_options=OPTIONS)
    with serving(place, model, front_ends=request.param) as found:
        yield found


@pytest.fixture(scope="module")
def texts(place: Path) -> tuple[str, str]:
    """What the model says to PROMPT and to CHAT offline, greedily."""
    with LLM(place / "chatty", dtype="f32") as llm:
        params = SamplingParams(max_tokens=COUNT, temperature=0)
        found = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text
        answer = llm.chat(CHAT, params, use_tqdm=False)[0].outputs[0].text
    assert len(found) > COUNT // 2
    assert answer
    return found, answer


def post(calls: Calls, path: str, body: Any) -> bytes:
    status, answer = calls.http_call("POST", path, json.dumps(body), JSON)
    assert status == 200, answer
    return answer


def events(answer: bytes) -> list[Any]:
    """The data of server-sent events, but for [DONE]."""
    lines = answer.decode().split("\n")
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(one) for one in data if one != "[DONE]"]


def openai(calls: Calls) -> str:
    body = {"model": "chatty", "prompt": PROMPT, "max_tokens": COUNT, "temperature": 0}
    return json.loads(post(calls, "/v1/completions", body))["choices"][0]["text"]


def openai_stream(calls: Calls) -> str:
    body = {"prompt": PROMPT, "max_tokens": COUNT, "temperature": 0, "stream": True}
    found = events(post(calls, "/v1/completions", body))
    return "".join(chunk["choices"][0]["text"] for chunk in found)


def tgi(calls: Calls) -> str:
    body = {"inputs": PROMPT, "parameters": GENERATE}
    return json.loads(post(calls, "/generate", body))["generated_text"]


def tgi_stream(calls: Calls) -> str:
    found = events(post(calls, "/generate_stream", {"inputs": PROMPT, "parameters": GENERATE}))
    return found[-1]["generated_text"]


def llm_serving(calls: Calls) -> str:
    body = {"inputs": PROMPT, "parameters": GENERATE}
    answer = json.loads(post(calls, "/models/chatty/generate", body))
    answer = answer[0] if isinstance(answer, list) else answer
    return answer["generated_text"]


def rest(calls: Calls) -> str:
    instance = {"prompt": PROMPT, "max_tokens": COUNT, "temperature": 0}
    return calls.post("chatty", "generate", [instance])["instances"][0]["text"]


def rest_stream(calls: Calls) -> str:
    instance = {"prompt": PROMPT, "max_tokens": COUNT, "temperature": 0}
    found = events(post(calls, "/model/chatty:generate_stream", {"instances": [instance]}))
    return "".join(event["instances"][0]["text"] for event in found)


def by_grpc(calls: Calls) -> str:
    client = calls.client("chatty", "generate")
    return client.infer({"prompt": PROMPT, "max_tokens": COUNT, "temperature": 0})[0]["text"]


def by_grpc_stream(calls: Calls) -> str:
    client = calls.client("chatty", "generate")
    instance = {"prompt": PROMPT, "max_tokens": COUNT, "temperature": 0}
    return "".join(piece["text"] for piece in client.infer_stream(instance))


V2 = {"max_tokens": COUNT, "temperature": 0}
TEXT = {"name": "text_input", "shape": [1], "datatype": "BYTES"}


def v2(calls: Calls) -> str:
    """As Triton's vLLM backend answers: with the prompt, unless the client excludes it."""
    body = {"inputs": [{**TEXT, "data": [PROMPT]}], "parameters": V2}
    answer = json.loads(post(calls, "/v2/models/chatty/infer", body))
    (found,) = answer["outputs"]
    assert (found["name"], found["datatype"], found["shape"]) == ("text_output", "BYTES", [1])
    assert found["data"][0].startswith(PROMPT)
    return found["data"][0].removeprefix(PROMPT)


def v2_generate(calls: Calls) -> str:
    body = {"text_input": PROMPT, "exclude_input_in_output": True, "parameters": V2}
    return json.loads(post(calls, "/v2/models/chatty/generate", body))["text_output"]


def v2_generate_stream(calls: Calls) -> str:
    body = {"text_input": PROMPT, **V2}
    found = events(post(calls, "/v2/models/chatty/generate_stream", body))
    return "".join(piece["text_output"] for piece in found)


def v2_grpc(calls: Calls) -> str:
    request = v2_request(False)
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.unary_unary(f"/{V2_SERVICE}/ModelInfer")
        answer = pb.ModelInferResponse.FromString(call(request, timeout=PATIENCE))
    return answer.raw_output_contents[0][4:].decode()


def v2_grpc_stream(calls: Calls) -> str:
    pieces = []
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.stream_stream(f"/{V2_SERVICE}/ModelStreamInfer")
        for piece in call(iter([v2_request(True)]), timeout=PATIENCE):
            found = pb.ModelStreamInferResponse.FromString(piece)
            assert not found.error_message
            pieces.append(found.infer_response.raw_output_contents[0][4:].decode())
    assert len(pieces) > 1
    return "".join(pieces)


def v2_request(is_stream: bool) -> bytes:
    """Of tensors as clients of Triton's vLLM backend send them: parameters are texts in JSON."""
    sampling = json.dumps({name: str(value) for name, value in V2.items()})
    request = pb.ModelInferRequest(model_name="chatty")
    for name, text in (("text_input", PROMPT), ("sampling_parameters", sampling)):
        request.inputs.add(name=name, datatype="BYTES", shape=[1])
        request.raw_input_contents.append(len(text).to_bytes(4, "little") + text.encode())
    for name, flag in (("stream", is_stream), ("exclude_input_in_output", True)):
        request.inputs.add(name=name, datatype="BOOL", shape=[1])
        request.raw_input_contents.append(bytes([flag]))
    return request.SerializeToString()


def test_the_configuration_of_a_language_model_is_there_for_grpc_too(calls: Calls) -> None:
    with grpc.insecure_channel(calls.grpc) as channel:
        call = channel.unary_unary(f"/{V2_SERVICE}/ModelConfig")
        request = pb.ModelConfigRequest(name="chatty").SerializeToString()
        answer = pb.ModelConfigResponse.FromString(call(request, timeout=PATIENCE))
    inputs = {one.name: one for one in answer.config.input}
    assert [inputs[name].optional for name in ("text_input", "stream")] == [False, True]
    assert (answer.config.max_batch_size, list(inputs["text_input"].dims)) == (0, [1])


PROTOCOLS: list[Callable[[Calls], str]] = [
    openai,
    openai_stream,
    tgi,
    tgi_stream,
    llm_serving,
    rest,
    rest_stream,
    by_grpc,
    by_grpc_stream,
    v2,
    v2_generate,
    v2_generate_stream,
    v2_grpc,
    v2_grpc_stream,
]


@pytest.mark.parametrize("ask", PROTOCOLS, ids=lambda ask: ask.__name__)
def test_every_protocol_has_the_text_of_the_offline_interface(calls, texts, ask):
    assert ask(calls) == texts[0]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_a_chat_over_openai_is_that_of_the_offline_interface(calls, texts, is_stream):
    body = {"messages": CHAT, "max_tokens": COUNT, "temperature": 0, "stream": is_stream}
    answer = post(calls, "/v1/chat/completions", body)
    if is_stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in events(answer)]
        found = "".join(delta.get("content") or "" for delta in deltas)
    else:
        found = json.loads(answer)["choices"][0]["message"]["content"]
    assert found == texts[1]


# --- what is wrong ---------------------------------------------------------------------------

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/v1/embeddings": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/generate": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/generate_stream": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/chat_tokenize": {"messages": [{"role": "user", "content": "x"}]},
    "/invocations": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/models/chatty": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/models/chatty/generate": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/models/chatty/generate_stream": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
    "/v2/models/chatty/generate": {"text_input": "x", "max_tokens": 1},
    "/v2/models/chatty/generate_stream": {"text_input": "x", "max_tokens": 1},
    "/v2/models/chatty/infer": {
        "inputs": [{**TEXT, "data": ["x"]}],
        "parameters": {"max_tokens": 1},
    },
    "/model/chatty:generate": {"instances": [{"prompt": "x", "max_tokens": 1}]},
    "/model/chatty:generate_stream": {"instances": [{"prompt": "x", "max_tokens": 1}]},
}
WRONG = {
    "nothing": b"",
    "deep arrays": DEEP,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "half": b'{"prompt": "x"',
    "a number": b"1",
    "invalid UTF-8": b'{"prompt":"\xff","inputs":"\xfe","messages":"\xff","input":"\xff"}',
    "half a surrogate pair": b'{"prompt":"\\ud800","inputs":"\\ud800","input":"\\ud800"}',
    "binary": bytes(range(256)),
}
VALUES = {
    "deep": DEEP,
    "a giant number": b"9" * 400,
    "over 64 bits": b"1180591620717411303424",
    "infinite": b"1e999",
    "negative": b"-1",
    "null": b"null",
    "an object": b"{}",
    "giant ids": b"[1180591620717411303424]",
    "too long": b'"' + b"word " * 20_000 + b'"',
    "a zero byte": b'"\\u0000"',
}
LEAKS = (b"Traceback", b"site-packages", b"mindspore_serving/", b'.py"', b"/tmp", b"see the log")


def check_told(path: str, status: int, answer: bytes) -> None:
    """Nothing fails as if it were the server's fault, and nothing of its inside is told."""
    assert status < 500, (path, status, answer[:300])
    assert status != 424, (path, answer[:300])
    for word in (*LEAKS, b"could not be decoded", b"Predict failed", b"its log says why"):
        assert word not in answer, (path, status, answer[:300])
    answer.decode()


@one_front_end
@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_is_none_is_refused_in_the_protocols_own_form(calls, path):
    for name, body in WRONG.items():
        status, answer = calls.http_call("POST", path, body, JSON)
        check_told(path, status, answer)
        if path.startswith("/v1/"):
            assert status == 400, (name, answer)
            assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}, name
        elif path.startswith("/model/"):
            assert list(json.loads(answer)) == ["error_msg"], name
        elif path.startswith("/v2/"):
            assert (status, list(json.loads(answer))) == (400, ["error"]), (name, answer)
        elif path not in ("/tokenize", "/detokenize"):
            assert 400 <= status < 500, (name, answer)
    status, answer = calls.http_call("POST", path, json.dumps(BODIES[path]), JSON)
    assert status == 200 or path == "/v1/embeddings", answer


@one_front_end
@pytest.mark.parametrize("path", BODIES)
def test_a_field_with_a_monstrous_value_is_the_clients_fault(calls, path):
    fields = {name: json.dumps(value).encode() for name, value in BODIES[path].items()}
    fields |= dict.fromkeys(("temperature", "seed", "stop", "n", "priority", "logit_bias"), b"1")
    for name in fields:
        for value in VALUES.values():
            given = {**fields, name: value}
            body = b"{%b}" % b",".join(b'"%b":%b' % (k.encode(), v) for k, v in given.items())
            check_told(path, *calls.http_call("POST", path, body, JSON))


@one_front_end
@pytest.mark.parametrize("parameter", ["max_new_tokens", "temperature", "stop", "seed", "truncate"])
def test_a_parameter_with_a_monstrous_value_is_too(calls, parameter):
    for path in ("/generate", "/generate_stream", "/models/chatty/generate"):
        for value in VALUES.values():
            body = b'{"inputs":"x","parameters":{"max_new_tokens":1,"%b":%b}}'
            check_told(
                path, *calls.http_call("POST", path, body % (parameter.encode(), value), JSON)
            )


def test_strange_headers_do_no_harm(calls):
    body = json.dumps(BODIES["/v1/completions"])
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Accept": "image/png"},
        {"X-Request-Id": "\x01\x02"},
        {"Authorization": "Basic !!!"},
        {"Host": ""},
    ):
        status, answer = calls.http_call("POST", "/v1/completions", body, headers)
        check_told("/v1/completions", status, answer)
    for timeout in ("nan", "-1", "inf", "1e400", "", "soon", "9" * 400):
        for path in ("/v1/completions", "/model/chatty:generate", "/model/chatty:generate_stream"):
            headers = {"X-Request-Timeout": timeout}
            check_told(path, *calls.http_call("POST", path, json.dumps(BODIES[path]), headers))


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/completions", {"model": "nobody", "prompt": "x"}, 404),
        ("/v1/chat/completions", {"model": "nobody", "messages": []}, 404),
        ("/v1/embeddings", {"model": "nobody", "input": "x"}, 404),
        ("/generate", {"inputs": "x", "parameters": {"adapter_id": "nobody"}}, 422),
        ("/models/nobody/generate", {"inputs": "x"}, 404),
        ("/v1/completions", {"prompt": "word " * 2000, "max_tokens": 1}, 400),
        ("/generate", {"inputs": "word " * 2000}, 422),
    ],
)
def test_an_unknown_model_or_a_prompt_too_long_is_told(calls, path, body, expected):
    status, answer = calls.http_call("POST", path, json.dumps(body), JSON)
    check_told(path, status, answer)
    assert status == expected, answer


def test_internal_methods_are_not_callable_by_clients(calls):
    for method in ("@generate", "@embed", "@tokenize"):
        _, answer = calls.http_call("POST", f"/model/chatty:{method}", b'{"instances":[{"a":1}]}')
        assert method in json.loads(answer)["error_msg"]
        assert "error" in calls.client("chatty", method).infer({"a": 1})
    assert rest(calls)


def test_nothing_of_all_this_is_left_behind(calls):
    eventually(lambda: is_idle(calls, "chatty"))
