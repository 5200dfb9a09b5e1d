"""A server that attacks who asks it: the worker lives and stays small, and clients of every
protocol are told whose fault it is.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from mindspore_serving.frontends.v2.service import SERVICE as V2_SERVICE
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.harness import Calls, config, eventually, memory, serving, workers
from tests.llm.upstream.attacks import EVENTS, FRAMES, MODELS, SENT_NUMBERS, SLOW, by_prompt
from tests.llm.upstream.faulty import Faulty, faulty
from tests.waiting import PATIENCE

FAILING, LATE = "no HTTP", "a late gateway"
QUICK = {name: script for name, (script, _) in (EVENTS | FRAMES | SENT_NUMBERS).items()}
LATE_ONES = {name: script for name, (script, _) in SLOW.items()}
MOST_GROWTH = 64 << 20


@pytest.fixture(scope="module")
def hostile() -> Iterator[Faulty]:
    with faulty(by_prompt(QUICK | LATE_ONES)) as found:
        yield found


@pytest.fixture(scope="module")
def calls(hostile: Faulty, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """Models "far" and "hasty", which gives its upstream half a second."""
    directory = tmp_path_factory.mktemp("hostile")
    own = {"url": hostile.url, "model": "far", "health_interval": 0.05, "retries": 0}
    hasty = {**own, "first_timeout": 0.5, "idle_timeout": 0.5}

    def start(name: str, options: dict[str, Any]) -> Any:
        llm_options = {"engine": "openai", "engine_options": options}
        return config(directory / "nothing", name, llm_options=llm_options)

    both = (start("far", own), start("hasty", hasty))
    with serving(directory, *both, use_status_codes=True) as found:
        yield found


@contextmanager
def living(calls: Calls) -> Iterator[None]:
    """The same workers are there at the end, no larger, and answer."""
    check_answer(calls)
    pids = sorted(workers(os.getpid()))
    before = [memory(pid) for pid in pids]
    yield
    check_answer(calls)
    assert sorted(workers(os.getpid())) == pids
    grown = [memory(pid) - old for pid, old in zip(pids, before, strict=True)]
    assert max(grown) < MOST_GROWTH


def check_answer(calls: Calls) -> None:
    status, answer = complete(calls, "Hello")
    assert (status, answer["choices"][0]["text"]) == (200, "Good day")


def complete(calls: Calls, prompt: str, model: str = "far", **body: Any) -> tuple[int, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": 8, **body}
    status, answer = calls.http_call("POST", "/v1/completions", json.dumps(body))
    return status, json.loads(answer) if answer.startswith(b"{") else answer


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
def test_a_worker_survives_any_answer_of_its_upstream(calls: Calls, is_stream: bool) -> None:
    with living(calls):
        for name in QUICK:
            status, answer = complete(calls, name, stream=is_stream)
            if status == 200:  # of a stream that had begun
                assert is_stream, name
                answer = json.loads(answer.split(b"data: ")[-1])
            else:
                assert status == 502, (name, answer)
            assert "the upstream http" in answer["error"]["message"], (name, answer)


def test_a_worker_outlives_an_upstream_that_dawdles(calls: Calls) -> None:
    with living(calls), ThreadPoolExecutor(len(LATE_ONES)) as pool:
        asked = {name: pool.submit(complete, calls, name, "hasty") for name in LATE_ONES}
        answers = {name: future.result() for name, future in asked.items()}
        assert {name: status for name, (status, _) in answers.items()} == dict.fromkeys(asked, 504)


@pytest.mark.parametrize("name", ["another protocol", "5000 digits", "half a character"])
def test_a_worker_outlives_a_list_of_models(calls: Calls, hostile: Faulty, name: str) -> None:
    def ready() -> int:
        return calls.http_call("GET", "/v2/models/far/ready")[0]

    with living(calls), pytest.MonkeyPatch.context() as patch:
        patch.setattr(hostile, "models", lambda: MODELS[name])
        eventually(lambda: ready() != 200)
        patch.undo()
        eventually(lambda: ready() == 200)


# --- the form of each protocol -------------------------------------------------------------------

Form = tuple[str, Callable[[str], dict[str, Any]], Callable[[Any, bool], object]]


def chat(prompt: str) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {"model": "far", "messages": [message], "max_tokens": 8, "stream": False}


def ollama_chat(prompt: str) -> dict[str, Any]:
    body = chat(prompt)
    options = {"num_predict": body.pop("max_tokens")}
    return {**body, "options": options}


def of_openai(answer: Any, _: bool) -> bool:
    return answer["error"]["type"] == "server_error" and bool(answer["error"]["message"])


def of_anthropic(answer: Any, is_late: bool) -> bool:
    kind = "timeout_error" if is_late else "api_error"
    return (answer["type"], answer["error"]["type"]) == ("error", kind)


def of_text(answer: Any, _: bool) -> bool:
    return set(answer) == {"error"} and "the upstream http" in answer["error"]


def of_tgi(answer: Any, _: bool) -> bool:
    return answer["error_type"] == "generation" and "the upstream http" in answer["error"]


def of_classic(answer: Any, _: bool) -> bool:
    return "the upstream http" in answer["error_msg"]


TENSOR = {"name": "text_input", "shape": [1], "datatype": "BYTES"}
PARAMETERS = {"max_new_tokens": 8}
FORMS: dict[str, Form] = {
    "completions": (
        "/v1/completions",
        lambda text: {"model": "far", "prompt": text, "max_tokens": 8},
        of_openai,
    ),
    "completions, stream": (
        "/v1/completions",
        lambda text: {"model": "far", "prompt": text, "max_tokens": 8, "stream": True},
        of_openai,
    ),
    "chat": ("/v1/chat/completions", chat, of_openai),
    "chat, stream": (
        "/v1/chat/completions",
        lambda text: {**chat(text), "stream": True},
        of_openai,
    ),
    "responses": (
        "/v1/responses",
        lambda text: {"model": "far", "input": text, "max_output_tokens": 8},
        of_openai,
    ),
    "anthropic": ("/v1/messages", chat, of_anthropic),
    "anthropic, stream": (
        "/v1/messages",
        lambda text: {**chat(text), "stream": True},
        of_anthropic,
    ),
    "ollama": (
        "/api/generate",
        lambda text: {
            "model": "far",
            "prompt": text,
            "raw": True,
            "stream": False,
            "options": {"num_predict": 8},
        },
        of_text,
    ),
    "ollama chat": ("/api/chat", ollama_chat, of_text),
    "ollama chat, stream": (
        "/api/chat",
        lambda text: {**ollama_chat(text), "stream": True},
        of_text,
    ),
    "tgi": ("/generate", lambda text: {"inputs": text, "parameters": PARAMETERS}, of_tgi),
    "llm-serving": (
        "/models/far/generate",
        lambda text: {"inputs": text, "parameters": {**PARAMETERS, "do_sample": False}},
        lambda answer, _: "the upstream http" in json.dumps(answer),
    ),
    "v2": (
        "/v2/models/far/infer",
        lambda text: {
            "inputs": [{**TENSOR, "data": [text]}],
            "parameters": {"max_tokens": 8},
        },
        of_text,
    ),
    "v2 generate": (
        "/v2/models/far/generate",
        lambda text: {"text_input": text, "max_tokens": 8},
        of_text,
    ),
    "classic": (
        "/model/far:generate",
        lambda text: {"instances": [{"prompt": text, "max_tokens": 8}]},
        of_classic,
    ),
}


@pytest.mark.parametrize("is_late", [False, True], ids=["failing", "late"])
@pytest.mark.parametrize("form", FORMS)
def test_the_failure_of_an_upstream_has_the_form_of(calls: Calls, form: str, is_late: bool) -> None:
    path, body, is_right = FORMS[form]
    sent = json.dumps(body(LATE if is_late else FAILING))
    status, answer = calls.http_call("POST", path, sent, {"Content-Type": "application/json"})
    assert status == (504 if is_late else 502), answer
    assert is_right(json.loads(answer), is_late), answer


@pytest.mark.parametrize("is_late", [False, True], ids=["failing", "late"])
@pytest.mark.parametrize("service", ["v2", "v2 stream", "classic", "classic stream"])
def test_the_failure_of_an_upstream_has_the_status_of_grpc(
    calls: Calls, service: str, is_late: bool
) -> None:
    text = LATE if is_late else FAILING
    code = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(calls.grpc) as channel:
        if service == "classic":
            client = calls.client("far", "generate")
            assert "the upstream http" in client.infer({"prompt": text, "max_tokens": 8})["error"]
            return
        if service == "classic stream":
            client = calls.client("far", "generate")
            (last,) = client.infer_stream({"prompt": text, "max_tokens": 8})
            assert "the upstream http" in last["error"]
            return
        request = pb.ModelInferRequest(model_name="far")
        sampling = json.dumps({"max_tokens": "8"})
        for name, value in (("text_input", text), ("sampling_parameters", sampling)):
            request.inputs.add(name=name, datatype="BYTES", shape=[1])
            data = len(value).to_bytes(4, "little") + value.encode()
            request.raw_input_contents.append(data)
        if service == "v2 stream":
            call = channel.stream_stream(f"/{V2_SERVICE}/ModelStreamInfer")
            (answer,) = call(iter([request.SerializeToString()]), timeout=PATIENCE)
            found = pb.ModelStreamInferResponse.FromString(answer)
            assert "the upstream http" in found.error_message
            return
        unary = channel.unary_unary(f"/{V2_SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            unary(request.SerializeToString(), timeout=PATIENCE)
        assert error.value.code() is code
