"""What is served, by name; texts as tokens and back."""

import pytest
from msgspec.structs import replace

from mindspore_serving.core.llm_messages import Detokenized, Refused, Tokenized
from mindspore_serving.core.reading_messages import TokenizerDescribed
from tests.frontends.openai.serving import token


def test_models_and_their_adapters_are_listed(web):
    found = web.call("GET", "/v1/models").json
    assert found["object"] == "list"
    assert found["data"][0] == {
        "id": "toy",
        "object": "model",
        "created": 1700000000,
        "owned_by": "mindspore-serving",
        "max_model_len": 128,
        "root": "toy",
        "parent": None,
        "default_max_tokens": None,
        "suggested_max_tokens": 128,
    }
    assert [(one["id"], one["parent"]) for one in found["data"][1:]] == [
        ("tuned", "toy"),
        ("vectors", None),
    ]


def test_a_model_has_the_sampling_of_requests_without_any(web):
    sampling = (("temperature", 0.7), ("top_k", 0))
    web.control.card = replace(
        web.control.card, sampling=sampling, sampling_source="server", default_max_tokens=50
    )
    found = web.call("GET", "/v1/models/toy").json
    assert found["default_sampling"] == {"temperature": 0.7, "top_k": 0}
    assert found["sampling_source"] == "server"
    assert (found["default_max_tokens"], found["suggested_max_tokens"]) == (50, 50)


def test_a_model_that_only_embeds_has_no_sampling(web):
    web.control.card = replace(web.control.card, can_generate=False, sampling=(("top_k", 7),))
    found = web.call("GET", "/v1/models/toy").json
    assert not {"default_sampling", "default_max_tokens", "suggested_max_tokens"} & {*found}


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
def test_adapters_cannot_be_loaded_without_permission(web, path):
    body = {"lora_name": "new", "lora_path": "/adapters/new"}
    answer = web.call("POST", path, body)
    assert (answer.status, answer.error["type"]) == (403, "invalid_request_error")


def test_a_model_is_found_by_its_whole_name(web):
    assert web.call("GET", "/v1/models/toy").json["id"] == "toy"
    answer = web.call("GET", "/v1/models/org/toy")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert "'org/toy'" in answer.error["message"]


def test_a_name_may_have_slashes(web):
    web.control.language_models = lambda: [("org/model", 1, web.control.card)]
    assert web.call("GET", "/v1/models/org/model").json["id"] == "org/model"


TOKENS = Tokenized("ab", (token("a"), token("b")), ((0, 1), (1, 2)))


def test_a_tokenizer_is_described(web):
    web.answers(TokenizerDescribed('{"tokenizer_class": "T"}'))
    answer = web.call("GET", "/tokenizer_info?model=tuned")
    assert (answer.status, answer.json) == (200, {"tokenizer_class": "T"})


@pytest.mark.parametrize(
    ("refused", "path", "status"),
    [
        (None, "/tokenizer_info?model=none", 404),
        (Refused("input", "the model has no tokenizer"), "/tokenizer_info", 400),
    ],
)
def test_a_tokenizer_that_is_not_there_is_an_error_of_openais_form(web, refused, path, status):
    web.answers(refused)
    answer = web.call("GET", path)
    assert (answer.status, answer.error["param"]) == (status, "model" if refused is None else None)


def test_a_text_is_tokenized(web):
    web.answers(TOKENS)
    answer = web.call("POST", "/tokenize", {"model": "toy", "prompt": "ab"})
    assert answer.json == {
        "count": 2,
        "max_model_len": 128,
        "tokens": [97, 98],
        "token_strs": None,
    }
    assert (web.sent.prompt, web.sent.messages, web.sent.add_special) == ("ab", None, True)
    body = {"prompt": "ab", "add_special_tokens": False, "return_token_strs": True}
    assert web.call("POST", "/tokenize", body).json["token_strs"] == ["a", "b"]
    assert web.sent.add_special is False


def test_a_chat_is_tokenized_with_its_template(web):
    web.answers(TOKENS)
    body = {"messages": [{"role": "developer", "content": "x"}], "add_generation_prompt": False}
    assert web.call("POST", "/tokenize", body).status == 200
    assert web.sent.messages == [{"role": "system", "content": "x"}]
    assert web.sent.template_options == {"add_generation_prompt": False}


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": []}])
def test_tokenize_needs_either_prompt_or_messages(web, body):
    answer = web.call("POST", "/tokenize", body)
    assert (answer.status, answer.error["param"]) == (400, "prompt")


def test_tokens_are_text(web):
    web.answers(Detokenized("ab"))
    assert web.call("POST", "/detokenize", {"tokens": [97, 98]}).json == {"prompt": "ab"}
    assert web.sent.token_ids == [97, 98]
    assert web.call("POST", "/detokenize", {"tokens": []}).json == {"prompt": "ab"}


def test_tokens_the_model_does_not_have_are_refused(web):
    answer = web.call("POST", "/detokenize", {"tokens": [97, 300]})
    assert (answer.status, answer.error["param"]) == (400, "tokens")


def test_a_refusal_names_the_field(web):
    web.answers(Refused("template", "no template"))
    answer = web.call("POST", "/tokenize", {"messages": [{"role": "user", "content": "x"}]})
    assert (answer.status, answer.error["param"]) == (400, "messages")
