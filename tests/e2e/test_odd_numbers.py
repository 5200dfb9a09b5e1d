"""Numbers that no message between processes, no tensor and no float holds, in every field of every
protocol: refused or used, never a failure of the server.
"""

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from mindspore_serving.core.sampling_params import SAMPLING
from mindspore_serving.frontends.v2.service import SERVICE as V2_SERVICE
from mindspore_serving.proto import inference_pb2 as pb
from tests.e2e.described import described, document
from tests.e2e.harness import Calls, workers
from tests.e2e.number_slots import MARK, slots, with_number
from tests.waiting import PATIENCE

JSON = "application/json"
NUMBERS = (str(2**63), str(2**66), "1e400", "9" * 5000)
LEFT_OUT = ("/v2/logging",)  # what changes the server for others
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
FREE = {
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "schema": {"type": "integer", "minimum": MARK}}}},
    "a tool": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"a": {"type": "number", "maximum": MARK}}}}}]},
    "arguments": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
        "tool_calls": [{"id": "a", "type": "function", "function": {
            "name": "f", "arguments": '{"a": 73786976294838206464}'}}]}, CHAT["messages"][0]]},
    "a message": {"messages": [{"role": "user", "content": "a", "more": MARK}]},
    "a part": {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "a", "more": MARK}]}]},
    "a variable": {"chat_template_kwargs": {"a": MARK}},
    "metadata": {"metadata": {"a": MARK}},
    "an unknown field": {"what_is_this": {"a": [MARK]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    with described(tmp_path_factory.mktemp("numbers"), use_status_codes=True) as found:
        yield found


def operations(calls: Calls) -> Iterator[tuple[str, Any, Any]]:
    """The path, the schema and an example of each request with a body."""
    whole = document(calls)
    known = []
    for path, verbs in whole["paths"].items():
        content = verbs.get("post", {}).get("requestBody", {}).get("content", {}).get(JSON, {})
        if "example" not in content or "{" in path or path in LEFT_OUT:
            continue
        if content["schema"] not in known:  # else it is the same body
            known.append(content["schema"])
            yield path, content["schema"], content["example"]


class Post:
    """Sends bodies over one connection."""

    def __init__(self, calls: Calls) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=PATIENCE)

    def __call__(self, path: str, body: bytes) -> tuple[int, bytes]:
        self._connection.request("POST", path, body, {"Content-Type": JSON})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def post(calls: Calls) -> Iterator[Post]:
    """The workers are the same at the end."""
    pids = sorted(workers(os.getpid()))
    with closing(Post(calls)) as found:
        yield found
    assert sorted(workers(os.getpid())) == pids


def test_no_number_in_a_field_is_a_failure_of_the_server(calls: Calls, post: Post) -> None:
    whole, failed, names = document(calls), [], set()
    for path, schema, example in operations(calls):
        for at in filter(None, dict.fromkeys(slots(schema, whole))):
            names.add(at[0])
            for number in NUMBERS:
                status, answer = post(path, with_number(example, at, number))
                if status >= 500 and status != 501:
                    failed.append((path, at, number[:20], status, answer[:200]))
    assert failed == []
    rows = [row for row in SAMPLING.values() if row.kind in (int, float)]
    assert {row.aliases["openai"] for row in rows} - {None} <= names


@pytest.mark.parametrize("form", FREE)
def test_numbers_in_free_form_fields_never_fail_the_server(post: Post, form: str) -> None:
    for number in NUMBERS:
        body = json.dumps({**CHAT, **FREE[form]}).replace(f'"{MARK}"', number)
        status, answer = post("/v1/chat/completions", body.encode())
        assert status in (200, 400, 422), answer


@pytest.mark.parametrize("number", NUMBERS, ids=len)
def test_no_number_in_a_parameter_over_grpc_is_a_failure_of_the_server(
    calls: Calls, post: Post, number: str
) -> None:
    codes = {}
    with grpc.insecure_channel(calls.grpc) as channel:
        unary = channel.unary_unary(f"/{V2_SERVICE}/ModelInfer")
        for name in SAMPLING:
            request = pb.ModelInferRequest(model_name="chatty")
            for field, value in (
                ("text_input", "a"),
                ("sampling_parameters", json.dumps({"max_tokens": "2", name: number})),
            ):
                request.inputs.add(name=field, datatype="BYTES", shape=[1])
                data = len(value).to_bytes(4, "little") + value.encode()
                request.raw_input_contents.append(data)
            call = unary.future(request.SerializeToString(), timeout=PATIENCE)
            codes[name] = call.code()
    wrong = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
    assert not wrong & set(codes.values()), codes


@pytest.mark.parametrize("number", NUMBERS, ids=len)
def test_no_number_in_a_parameter_of_a_method_is_a_failure_of_the_server(
    post: Post, number: str
) -> None:
    for name in SAMPLING:
        instance = {"prompt": "a", "parameters": f'{{"max_tokens": 2, "{name}": {number}}}'}
        body = json.dumps({"instances": [instance]}).encode()
        status, answer = post("/model/chatty:generate", body)
        assert status in (200, 400), (name, answer)
