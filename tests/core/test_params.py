"""The table of sampling parameters, and what is checked and made from its rows."""

from dataclasses import dataclass

import pytest

from mindspore_serving.core.params import PROTOCOLS, param, rows_of
from mindspore_serving.core.sampling_params import (
    SAMPLING,
    Generated,
    SamplingParams,
    TokenLogprob,
    join,
)
from mindspore_serving.errors import InvalidField, InvalidInputs


@dataclass(frozen=True)
class Params:
    count: int | None = param(None, "how many", at_least=1, at_most=9, tgi="number", openai=None)
    share: float = param(1.0, "how much", over=0.0, at_most=1.0)
    is_on: bool = param(False, "whether")


ROWS = rows_of(Params)


def test_a_row_says_all_of_a_parameter():
    row = ROWS["count"]
    assert (row.kind, row.is_nullable, row.default, row.meaning) == (int, True, None, "how many")
    assert row.accepted == "an int of 1 to 9"
    assert row.aliases == {**dict.fromkeys(PROTOCOLS, "count"), "openai": None, "tgi": "number"}
    assert ROWS["share"].accepted == "a number from over 0 to 1"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("count", [None, 1, 9], [0, 10, 2.0, True, "3"]),
        ("share", [1, 1.0, 0.001], [0, 0.0, 1.1, None, float("nan"), float("inf"), True]),
        ("is_on", [True, False], [0, 1, None, "true"]),
    ],
)
def test_values_are_accepted_within_the_range_and_of_the_type(name, good, bad):
    for value in good:
        ROWS[name].check(value)
    for value in bad:
        with pytest.raises(InvalidField) as caught:
            ROWS[name].check(value)
        assert caught.value.field == name
        assert str(caught.value) == f"{name} is {value!r}, expected {ROWS[name].accepted}"


def test_sampling_parameters_are_the_rows_of_their_table():
    params = SamplingParams()
    assert list(SAMPLING) == list(SamplingParams.__slots__)
    for name, row in SAMPLING.items():
        assert getattr(params, name) == row.default
        row.check(row.default)


@pytest.mark.parametrize(
    ("given", "field", "text"),
    [
        ({"top_p": 0}, "top_p", "top_p is 0, expected a number from over 0 to 1"),
        ({"n": 129}, "n", "n is 129, expected an int of 1 to 128"),
        ({"stop": "a"}, "stop", "stop is 'a', expected a list of non-empty strings"),
        ({"stop": ["a"] * 65}, "stop", "stop has 65 texts, expected at most 64"),
        ({"bad_words": [""]}, "bad_words", "bad_words is [''], expected a list of non-empty"),
        ({"ignore_eos": 1}, "ignore_eos", "ignore_eos is 1, expected True or False"),
        (
            {"max_tokens": 2, "min_tokens": 3},
            "min_tokens",
            "min_tokens is 3, expected at most max_tokens=2",
        ),
    ],
)
def test_a_wrong_parameter_is_an_error_with_its_name(given, field, text):
    with pytest.raises(InvalidField) as caught:
        SamplingParams(**given)
    assert caught.value.field == field
    assert str(caught.value).startswith(text)


def test_an_invalid_field_can_be_given_the_name_its_reader_knows():
    error = InvalidField("max_tokens", "is 0, expected max_tokens of 1")
    assert isinstance(error, InvalidInputs)
    renamed = error.renamed("max_new_tokens")
    assert renamed.field == "max_new_tokens"
    assert str(renamed) == "max_new_tokens is 0, expected max_tokens of 1"
    assert str(InvalidField("", text="the body is [], expected an object")).startswith("the body")


def test_parts_of_an_answer_are_joined():
    entry = (TokenLogprob(5, -1.0, 0),)
    first = Generated(1, (5,), "a", (entry,), num_cached_tokens=3)
    last = Generated(1, (6, 7), "bc", None, stop_reason="c")
    whole = join([first, last])
    assert whole == Generated(1, (5, 6, 7), "abc", (entry,), None, "c", 3)
    assert join([last]) is last
    assert join([last, last]).logprobs is None
