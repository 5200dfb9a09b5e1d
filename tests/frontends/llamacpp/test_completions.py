"""/completion and /infill in llama.cpp's form."""

from collections.abc import Iterator
from typing import Any

import pytest

from mindspore_serving.core.llm_messages import Chunk, Refused
from tests.frontends.mounting import llamacpp_routes
from tests.frontends.openai.serving import Answer, Web, serving, spoken, whole


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serving(llamacpp_routes) as running:
        yield running


def infill(web: Web, **fields: Any) -> Answer:
    return web.call("POST", "/infill", {"input_prefix": "a", "input_suffix": "b", **fields})


def complete(web: Web, **fields: Any) -> Answer:
    return web.call("POST", "/completion", {"prompt": "abc", **fields})


@pytest.fixture(autouse=True)
def says_two_lines(web: Web) -> None:
    web.says(*spoken("x", "\n"), num_prompt=5)


def test_infill_sends_prefix_suffix_and_files(web: Web) -> None:
    files = [{"filename": "m.py", "text": "one"}, {"text": "two"}]
    assert infill(web, prompt="c", input_extra=files).status == 200
    sent = web.sent
    assert (sent.prompt, sent.suffix) == ("ac", "b")
    assert [tuple(file) for file in sent.files] == [("m.py", "one"), ("tmp", "two")]


def test_an_empty_suffix_is_a_suffix(web: Web) -> None:
    infill(web, input_suffix="")
    assert web.sent.suffix == ""


def test_answer_has_text_counts_and_the_reason_of_its_end(web: Web) -> None:
    answer = infill(web, return_tokens=True).json
    assert (answer["content"], answer["stop"], answer["stop_type"]) == ("x\n", True, "eos")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (3, 5)
    assert (answer["tokens"], answer["has_new_line"]) == ([ord("x"), ord("\n"), 2], True)
    assert (answer["timings"]["prompt_n"], answer["timings"]["cache_n"]) == (4, 1)


def test_stop_type_names_the_limit_or_the_stop_text(web: Web) -> None:
    web.says(Chunk(0, "x", (1,), None, "length"))
    assert complete(web).json["stop_type"] == "limit"
    web.says(Chunk(0, "x", (1,), None, "stop", "end"))
    answer = complete(web, stop="end").json
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "end")
    assert list(web.sent.params.stop) == ["end"]


def test_stream_ends_with_an_event_that_stops(web: Web) -> None:
    chunks = infill(web, stream=True).chunks
    assert [(chunk["content"], chunk["stop"]) for chunk in chunks] == [
        ("x", False),
        ("\n", False),
        ("", True),
    ]
    assert chunks[0]["tokens"] == [ord("x")]
    assert (chunks[-1]["tokens_predicted"], chunks[-1]["model"]) == (3, "toy")


def test_response_fields_are_all_that_is_answered(web: Web) -> None:
    answer = complete(web, response_fields=["content", "timings/prompt_n", "no/such"]).json
    assert answer == {"content": "x\n", "timings/prompt_n": 4}


def test_sampling_parameters_have_their_names(web: Web) -> None:
    complete(web, n_predict=3, repeat_penalty=1.5, top_k=4, seed=-1, min_p=0.5)
    params = web.sent.params
    assert (params.max_tokens, params.repetition_penalty, params.top_k) == (3, 1.5, 4)
    assert (params.seed, params.min_p) == (None, 0.5)
    complete(web, n_predict=-1)
    assert web.sent.params.max_tokens is None


def test_no_tokens_to_predict_only_reads_the_prompt(web: Web) -> None:
    answer = infill(web, n_predict=0).json
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert web.sent.params.max_tokens == 1


def test_biases_are_pairs_and_false_bans_a_token(web: Web) -> None:
    complete(web, logit_bias=[[5, 1.5], [6, False]])
    assert web.sent.params.logit_bias == {5: 1.5, 6: -1e9}


@pytest.mark.parametrize(
    "given", [[["Hello", -1], [5, 2], ["x", False]], {"Hello": -1, "5": 2, "x": False}]
)
def test_biases_may_name_texts(web: Web, given: Any) -> None:
    complete(web, logit_bias=given)
    params = web.sent.params
    assert (params.text_bias, params.logit_bias) == ({"Hello": -1.0, "x": -1e9}, {5: 2.0})


def test_json_schema_constrains_the_answer(web: Web) -> None:
    complete(web, json_schema={"type": "integer"})
    assert (web.sent.grammar.kind, web.sent.grammar.source) == (
        "json_schema",
        '{"type":"integer"}',
    )


def test_grammar_of_llama_cpp_constrains_the_answer(web: Web) -> None:
    complete(web, grammar='root ::= "a"')
    assert (web.sent.grammar.kind, web.sent.grammar.source) == ("gbnf", 'root ::= "a"')
    answer = complete(web, grammar='root ::= "a"', json_schema={})
    assert (answer.status, answer.error["param"]) == (400, "json_schema")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n_probs": 3}, "n_probs"), ({"n_predict": "x"}, "n_predict"), ({"top_p": 2}, "top_p")],
)
def test_wrong_field_is_named(web: Web, fields: Any, param: str) -> None:
    answer = complete(web, **fields)
    assert (answer.status, answer.error["param"]) == (400, param)


def test_model_that_cannot_fill_in_gets_400(web: Web) -> None:
    web.inference.script = lambda request: [Refused("input", "suffix is set, but", field="suffix")]
    answer = infill(web)
    assert (answer.status, answer.error["param"]) == (400, "input_suffix")
    assert answer.error["message"].startswith("input_suffix is set")


def test_failure_ends_a_stream_with_an_error(web: Web) -> None:
    web.inference.script = lambda request: whole(Chunk(0, "", (), None, "error", "broken"))
    assert "broken" in complete(web, stream=True).chunks[-1]["error"]["message"]


def test_unknown_fields_are_named_in_a_header(web: Web) -> None:
    assert complete(web, nonsense=3, cache_prompt=True).headers["x-ignored-fields"] == "nonsense"
