"""Stop strings across the borders of tokens, end tokens, lengths and what is held back."""

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mindspore_serving.core.sampling_params import FinishReason, SamplingParams
from mindspore_serving.llm.tokenization.stopping import StopChecker

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
EOS = 0


class Emitted(NamedTuple):
    """What of the record of one token is looked at."""

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


def check(checker, token_id):
    """What the next token adds, in a record that names the token."""
    generated = checker.check(token_id)
    assert (generated.index, generated.token_ids) == (0, (token_id,))
    return to_emitted(generated)


def to_emitted(generated):
    return Emitted(generated.text, generated.finish_reason, generated.stop_reason)


class Spelled:
    """Token n is the n-th piece; `rest` waits until the end."""

    def __init__(self, pieces, rest=""):
        self.pieces = pieces
        self.rest = rest

    def append(self, token_id):
        return self.pieces[token_id]

    def flush(self):
        rest, self.rest = self.rest, ""
        return rest


def run(pieces, *, rest="", max_tokens=None, **params):
    """What each token emits, until the end; tokens are 1, 2, ... and spell `pieces`."""
    checker = StopChecker(
        SamplingParams(max_tokens=max_tokens, **params), [EOS], Spelled(["</s>", *pieces], rest)
    )
    emitted = []
    for token_id in range(1, len(pieces) + 1):
        emitted.append(check(checker, token_id))
        if emitted[-1].finish_reason:
            return emitted
    return [*emitted, Emitted(checker.end(STOP).text)]


def test_without_stops_text_passes_through():
    assert run(["Hel", "", "lo"]) == [Emitted("Hel"), Emitted(""), Emitted("lo"), Emitted("")]


def test_a_stop_string_over_three_tokens_is_never_shown():
    assert run(["one E", "N", "D two"], stop=["END"]) == [
        Emitted("one "),
        Emitted(""),
        Emitted("", STOP, "END"),
    ]


def test_include_stop_ends_the_text_with_the_stop_string():
    assert run(["one E", "N", "D two"], stop=["END"], include_stop=True) == [
        Emitted("one "),
        Emitted(""),
        Emitted("END", STOP, "END"),
    ]


def test_a_partial_stop_string_is_sent_after_a_mismatch():
    assert run(["E", "EN", "Q", "E"], stop=["END"]) == [
        Emitted(""),
        Emitted("E"),
        Emitted("ENQ"),
        Emitted(""),
        Emitted("E"),
    ]


def test_of_stop_strings_the_first_to_complete_counts():
    assert run(["xabcd"], stop=["abcd", "bc"])[-1] == Emitted("xa", STOP, "bc")


def test_of_stop_strings_that_complete_together_the_longest_counts():
    assert run(["xabc"], stop=["bc", "abc", "c"])[-1] == Emitted("x", STOP, "abc")


def test_an_end_token_ends_the_text_and_is_not_shown():
    checker = StopChecker(SamplingParams(stop=["!?"]), [EOS], Spelled(["</s>", "hi!"]))
    assert check(checker, 1) == Emitted("hi")
    assert check(checker, EOS) == Emitted("!", STOP, None)
    assert checker.end(STOP).text == ""


def test_an_end_token_is_shown_if_stops_are():
    params = SamplingParams(include_stop=True)
    assert check(StopChecker(params, [EOS], Spelled(["</s>"])), EOS) == Emitted("</s>", STOP)


def test_bytes_held_by_the_detokenizer_are_sent_before_an_end_token():
    checker = StopChecker(SamplingParams(), [EOS], Spelled(["</s>", "a"], rest="\ufffd"))
    assert check(checker, EOS) == Emitted("\ufffd", STOP)


def test_a_stop_token_is_named():
    assert run(["a", "b", "c"], stop_token_ids=[2]) == [Emitted("a"), Emitted("", STOP, 2)]


def test_ignore_eos_goes_on_but_not_after_a_stop_token():
    checker = StopChecker(SamplingParams(ignore_eos=True), [EOS], Spelled(["</s>", "a"]))
    assert check(checker, EOS) == Emitted("</s>")
    params = SamplingParams(ignore_eos=True, stop_token_ids=[EOS])
    assert check(StopChecker(params, [EOS]), EOS) == Emitted("", STOP, EOS)


def test_the_last_token_by_length_shows_everything():
    emitted = run(["a", "bE", "N", "D"], stop=["END"], max_tokens=3, rest="\ufffd")
    assert emitted == [Emitted("a"), Emitted("b"), Emitted("EN\ufffd", LENGTH)]


def test_a_stop_in_the_last_token_by_length_is_a_stop():
    assert run(["a", "END"], stop=["END"], max_tokens=2)[-1] == Emitted("", STOP, "END")


def test_the_engines_limit_goes_before_that_of_the_request():
    checker = StopChecker(SamplingParams(max_tokens=9), [EOS], Spelled(["", "a"]), max_tokens=1)
    assert check(checker, 1) == Emitted("a", LENGTH)


def test_stops_that_come_too_early_are_shown():
    pieces = ["x.", "y.", "z."]
    assert [each.text for each in run(pieces, stop=["."], min_tokens=2)] == ["x.", "y.", "z"]
    assert run(pieces, stop_token_ids=[1, 3], min_tokens=2)[-1] == Emitted("", STOP, 3)


def test_a_stop_that_begins_too_early_and_ends_late_enough_counts():
    assert run(["xE", "ND"], stop=["END"], min_tokens=1)[-1] == Emitted("", STOP, "END")


def test_without_a_detokenizer_only_tokens_end_a_sequence():
    checker = StopChecker(SamplingParams(max_tokens=2, stop=["a"]), [EOS])
    assert check(checker, 5) == Emitted("")
    assert check(checker, 5) == Emitted("", LENGTH)


def test_a_token_after_the_last_is_a_bug():
    checker = StopChecker(SamplingParams(), [EOS])
    check(checker, EOS)
    with pytest.raises(AssertionError, match="after the finish reason"):
        check(checker, 1)


TEXTS = st.text("ab", max_size=5)
PIECES = st.lists(TEXTS, max_size=10) | st.lists(TEXTS, min_size=5, max_size=10)
STOPS = st.text("ab", min_size=1, max_size=5)


@settings(max_examples=300)
@given(
    PIECES,
    st.lists(STOPS, max_size=4),
    st.integers(0, 3),
    st.booleans(),
    TEXTS,
)
@example(["aa", "ab"], ["aab"], 0, False, "")  # the second "a" begins it anew
@example(["aa", "a"], ["aa"], 1, False, "")  # and here one that was too early is its start
def test_the_text_is_that_of_the_definition_on_the_whole(pieces, stops, early, include, rest):
    emitted = run(pieces, stop=stops, min_tokens=early, include_stop=include, rest=rest)
    shown = "".join(each.text for each in emitted)
    assert shown == cut(pieces, rest, stops, early, include)


def cut(pieces, rest, stops, early, include):
    """The whole text up to the first end of a stop that is not too early."""
    text = "".join(pieces) + rest
    start = len("".join(pieces[:early]))
    if early >= len(pieces):  # what is left over belongs to the last token
        start = len(text)
    for end in range(start + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end if include else end - len(max(found, key=len))]
    return text


@settings(max_examples=300)
@given(PIECES, st.lists(STOPS, min_size=1, max_size=4))
@example(["aaa", "b"], ["aab"])
def test_only_a_possible_stop_string_is_held_back(pieces, stops):
    text = shown = ""
    for piece, each in zip(pieces, run(pieces, stop=stops), strict=False):
        if each.finish_reason:
            break
        text, shown = text + piece, shown + each.text
        held = max(
            size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])
        )
        assert shown == text[: len(text) - held]
