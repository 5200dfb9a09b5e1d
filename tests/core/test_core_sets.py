"""Sets of cores as text."""

import pytest

from mindspore_serving.core.core_sets import parse_core_sets
from mindspore_serving.errors import InvalidInputs


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("", []),
        ("numa", []),
        ("0", [{0}]),
        ("0-3;4-7", [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        (" 0, 2 ; 1,3-4 ", [{0, 2}, {1, 3, 4}]),
    ],
)
def test_sets_are_ranges_and_numbers(text: str, sets: list[set[int]]) -> None:
    assert list(parse_core_sets(text)) == sets


@pytest.mark.parametrize(
    "text", [";", "0;", "3-1", "a", "-1", "0-", "0,,1", "1-2-3", "65536", "0-9999999", "NUMA"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputs, match="expected sets of cores as '0-3;4-7'"):
        parse_core_sets(text)
