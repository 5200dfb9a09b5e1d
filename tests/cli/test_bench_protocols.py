"""What `bench` reads from answers, however they are cut into pieces."""

import json

import pytest

from mindspore_serving.cli import bench_protocols
from mindspore_serving.cli.bench_prompts import BenchPrompt
from mindspore_serving.cli.bench_protocols import AnswerError, BenchAnswer, Dialect

CHAT = bench_protocols.chat("tiny", stop_at_end=False)
COMPLETIONS = bench_protocols.completions("tiny", stop_at_end=True)
TGI = bench_protocols.tgi()
CLASSIC = bench_protocols.classic("/model/a:b", b"{}")


def event(value: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


def chunk(delta: dict[str, object], reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})


USAGE = {
    "prompt_tokens": 31,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 16},
}
SPOKEN = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "hm"}),
    b": ping\n\n",
    chunk({"content": "one"}),
    chunk({"content": " two three"}),
    chunk({}, "length"),
    event({"choices": [], "usage": USAGE}),
    b"data: [DONE]\n\n",
]


def read(dialect: Dialect, pieces: list[bytes]) -> BenchAnswer:
    """The answer, each piece a second after the one before it."""
    reader = dialect.to_reader()
    for second, piece in enumerate(pieces):
        reader.take(piece, float(second))
    return reader.finish()


def test_only_pieces_with_words_are_timed_and_the_server_counts_tokens() -> None:
    answer = read(CHAT, SPOKEN)
    assert answer.times == [1, 3, 4]
    assert (answer.num_prompt, answer.num_cached, answer.num_generated) == (31, 16, 5)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_how_bytes_are_cut_changes_no_count(size: int) -> None:
    whole = b"".join(SPOKEN).replace(b"\n\n", b"\r\n\r\n")
    answer = read(CHAT, [whole[at : at + size] for at in range(0, len(whole), size)])
    assert len(answer.times) == 3
    assert answer.num_generated == 5


def test_completions_have_their_text_elsewhere() -> None:
    pieces = [
        event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}),
        event({"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]}),
    ]
    assert read(COMPLETIONS, pieces).times == [0, 1]


def test_an_event_of_tgi_is_a_token() -> None:
    token = {"id": 5, "text": "", "logprob": -0.5, "special": False}
    last = {"generated_text": "x", "details": {"generated_tokens": 2, "input_length": 4}}
    answer = read(TGI, [event({"index": 1, "token": token}), event({"token": token, **last})])
    assert (answer.times, answer.num_generated, answer.num_prompt) == ([0, 1], 2, 4)


@pytest.mark.parametrize(
    ("dialect", "pieces", "told"),
    [
        (CHAT, SPOKEN[:4], "ended too early"),
        (CHAT, [*SPOKEN[:4], event({"error": {"message": "worker lost"}})], "worker lost"),
        (TGI, [event({"error": "gone", "error_type": "generation"})], "gone"),
        (CLASSIC, [b'{"error_msg": "no ', b'such"}'], "no such"),
        (CLASSIC, [b'{"instances": [{"y": 1}, {"error_msg": "odd"}]}'], "odd"),
        (CLASSIC, [b"{}"], "no instances"),
    ],
)
def test_an_answer_that_failed_is_no_answer(dialect, pieces: list[bytes], told: str) -> None:
    with pytest.raises(AnswerError, match=told):
        read(dialect, pieces)


def test_a_classic_answer_is_read_whole() -> None:
    assert read(CLASSIC, [b'{"instances": [{"y"', b": 1}]}"]).is_finished
    assert read(CLASSIC, [b'{"instances": []}']).is_finished


def test_something_that_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="JSON"):
        read(CHAT, [b"data: <html>\n\n"])
    with pytest.raises(ValueError, match="JSON"):
        read(CLASSIC, [b"<html>"])


def test_lengths_are_kept_unless_the_model_may_stop() -> None:
    prompt = BenchPrompt("hi", 9)
    asked = json.loads(CHAT.to_body(prompt))
    assert asked["messages"] == [{"role": "user", "content": "hi"}]
    assert (asked["max_tokens"], asked["ignore_eos"], asked["stream"]) == (9, True, True)
    assert "ignore_eos" not in json.loads(COMPLETIONS.to_body(prompt))
    assert json.loads(TGI.to_body(prompt))["parameters"]["max_new_tokens"] == 9
