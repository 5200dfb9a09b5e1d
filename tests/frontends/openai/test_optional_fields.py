"""Fields that other servers have, and that change the answer: they are followed, or refused."""

import pytest

from mindspore_serving.core.llm_messages import Chunk, Finished, PromptScored, Started
from tests.frontends.openai.serving import spoken, token, whole

SAID = {"role": "assistant", "content": "Once"}
ASKED = [{"role": "user", "content": "Tell!"}, SAID]
PROMPT = (token("a"), token("b", -0.5, token("x", -0.25), token("b", -0.5)))
SCORED = [
    None,
    {
        "120": {"logprob": -0.25, "rank": 1, "decoded_token": "x"},
        "98": {"logprob": -0.5, "rank": 2, "decoded_token": "b"},
    },
]


def asked(web, **fields):
    return web.call("POST", "/v1/chat/completions", {"messages": ASKED, **fields})


def test_template_fields_reach_the_chat_template(web):
    asked(web, continue_final_message=True, add_generation_prompt=False, documents=[{"a": 1}])
    assert web.sent.template_options == {
        "continue_final_message": True,
        "add_generation_prompt": False,
        "documents": [{"a": 1}],
    }


def test_echo_puts_the_last_message_before_the_answer(web):
    web.says(*spoken(" upon"))
    (choice,) = asked(web, echo=True).json["choices"]
    assert choice["message"]["content"] == "Once upon"
    (choice,) = web.chat(echo=True).json["choices"]  # the user has said the last
    assert choice["message"]["content"] == " upon"


def test_an_echo_is_streamed_first(web):
    web.says(*spoken(" upon"))
    deltas = [one["choices"][0]["delta"] for one in asked(web, echo=True, stream=True).chunks]
    assert [one.get("content") for one in deltas[:3]] == ["", "Once", " upon"]


def with_prompt(*events):
    return [Started(2, 7, PROMPT), PromptScored(PROMPT), *events, Finished(2, 0, 2)]


def test_token_ids_are_returned_on_request(web):
    web.inference.script = lambda request: with_prompt(Chunk(0, "H", (72, 2), (), "stop"))
    answer = web.chat(return_token_ids=True).json
    assert answer["prompt_token_ids"] == [97, 98]
    assert answer["choices"][0]["token_ids"] == [72, 2]
    assert answer["choices"][0]["logprobs"] is None
    assert web.sent.has_prompt_tokens
    assert web.sent.has_tokens
    (choice,) = web.complete(return_token_ids=True).json["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([97, 98], [72, 2])
    assert "token_ids" not in web.chat().json["choices"][0]


def test_token_ids_are_streamed(web):
    web.inference.script = lambda request: with_prompt(
        Chunk(0, "H", (72,), ()), Chunk(0, "", (105,), ()), Chunk(0, "i", (33, 2), (), "stop")
    )
    first, *rest = web.chat(return_token_ids=True, stream=True).chunks
    assert first["prompt_token_ids"] == [97, 98]
    ids = [one["choices"][0]["token_ids"] for one in rest]
    assert sum(ids, []) == [72, 105, 33, 2]
    chunks = [one["choices"][0] for one in web.complete(return_token_ids=True, stream=True).chunks]
    assert chunks[0]["prompt_token_ids"] == [97, 98]
    ids = [one.get("token_ids", []) for one in chunks]
    assert sum(ids, []) == [72, 105, 33, 2]


def test_prompt_logprobs_are_returned_on_request(web):
    web.inference.script = lambda request: with_prompt(*spoken("Hi"))
    assert web.chat(prompt_logprobs=2).json["prompt_logprobs"] == SCORED
    assert web.sent.params.prompt_logprobs == 2
    (choice,) = web.complete(prompt_logprobs=2).json["choices"]
    assert choice["prompt_logprobs"] == SCORED
    assert "prompt_logprobs" not in web.chat().json


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt_logprobs": 21}, "expected 0 to 20"),
        ({"prompt_logprobs": -1}, "expected 0 to 20"),
        ({"prompt_logprobs": 1, "stream": True}, "expected no stream with it"),
    ],
)
def test_prompt_logprobs_are_limited(web, fields, says):
    for answer in (web.chat(**fields), web.complete(**fields)):
        assert (answer.status, answer.error["param"]) == (400, "prompt_logprobs")
        assert says in answer.error["message"]


def test_chat_template_needs_the_servers_permission(web):
    answer = web.chat(chat_template="{{ messages }}")
    assert (answer.status, answer.error["param"]) == (400, "chat_template")
    assert "--allow-chat-template" in answer.error["message"]
    assert not web.inference.calls
    assert web.chat(chat_template=None).status == 200


def test_answer_in_chunks_has_the_ids_of_all_chunks(web):
    web.inference.script = lambda request: whole(
        Chunk(0, "H", (72,)), Chunk(0, "i", (105, 2), None, "stop")
    )
    (choice,) = web.chat(return_token_ids=True).json["choices"]
    assert choice["token_ids"] == [72, 105, 2]
