"""Where a text came before, and how it went on."""

import random

import pytest

from mindspore_serving.llm.engine.suffix_index import (
    END,
    MAX_POSITIONS,
    MAX_SINGLES,
    SuffixIndex,
    run_length,
)


def drafted(index, most):
    _, places = index.find(index.tokens)
    return index.draft(places, most)[0] if places else []


def test_a_repeated_run_is_continued_like_its_last_occurrence():
    index = SuffixIndex(32, 2, [1, 2, 3, 4, 5, 9, 2, 3])
    assert drafted(index, 3) == [4, 5, 9]
    assert drafted(index, 1) == [4]


def test_the_longest_run_wins_over_a_later_shorter_run():
    index = SuffixIndex(32, 2, [1, 2, 3, 7, 5, 2, 3, 8, 1, 2, 3])
    assert index.find(index.tokens) == (3, [3])
    assert drafted(index, 1) == [7]


def test_equal_runs_pick_the_most_frequent_then_latest_continuation():
    index = SuffixIndex(3, 3, [1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3])
    assert drafted(index, 1) == [8]
    index = SuffixIndex(3, 3, [1, 2, 3, 7, 4, 1, 2, 3, 7, 5, 1, 2, 3, 8, 1, 2, 3])
    _, places = index.find(index.tokens)
    assert index.draft(places, 2) == ([7, 5], [2 / 3, 1 / 2])


def test_short_runs_pick_longest_then_latest():
    index = SuffixIndex(32, 1, [2, 3, 7, 2, 3, 8, 4, 3, 9, 2, 3])
    assert index.find(index.tokens) == (2, [5])
    assert index.draft([5], 3) == ([8, 4, 3], [1.0, 1.0, 1.0])
    index = SuffixIndex(32, 1, [2, 3, 7, 4, 3, 9, 5, 3])
    assert index.find(index.tokens) == (1, [5])


def test_short_runs_are_sought_at_the_latest_places_of_the_last_token():
    text = [2, 3, 7, *[5, 3] * MAX_SINGLES, 2, 3]
    index = SuffixIndex(32, 1, text)
    assert index.find(text) == (1, [len(text) - 2])
    assert SuffixIndex(32, 2, text).find(text) == (0, [])


def test_a_run_never_finds_itself():
    index = SuffixIndex(3, 1, [1, 2, 3])
    assert index.find(index.tokens) == (0, [])


def test_a_repetition_goes_on_beyond_the_end_of_the_text():
    assert drafted(SuffixIndex(32, 1, [5, 5]), 4) == [5, 5, 5, 5]
    assert drafted(SuffixIndex(32, 2, [1, 2, 1, 2]), 5) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2]])
def test_a_text_that_is_too_short_has_no_match(tokens):
    assert SuffixIndex(4, 2, tokens).find(tokens) == (0, [])


def test_nothing_is_continued_beyond_an_end():
    index = SuffixIndex(32, 2, [1, 2, 3, END, 4, 5, END])
    assert index.draft(index.find([1, 2])[1], 5)[0] == [3]
    assert index.find([4, 5]) == (2, [6])
    assert index.draft([6], 5)[0] == []


def test_a_place_that_was_right_is_tried_beside_the_latest():
    """The run is at more places than are searched: the one with the longest match is the oldest."""
    text = [7, 8, 0, 1, 2, 3] + [0, 1, 2, 4] * (MAX_POSITIONS + 1) + [7, 8, 0, 1, 2]
    index = SuffixIndex(32, 2, text)
    assert index.find(text)[0] == 3
    assert index.find(text, known=[5]) == (5, [5])


def test_a_copy_grows_by_itself():
    index = SuffixIndex(8, 2, [1, 2, 3, 1, 2])
    other = index.copy()
    other.extend([4, 1, 2])
    assert drafted(index, 1) == [3]
    assert drafted(other, 1) == [4]


@pytest.mark.parametrize("sizes", [(5, 2), (5, 1), (5, 4), (3, 3), (2, 2), (2, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_matches_are_those_of_a_plain_search(seed, sizes):
    longest, shortest = sizes
    probability, run = random.Random(seed), run_length(longest, shortest)
    index, tokens = SuffixIndex(longest, shortest), []
    for _ in range(40):
        new = probability.choices(range(3), k=probability.randrange(1, 4))
        index.extend(new)
        tokens += new
        found = look_up(tokens, longest, run, run, MAX_POSITIONS)
        if not found[0] and shortest < run:
            size, places = look_up(tokens, longest, shortest, 1, MAX_SINGLES)
            found = size, places[:1]
        assert index.find(tokens) == found


def look_up(tokens, longest, shortest, common, most):
    """The longest run, and where it ended, latest first, among the latest `most` places where the
    last `common` tokens are."""
    for size in range(longest, shortest - 1, -1):
        ends = [
            end
            for end in range(len(tokens) - 1, common - 1, -1)
            if tokens[end - common : end] == tokens[-common:]
        ][:most]
        found = [end for end in ends if end >= size and tokens[end - size : end] == tokens[-size:]]
        if found:
            return size, found
    return 0, []
