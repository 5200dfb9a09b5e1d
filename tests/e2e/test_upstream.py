"""A second server of ours as the upstream of the first: every protocol in front, real sockets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.llm import LLM, SamplingParams
from tests.e2e.harness import Calls, Script, config, eventually, serving
from tests.e2e.test_language_protocols import COUNT, PROMPT, PROTOCOLS
from tests.llm import chatty
from tests.ports import free_port

KEY, VARIABLE = "the-key-of-the-upstream", "UPSTREAM_TEST_KEY"
START = """
from mindspore_serving import server
options = {{"dtype": "f32", "kv_cache_memory": 64 << 20}}
there = server.ServableStartConfig({directory!r}, "chatty", alias="far", num_parallel_workers=1,
                                   llm_options=options)
server.start_servables(there)
server.start_restful_server("127.0.0.1:{port}", api_keys=[{key!r}])
print("It serves", flush=True)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("upstream")
    chatty.build(directory, context=65_536)
    return directory


@pytest.fixture(scope="module")
def far(place: Path) -> Iterator[Calls]:
    """The server behind."""
    port = free_port()
    path = place / "server.py"
    path.write_text(START.format(directory=str(place), port=port, key=KEY))
    script = Script(path)
    try:
        script.says("It serves")
        yield Calls("", port)
    finally:
        script.end()


@pytest.fixture(scope="module")
def calls(far: Calls, place: Path) -> Iterator[Calls]:
    """The server in front: "chatty" may ask for all that ours can, "strict" for OpenAI's alone."""
    url = f"http://127.0.0.1:{far.http}/v1"
    own = {"url": url, "key_variable": VARIABLE, "health_interval": 0.1}

    def start(name: str, **options: Any) -> Any:
        llm_options = {"engine": "openai", "engine_options": {**own, **options}}
        return config(place / "nothing", name, llm_options=llm_options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        strict = start("strict", model="far")
        with serving(place, start("chatty", dialect="ours"), strict) as found:
            yield found


@pytest.fixture(scope="module")
def text(place: Path) -> str:
    """What the model says to PROMPT offline, greedily."""
    with LLM(place / "chatty", dtype="f32", kv_cache_memory=8 << 20) as llm:
        params = SamplingParams(max_tokens=COUNT, temperature=0)
        return llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].text


def ask(calls: Calls, path: str, **body: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {KEY}"}
    status, answer = calls.http_call("POST", path, json.dumps(body), headers)
    return status, json.loads(answer)


def test_every_protocol_gives_the_text_of_the_upstream(calls: Calls, text: str) -> None:
    assert {ask.__name__: ask(calls) for ask in PROTOCOLS} == {
        ask.__name__: text for ask in PROTOCOLS
    }


@pytest.mark.parametrize(
    "options",
    [
        {"logprobs": True, "top_logprobs": 2},
        {"n": 3, "temperature": 1.5, "seed": 7, "top_p": 1},
        {"stop": ["e"]},
        {"response_format": {"type": "json_object"}},
        {"presence_penalty": 1.5, "logit_bias": {"40": 5}},
    ],
    ids=str,
)
def test_a_chat_is_answered_as_by_the_upstream_itself(
    calls: Calls, far: Calls, options: dict[str, Any]
) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, **options}
    status, there = ask(far, "/v1/chat/completions", model="far", **body)
    assert status == 200, there
    for name in ("chatty", "strict"):
        status, here = ask(calls, "/v1/chat/completions", model=name, **body)
        assert status == 200, here
        assert here["choices"] == there["choices"]
        for count in ("prompt_tokens", "completion_tokens"):
            assert here["usage"][count] == there["usage"][count]


def test_calls_of_tools_go_both_ways(calls: Calls, far: Calls) -> None:
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Nothing"},
        {"role": "user", "content": "Look again"},
    ]
    body = {"messages": messages, "tools": [{"type": "function", "function": function}]}
    body |= {"tool_choice": "required", "max_tokens": 60, "temperature": 0}
    answers = [
        ask(server, "/v1/chat/completions", model=name, **body)
        for server, name in ((far, "far"), (calls, "strict"))
    ]
    there, here = (dict(answer["choices"][0]) for _, answer in answers)
    for one in (there, here):
        for made in one["message"].get("tool_calls", ()):
            made.pop("id")  # each server gives its own
    assert here == there


def test_parameters_unknown_to_the_upstream_are_refused_by_name(calls: Calls) -> None:
    chat = {"model": "strict", "messages": [{"role": "user", "content": "Hello"}]}
    status, answer = ask(calls, "/v1/chat/completions", **chat, top_k=5)
    assert (status, answer["error"]["param"]) == (400, "top_k")
    assert "dialect openai" in answer["error"]["message"]
    status, answer = ask(calls, "/v1/messages", **chat, max_tokens=4, top_k=5)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert "top_k" in answer["error"]["message"]
    status, answer = ask(calls, "/api/chat", **chat, stream=False, options={"min_p": 0.5})
    assert status == 400
    assert "min_p" in answer["error"]
    status, answer = ask(
        calls, "/v1/completions", model="chatty", prompt="a", echo=True, logprobs=1
    )
    assert (status, answer["error"]["param"]) == (400, "echo")


def test_refusals_of_the_upstream_are_passed_on(calls: Calls) -> None:
    long = [5] * 70_000
    status, answer = ask(calls, "/v1/completions", model="strict", prompt=long, max_tokens=4)
    assert status == 400
    assert "the prompt has 70000 tokens" in answer["error"]["message"]


def test_a_client_that_leaves_frees_the_upstream(calls: Calls, far: Calls) -> None:
    def running() -> int:
        headers = {"Authorization": f"Bearer {KEY}"}
        (row,) = json.loads(far.http_call("GET", "/servables", headers=headers)[1])["servables"]
        return int(row["requests"]["running"])

    client = calls.client("chatty", "generate")
    options = {"max_tokens": 60_000, "parameters": '{"ignore_eos": true}'}
    pieces = client.infer_stream({"prompt": "Hello", **options})
    next(pieces)
    eventually(lambda: running() == 1)
    pieces.close()
    eventually(lambda: running() == 0)
