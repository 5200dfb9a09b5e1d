"""How many guesses are made: numbers in, numbers out."""

import pytest

from mindspore_serving.llm.engine.acceptance import MatchAcceptance, plan_drafts
from mindspore_serving.llm.engine.step_cost import StepCost
from mindspore_serving.llm.engine.suffix_index import Draft


def counts(probabilities, num_rows, cost):
    return plan_drafts(probabilities, num_rows, cost).counts


def linear(each):
    return lambda rows: 1 + each * (rows - 1)


def test_certain_tokens_are_drafted_if_a_row_costs_less_than_a_token():
    assert counts([[1.0] * 8], 1, linear(0.1)) == [8]
    assert counts([[1.0] * 8], 1, linear(1.0)) == [0]


def test_a_guess_that_is_likely_wrong_is_not_made():
    assert counts([[0.9, 0.8, 0.1, 0.01]], 1, linear(0.2)) == [2]
    assert counts([[0.1, 0.01]], 1, linear(0.2)) == [0]


def test_rows_go_to_the_sequences_whose_guesses_are_likeliest():
    assert counts([[0.9, 0.8, 0.7], [0.05], []], 3, linear(0.1)) == [3, 0, 0]


def test_a_cost_that_rises_in_steps_is_looked_beyond():
    """As of kernels that compute 8 rows at once: the 2nd row costs as much as the 8th."""

    def tiles(rows):
        return 1.0 if rows == 1 else 1.9 if rows <= 8 else 4.0

    assert counts([[0.8]], 1, tiles) == [0]
    assert counts([[0.95**place for place in range(1, 15)]], 1, tiles) == [7]


def test_nothing_is_chosen_of_nothing():
    assert counts([], 0, linear(0.1)) == []
    assert counts([[]], 1, linear(0.1)) == [0]


def test_acceptance_grows_with_the_match_and_the_accepted_tokens():
    short, long = Draft([1] * 4, 3), Draft([1] * 4, 20)
    acceptance = MatchAcceptance()
    assert acceptance.probabilities(long)[0] > acceptance.probabilities(short)[0]
    first, second, *_ = acceptance.probabilities(short)
    assert second / first == pytest.approx(acceptance.probabilities(Draft([1], 7))[0])


def test_probabilities_follow_recent_acceptance():
    acceptance, draft = MatchAcceptance(), Draft([1], 3)
    at_first = acceptance.probabilities(draft)[0]
    for _ in range(30):
        acceptance.observe(draft, [2])
    assert acceptance.probabilities(draft) == []
    assert at_first > 0.2
    for _ in range(60):
        acceptance.observe(draft, [1])
    assert acceptance.probabilities(draft)[0] > 0.8


def test_sampled_answers_have_lower_prior_acceptance():
    draft = Draft([1] * 4, 5)
    greedy, sampled = (
        MatchAcceptance(is_sampled=given).probabilities(draft) for given in (False, True)
    )
    assert len(sampled) == len(greedy)
    assert all(one < other for one, other in zip(sampled, greedy, strict=True))


def test_guesses_that_are_unlikely_are_not_considered():
    acceptance = MatchAcceptance()
    assert acceptance.probabilities(Draft([1, 2], 1, [0.9, 1.0])) == []
    assert len(acceptance.probabilities(Draft([1, 2, 3], 8, [1.0, 0.02, 1.0]))) == 1


def test_tokens_behind_a_rejected_token_are_not_counted():
    acceptance = MatchAcceptance()
    acceptance.observe(Draft([1, 5, 5, 5], 8), [2, 5, 5, 5])
    other = MatchAcceptance()
    other.observe(Draft([1], 8), [2])
    draft = Draft([1] * 12, 3)
    assert acceptance.probabilities(draft) == other.probabilities(draft)


def test_places_that_disagree_lower_the_chance():
    draft = Draft([1, 2], 8, [0.5, 1.0])
    certain = MatchAcceptance().probabilities(Draft([1, 2], 8))
    assert MatchAcceptance().probabilities(draft) == [0.5 * probability for probability in certain]


def test_forced_tokens_are_nearly_certain_until_they_are_not():
    acceptance, forced = MatchAcceptance(), Draft([1, 2], is_forced=True)
    assert acceptance.probabilities(forced)[1] > 0.9
    for _ in range(20):
        acceptance.observe(forced, [3])
    assert acceptance.probabilities(forced)[0] < 0.4


def test_chances_never_rise():
    probabilities = MatchAcceptance().probabilities(Draft([1] * 64, 1))
    assert probabilities == sorted(probabilities, reverse=True)


def test_the_cost_of_rows_is_learned_from_steps_that_differ_in_them():
    cost = StepCost()
    for _ in range(100):
        for rows, seconds in ((1, 0.010), (4, 0.030), (1, 0.010), (16, 0.100)):
            cost.observe(rows, seconds)
    assert cost.estimate(4) / cost.estimate(1) == pytest.approx(3, rel=0.05)
    assert cost.estimate(16) / cost.estimate(1) == pytest.approx(10, rel=0.05)


def test_a_machine_that_gets_slower_as_a_whole_changes_no_ratio():
    cost, before = StepCost(), StepCost()
    seconds = 0.010
    for _ in range(1000):
        cost.observe(1, seconds)
        seconds *= 1.01
    assert [cost.estimate(rows) for rows in range(1, 40)] == [
        before.estimate(rows) for rows in range(1, 40)
    ]


def test_a_pause_is_no_cost():
    cost = StepCost()
    for _ in range(20):
        cost.observe(1, 0.01)
        cost.observe(8, 0.02)
    cost.observe(1, 0.01)
    cost.observe(8, 100.0)
    assert cost.estimate(8) / cost.estimate(1) == pytest.approx(2, rel=0.2)


def test_unseen_numbers_of_rows_keep_their_prior_distance_to_seen_numbers():
    """However often steps of one and of six rows are compared, and whatever they take."""
    cost, before = StepCost(), StepCost()
    for _ in range(50):
        cost.observe(1, 0.010)
        cost.observe(6, 0.011)
    assert cost.estimate(6) / cost.estimate(1) == pytest.approx(1.1, rel=0.05)
    assert cost.estimate(16) / cost.estimate(6) == pytest.approx(
        before.estimate(16) / before.estimate(6)
    )
    assert cost.estimate(3) / cost.estimate(1) == pytest.approx(
        before.estimate(3) / before.estimate(1)
    )


def test_the_first_step_of_a_number_of_rows_is_no_cost():
    """Its kernels are compiled in it."""
    cost = StepCost()
    cost.observe(1, 0.010)
    for rows in (2, 3, 4, 5, 6):
        cost.observe(rows, 0.050)
    assert [cost.estimate(rows) for rows in range(1, 40)] == [
        StepCost().estimate(n) for n in range(1, 40)
    ]


def test_a_change_of_the_number_of_rows_costs_a_learned_surcharge():
    cost = StepCost()
    for _ in range(60):
        for rows, seconds in ((1, 0.018), (1, 0.010), (8, 0.028), (8, 0.020)):
            cost.observe(rows, seconds)
    unit = cost.estimate(1)
    assert cost.estimate(8) == pytest.approx(2 * unit, rel=0.1)
    assert cost.estimate_next(8, 1) == cost.estimate(8)  # the last one had eight
    assert cost.estimate_next(1, 1) == pytest.approx(1.8 * unit, rel=0.1)
    cost.observe(1, 0.018)
    assert cost.estimate_next(8, 1) == pytest.approx((2 + 2 * 0.8) * unit, rel=0.1)


def test_old_costs_decay_towards_the_prior():
    cost = StepCost()
    for _ in range(2):
        cost.observe(1, 0.01)
        cost.observe(8, 1.0)
    assert cost.estimate(8) / cost.estimate(1) > 3
    for _ in range(30_000):
        cost.observe(1, 0.01)
    assert cost.estimate(8) / cost.estimate(1) < 3


def test_a_step_without_guesses_is_wanted_now_and_then_to_compare_with():
    cost, plain = StepCost(), 0
    for number in range(1000):
        if cost.needs_plain_step(1):
            cost.observe(1, 0.01)
            plain += number >= 20
        else:
            cost.observe(8, 0.02)
    assert 5 <= plain <= 10
    assert cost.estimate(8) / cost.estimate(1) == pytest.approx(2, rel=0.05)


def test_steps_of_another_kind_are_not_compared_with():
    cost = StepCost()
    for _ in range(3):
        cost.observe(1, 0.01)
        cost.interrupt(7)
        cost.observe(8, 1.0)
        cost.interrupt(7)
    assert cost.estimate(8) == StepCost().estimate(8)


def test_beyond_the_largest_knot_a_step_costs_as_much_per_row():
    cost = StepCost()
    assert cost.estimate(2048) == pytest.approx(4 * cost.estimate(512))
    assert cost.estimate(5) == pytest.approx((cost.estimate(4) + cost.estimate(6)) / 2)
