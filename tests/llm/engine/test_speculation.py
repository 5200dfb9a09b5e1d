from mindspore_serving.llm.engine.speculation import NgramIndex


def test_a_run_that_came_before_is_continued_as_it_was():
    index = NgramIndex(3, 2, [1, 2, 3, 4, 5, 9, 2, 3])
    assert index.propose(3) == [4, 5, 9]
    assert index.propose(1) == [4]


def test_the_longest_run_wins_over_a_later_shorter_one():
    index = NgramIndex(3, 2, [1, 2, 3, 7, 5, 2, 3, 8, 1, 2, 3])
    assert index.propose(1) == [7]


def test_of_equal_runs_the_latest_wins():
    index = NgramIndex(2, 2, [2, 3, 7, 2, 3, 8, 2, 3])
    assert index.propose(1) == [8]


def test_a_run_never_finds_itself():
    assert NgramIndex(3, 1, [1, 2, 3]).propose(4) == []


def test_a_repetition_is_continued_up_to_the_end_of_the_text():
    assert NgramIndex(2, 1, [5, 5]).propose(4) == [5]
    assert NgramIndex(2, 2, [1, 2, 1, 2]).propose(4) == [1, 2]


def test_nothing_is_proposed_without_text():
    assert NgramIndex(3, 2).propose(4) == []
    assert NgramIndex(3, 2, [1]).propose(4) == []


def test_tokens_added_one_by_one_give_the_same_as_all_at_once():
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
    one_by_one = NgramIndex(4, 2)
    for end in range(len(tokens)):
        one_by_one.extend([tokens[end]])
        known = tokens[: end + 1]
        assert one_by_one.propose(3) == NgramIndex(4, 2, known).propose(3) == look_up(known)
    assert one_by_one.propose(3) == [4, 1, 2]


def look_up(tokens, most=3):
    """The same by plain search: runs of 4 to 2, each from its latest earlier place."""
    for size in (4, 3, 2):
        for start in range(len(tokens) - size - 1, -1, -1):
            if len(tokens) > size and tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + most]
    return []
