"""Number of groups by what steps take: each is tried, the fastest stays, others are tried again."""

import pytest

from mindspore_serving.llm.engine.step_groups import (
    INTERVAL,
    NUM_TRIALS,
    StepGroups,
)


def drive(groups, num_sequences, cost, count):
    """Numbers of groups of `count` steps, which take `cost` seconds for each sequence."""
    chosen = []
    for _ in range(count):
        number = groups.choose(num_sequences)
        chosen.append(number)
        size = -(-num_sequences // number)
        groups.observe(number, num_sequences, size, cost[number] * size, is_plain=True)
    return chosen


@pytest.mark.parametrize(
    ("cost", "best"), [({1: 3.0, 2: 2.0, 3: 2.1}, 2), ({1: 2.0, 2: 3.0, 3: 2.1}, 1)]
)
def test_the_fastest_number_stays_and_slower_numbers_are_tried_again(cost, best):
    groups = StepGroups(2, 3)
    chosen = drive(groups, 8, cost, 4 * INTERVAL)
    tried, later = chosen[: 4 * NUM_TRIALS + 6], chosen[4 * NUM_TRIALS + 6 :]
    assert set(tried) == {1, 2, 3}
    assert set(later[: INTERVAL // 2]) == {best}
    assert set(later) == {1, 2, 3}
    assert later.count(best) > 0.9 * len(later)


def test_a_number_that_has_become_faster_is_chosen_later():
    groups = StepGroups(2, 3)
    assert drive(groups, 8, {1: 1.0, 2: 2.0, 3: 2.0}, 2 * NUM_TRIALS + 99)[-1] == 1
    assert drive(groups, 8, {1: 2.0, 2: 1.0, 3: 2.0}, 3 * INTERVAL)[-1] == 2


def test_groups_that_save_next_to_nothing_are_left_out():
    assert drive(StepGroups(2, 3), 8, {1: 1.0, 2: 0.99, 3: 1.0}, INTERVAL)[-1] == 1


def test_a_pause_decides_nothing():
    groups = StepGroups(2, 3)
    cost = {1: 3.0, 2: 2.0, 3: 2.5}
    drive(groups, 8, cost, 2 * INTERVAL)
    groups.observe(2, 8, 4, 10_000.0, is_plain=True)
    assert drive(groups, 8, cost, 99)[-1] == 2


def test_a_single_sequence_has_no_groups_and_few_have_few():
    groups = StepGroups(2, 3)
    assert drive(groups, 1, {1: 3.0}, 99) == [1] * 99
    assert set(drive(groups, 2, {1: 3.0, 2: 2.0}, 99)) == {1, 2}


def test_the_number_that_is_set_is_kept_as_far_as_there_are_sequences():
    groups = StepGroups(2, 3, fixed=3)
    assert [groups.choose(count) for count in (1, 2, 3, 9)] == [1, 2, 3, 3]
    assert StepGroups(2, 3, fixed=1).choose(9) == 1
    assert StepGroups(2, 1, fixed=3).choose(9) == 1


def test_the_seconds_of_a_step_are_known_after_steps_of_as_many_groups():
    groups = StepGroups(2, 3)
    numbers = [2, 2, 2, 2, 2, 1, 1, 1, 2]
    steady = [groups.observe(number, 8, 4, 1.0, is_plain=False) for number in numbers]
    assert steady == [False, False, False, True, True, False, False, True, False]


def test_steps_with_drafts_are_not_compared():
    groups = StepGroups(2, 3)
    for _ in range(99):
        groups.observe(groups.choose(8), 8, 4, 1.0, is_plain=False)
    assert groups.choose(8) == 1
    assert drive(groups, 8, {1: 2.0, 2: 1.0, 3: 2.0}, 99)[-1] == 2
