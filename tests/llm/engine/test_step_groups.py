"""Number of groups by what steps take: each is tried, the fastest stays, others are tried again."""

import pytest

from mindspore_serving.llm.engine.step_groups import INTERVAL, NUM_TURNS, TURN, StepGroups

# Steps until a number is chosen: before each turn of N groups come N + 1 that are not measured.
TRIED = NUM_TURNS * sum(TURN + number + 1 for number in (1, 2, 3))


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
    ("cost", "fastest"), [({1: 3.0, 2: 2.0, 3: 2.1}, 2), ({1: 2.0, 2: 3.0, 3: 2.1}, 1)]
)
def test_the_fastest_number_stays_and_slower_numbers_are_tried_again(cost, fastest):
    chosen = drive(StepGroups(2, 3), 8, cost, 2000)
    assert set(chosen[:TRIED]) == {1, 2, 3}
    assert set(chosen[TRIED : TRIED + INTERVAL]) == {fastest}
    assert set(chosen[TRIED:]) == {1, 2, 3}
    assert chosen[TRIED:].count(fastest) > 0.9 * len(chosen[TRIED:])


def test_a_number_that_has_become_faster_is_chosen_later():
    groups = StepGroups(2, 3)
    assert drive(groups, 8, {1: 1.0, 2: 2.0, 3: 2.0}, TRIED + 9)[-1] == 1
    later = drive(groups, 8, {1: 2.0, 2: 1.0, 3: 2.0}, 2000)
    assert later[-1] == 2
    assert later.count(2) > 1000


def test_groups_that_save_next_to_nothing_are_left_out():
    assert drive(StepGroups(2, 3), 8, {1: 1.0, 2: 0.99, 3: 1.0}, TRIED + 9)[-1] == 1


def test_a_pause_decides_nothing():
    groups = StepGroups(2, 3)
    cost = {1: 3.0, 2: 2.0, 3: 2.5}
    drive(groups, 8, cost, TRIED)
    for _ in range(TURN):
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
