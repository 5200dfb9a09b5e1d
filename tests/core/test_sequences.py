"""Steps of sequences, from parameters and from texts of headers."""

import pytest

from mindspore_serving.core.sequences import SequenceStep, step_of_texts, to_step
from mindspore_serving.errors import InvalidInputs


def test_a_step_has_an_id_and_flags():
    assert to_step(5, True, None) == SequenceStep(5, is_start=True)
    assert to_step("a", None, True) == SequenceStep("a", is_end=True)
    assert to_step(2**64 - 1) == SequenceStep(2**64 - 1)


@pytest.mark.parametrize("nothing", [None, 0, ""])
def test_a_request_without_an_id_is_in_no_sequence(nothing):
    assert to_step(nothing, True, True) is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((True,), "sequence_id is True"),
        ((2**64,), "expected a number of 0 to 2"),
        ((["a"],), "or a text of at most 128 characters"),
        (("a" * 129,), "or a text of at most 128 characters"),
        ((1, "true"), "sequence_start is 'true', expected true or false"),
        ((1, None, 0), "sequence_end is 0, expected true or false"),
    ],
)
def test_a_wrong_parameter_is_refused(arguments, text):
    with pytest.raises(InvalidInputs, match=text):
        to_step(*arguments)


def test_texts_of_headers_are_a_step():
    assert step_of_texts(" 7 ", "True", "0") == SequenceStep("7", is_start=True)
    assert step_of_texts("7", "", "1") == SequenceStep("7", is_end=True)
    with pytest.raises(InvalidInputs, match="sequence_end is 'yes', expected true or false"):
        step_of_texts("7", "", "yes")
