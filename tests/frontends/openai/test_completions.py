"""Completions: the forms of prompts, echo, log-probabilities, several choices, streams."""

import pytest

from mindspore_serving.core.llm_messages import Chunk, Finished, PromptScored, Started
from tests.frontends.openai.serving import all_sent, spoken, token


def piece(text, *, index=0, reason="stop", tokens=None):
    return Chunk(index, text, tuple(ord(char) for char in text), tokens, reason)


def test_an_answer_is_an_object_with_text_and_usage(web):
    web.says(piece("de"), num_prompt=5, num_generated=3)
    found = web.complete(model="toy").json
    assert found.pop("id").startswith("cmpl-")
    assert found.pop("system_fingerprint").startswith("fp_")
    assert found.pop("created") > 1_700_000_000
    assert found == {
        "object": "text_completion",
        "model": "toy",
        "choices": [{"index": 0, "text": "de", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 1},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }


def test_tokens_that_the_engine_guessed_are_predictions(web):
    ended = Finished(3, 0, 9, num_draft_tokens=7, num_accepted_tokens=5)
    web.inference.script = lambda request: [Started(3, 7), piece("z"), ended]
    assert web.complete().json["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 2,
    }


def test_a_stream_is_these_bytes(web):
    web.says(*spoken("d", "\u00e9"))
    answer = web.complete(stream=True, stream_options={"include_usage": True})
    first = answer.chunks[0]
    head = (
        f'{{"id":"{first["id"]}","object":"text_completion","created":{first["created"]},'
        f'"model":"toy","system_fingerprint":"{first["system_fingerprint"]}","choices":['
    )
    usage = (
        '"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,'
        '"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":'
        '{"reasoning_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}'
    )
    rest = [
        '{"index":0,"text":"d","logprobs":null,"finish_reason":null}],"usage":null}',
        '{"index":0,"text":"\u00e9","logprobs":null,"finish_reason":null}],"usage":null}',
        '{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}',
        f"],{usage}",
    ]
    expected = "".join(f"data: {head}{end}\n\n" for end in rest) + "data: [DONE]\n\n"
    assert answer.body.decode() == expected


def test_sixteen_tokens_are_the_default_of_a_completion(web):
    web.complete()
    assert web.sent.params.max_tokens == 16
    web.complete(max_tokens=20)
    assert web.sent.params.max_tokens == 20


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ([""], [""]),
    ],
)
def test_a_prompt_has_four_forms(web, given, expected):
    answer = web.complete(prompt=given)
    assert answer.status == 200
    assert [request.prompt for request in all_sent(web)] == expected
    assert [choice["index"] for choice in answer.json["choices"]] == list(range(len(expected)))
    assert answer.json["usage"]["prompt_tokens"] == 3 * len(expected)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "prompt is []"),
        (["a", 1], 'prompt is ["a",1]'),
        ([[1], "a"], 'prompt is [[1],"a"]'),
        ([[1, "a"]], 'prompt[0][1] is "a", expected an integer'),
        ([300], "token id 300, expected 0 to 299"),
        ([[5], [-1]], "token id -1, expected 0 to 299"),
        (["a"] * 13, "prompt has 13 prompts, expected at most 12"),
        (None, "prompt is null"),
        ({}, "prompt is {}, expected an array or a string"),
    ],
)
def test_other_forms_are_refused(web, given, told):
    answer = web.complete(prompt=given)
    assert answer.status == 400
    assert told in answer.error["message"].replace("a string or an array", "an array or a string")
    assert answer.error["param"].startswith("prompt")
    assert all_sent(web) == []


def test_choices_are_numbered_prompt_by_prompt(web):
    web.inference.script = lambda request: [
        Started(1, 0),
        piece(request.prompt + "1", index=1),
        piece(request.prompt + "0"),
        Finished(1, 0, 2),
    ]
    choices = web.complete(prompt=["a", "b"], n=2).json["choices"]
    assert [(one["index"], one["text"]) for one in choices] == [
        (0, "a0"),
        (1, "a1"),
        (2, "b0"),
        (3, "b1"),
    ]


def test_streams_of_several_prompts_are_merged_as_they_come(web):
    web.inference.script = lambda request: None
    import threading

    def speak():
        web.inference.wait(lambda: len(web.inference.calls) == 2)
        first, second = web.inference.calls
        for call in (first, second):
            call.say([Started(2, 0)], is_last=False)
        second.say([Chunk(1, "y", (121,))], is_last=False)
        first.say([Chunk(0, "x", (120,)), piece("", index=0)], is_last=False)
        second.say([piece("", index=1), piece("z"), Finished(2, 0, 3)])
        first.say([piece("w", index=1), Finished(2, 0, 3)])

    speaker = threading.Thread(target=speak)
    speaker.start()
    answer = web.complete(
        prompt=["a", "b"], n=2, stream=True, stream_options={"include_usage": True}
    )
    speaker.join()
    *chunks, last = answer.chunks
    told = {}
    for choice in (chunk["choices"][0] for chunk in chunks):
        told.setdefault(choice["index"], []).append((choice["text"], choice["finish_reason"]))
    assert told == {
        0: [("x", None), ("", "stop")],
        1: [("w", "stop")],
        2: [("z", "stop")],
        3: [("y", None), ("", "stop")],
    }
    assert last["usage"]["total_tokens"] == 10


LETTERS = [token("d", -0.5, token("x", -0.25)), token("\u00e9", -1.0, token("\u00e9", -1.0))]


def test_logprobs_are_lists_by_token(web):
    web.says(piece("d\u00e9", tokens=tuple(LETTERS)))
    assert web.complete(logprobs=1).json["choices"][0]["logprobs"] == {
        "tokens": ["d", "\u00e9"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"x": -0.25, "d": -0.5}, {"\u00e9": -1.0}],
        "text_offset": [0, 1],
    }
    assert (web.sent.params.logprobs, web.sent.params.prompt_logprobs) == (1, None)


def test_parts_of_characters_have_names_and_the_offset_of_their_character(web):
    parts = (
        token("a", -1.0),
        token("\ufffd", -2.0, data=b"\xe2\x82"),
        token("\ufffd", -3.0, data=b"\xac"),
        token("b", -4.0),
    )
    web.says(piece("a\u20acb", tokens=parts))
    logprobs = web.complete(logprobs=0).json["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xe2\\x82", "bytes:\\xac", "b"]
    assert logprobs["text_offset"] == [0, 1, 1, 2]


def test_special_tokens_take_no_room_in_the_text(web):
    parts = (token("<s>", -1.0, is_special=True), token("a", -1.0), token("b", -1.0))
    web.says(piece("ab", tokens=parts))
    assert web.complete(logprobs=0).json["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1]
    web.complete(logprobs=0, skip_special_tokens=False)
    found = web.complete(logprobs=0, skip_special_tokens=False).json["choices"][0]["logprobs"]
    assert found["text_offset"] == [0, 3, 4]


@pytest.mark.parametrize("count", [-1, 6])
def test_more_than_five_logprobs_are_refused(web, count):
    answer = web.complete(logprobs=count)
    assert (answer.status, answer.error["param"]) == (400, "logprobs")
    assert f"logprobs is {count}, expected 0 to 5" in answer.error["message"]


PROMPT = (token("a"), token("b", -2.0, token("b", -2.0)), token("c", -3.0, token("q", -0.5)))


def scored_script(request):
    answer = piece("d", tokens=(LETTERS[0],) if request.has_tokens else None, reason="length")
    begun = Started(3, 0, PROMPT if request.has_prompt_tokens else None)
    scored = (
        [PromptScored(PROMPT[:2]), PromptScored(PROMPT[2:])]
        if request.params.prompt_logprobs is not None
        else []
    )
    return [begun, *scored, answer, Finished(3, 0, 1)]


def test_the_form_of_loglikelihoods_scores_prompt_and_answer(web):
    web.inference.script = scored_script
    body = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    found = web.complete(prompt=[[97, 98, 99], [97, 98, 99]], **body).json["choices"]
    assert [choice["text"] for choice in found] == ["abcd", "abcd"]
    assert found[0]["logprobs"] == found[1]["logprobs"]
    assert found[0]["logprobs"] == {
        "tokens": ["a", "b", "c", "d"],
        "token_logprobs": [None, -2.0, -3.0, -0.5],
        "top_logprobs": [None, {"b": -2.0}, {"q": -0.5, "c": -3.0}, {"x": -0.25, "d": -0.5}],
        "text_offset": [0, 1, 2, 3],
    }
    assert (web.sent.params.prompt_logprobs, web.sent.params.logprobs) == (1, 1)


def test_a_text_prompt_is_echoed_unchanged(web):
    web.inference.script = scored_script
    assert web.complete(prompt="A  b", echo=True).json["choices"][0]["text"] == "A  bd"
    assert not web.sent.has_prompt_tokens
    cut = web.complete(prompt="A  abc", echo=True, truncate_prompt_tokens=3)
    assert cut.json["choices"][0]["text"] == "abcd"


def test_an_echo_alone_generates_nothing_that_is_seen(web):
    web.inference.script = scored_script
    found = web.complete(prompt=[97, 98, 99], max_tokens=0, echo=True, logprobs=0).json
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -2.0, -3.0]
    assert (found["usage"]["completion_tokens"], found["usage"]["total_tokens"]) == (0, 3)
    chunks = web.complete(prompt="abc", max_tokens=0, echo=True, stream=True).chunks
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abc", ""]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_no_tokens_without_echo_are_refused(web):
    answer = web.complete(max_tokens=0)
    assert (answer.status, answer.error["param"]) == (400, "max_tokens")


def test_an_echo_begins_the_stream_of_each_choice(web):
    def script(request):
        first, *rest = scored_script(request)[:-2]
        answers = [piece("d", index=i, tokens=(LETTERS[0],)) for i in (1, 0)]
        return [first, *rest, *answers, Finished(3, 0, 2)]

    web.inference.script = script
    chunks = web.complete(prompt="abc", echo=True, logprobs=1, n=2, stream=True).chunks
    told = [(c["choices"][0]["index"], c["choices"][0]["text"]) for c in chunks]
    assert told == [(0, "abc"), (1, "abc"), (1, "d"), (0, "d")]
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks]
    assert offsets == [[0, 1, 2], [0, 1, 2], [3], [3]]


def test_best_of_keeps_the_likeliest(web):
    answers = [
        piece("long", index=0, tokens=(token("l", -1.0), token("o", -1.0))),
        piece("good", index=1, tokens=(token("g", -0.5), token("o", -0.5), token("d", -0.5))),
        piece("bad", index=2, tokens=(token("b", -9.0),)),
    ]
    web.says(*answers)
    choices = web.complete(n=2, best_of=3).json["choices"]
    assert [(one["index"], one["text"], one["logprobs"]) for one in choices] == [
        (0, "good", None),
        (1, "long", None),
    ]
    assert (web.sent.params.n, web.sent.params.logprobs) == (3, 0)


@pytest.mark.parametrize("extra", [{"n": 2, "best_of": 1}, {"best_of": 129}])
def test_a_wrong_best_of_is_refused(web, extra):
    answer = web.complete(**extra)
    assert (answer.status, answer.error["param"]) == (400, "best_of")


def test_a_stream_cannot_choose_the_best(web):
    assert web.complete(best_of=2, stream=True).error["param"] == "best_of"
    assert web.complete(n=2, best_of=2, stream=False).status == 200


def test_suffix_is_the_text_behind_the_answer(web):
    assert web.complete(prompt="def f(", suffix="return x").status == 200
    assert (web.sent.prompt, web.sent.suffix) == ("def f(", "return x")
    web.complete()
    assert web.sent.suffix is None


def test_special_tokens_around_the_prompt_can_be_left_out(web):
    web.complete(add_special_tokens=False)
    assert web.sent.add_special is False
    web.complete()
    assert web.sent.add_special is True
