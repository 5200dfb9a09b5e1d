"""Decision whether another worker computes a prompt: worked out by hand from the costs."""

from dataclasses import replace

import pytest

from mindspore_serving.llm.engine.handoff_choice import (
    MAX_WAIT,
    MIN_BLOCKS,
    UNKNOWN_WAIT,
    HandoffCosts,
    is_worth_handoff,
    patience,
)

COSTS = HandoffCosts(compute=0.010, copy=0.001, round_trip=0.050)


def is_worth(num_blocks, num_streams=1, num_ahead=0, costs=COSTS, **options):
    return is_worth_handoff(
        num_blocks, num_streams=num_streams, num_ahead=num_ahead, costs=costs, **options
    )


def test_short_prompts_are_computed_here():
    # 6 blocks: 6 * 9 ms saved, 50 ms + 6 * 1 ms added; 7 blocks: 63 ms saved, 57 ms added.
    assert not is_worth(6)
    assert is_worth(7)


def test_more_streams_make_shorter_prompts_worth_a_handoff():
    assert not is_worth(2, num_streams=2)  # 36 ms saved, 52 ms added
    assert is_worth(2, num_streams=3)  # 54 ms saved, 52 ms added


def test_a_prompt_counts_as_a_stream_where_nothing_runs():
    assert [is_worth(count, num_streams=0) for count in (6, 7)] == [False, True]


def test_a_prompt_is_computed_here_rather_than_behind_many_blocks():
    assert is_worth(100, num_streams=1, num_ahead=70)  # 900 ms saved, 850 ms added
    assert not is_worth(100, num_streams=1, num_ahead=80)
    assert is_worth(100, num_streams=2, num_ahead=80)


def test_nothing_is_handed_off_where_copying_takes_as_long_as_computing():
    slow = HandoffCosts(compute=0.010, copy=0.010, round_trip=0.001)
    assert not any(is_worth(count, num_streams=64, costs=slow) for count in (1, 10, 10_000))


def test_a_link_slower_than_computing_delays_the_prompt():
    # A block every 11 ms: 100 * (18 - 2) ms more are saved than added by two streams.
    slower = replace(COSTS, wire=0.011)
    assert is_worth(100, num_streams=2, costs=slower)
    assert not is_worth(100, num_streams=1, costs=replace(COSTS, wire=0.020))  # 900 < 1,150 ms
    assert is_worth(100, num_streams=2, costs=replace(COSTS, wire=0.020))  # 1,800 ms
    assert not is_worth(100, num_streams=2, num_ahead=40, costs=replace(COSTS, wire=0.020))


def test_pieces_of_a_state_are_copied_and_sent_and_not_computed():
    # 12 blocks and 20 pieces: 2 * (120 - 32) ms saved by two streams, 50 + 32 ms added.
    assert is_worth(12, num_streams=2, num_pieces=20)
    assert not is_worth(12, num_streams=2, num_pieces=60)  # 96 ms saved, 122 ms added
    # They are sent when everything is computed: 20 * 10 ms.
    assert not is_worth(12, num_streams=2, num_pieces=20, costs=replace(COSTS, wire=0.010))


def test_a_link_faster_than_computing_costs_its_round_trip_alone():
    fast = replace(COSTS, wire=0.009)
    assert [is_worth(count, costs=fast) for count in (6, 7)] == [False, True]
    far = replace(fast, round_trip=0.150)
    assert [is_worth(count, costs=far) for count in (18, 19)] == [False, True]


def test_unknown_costs_let_long_prompts_be_handed_off():
    assert not is_worth(MIN_BLOCKS - 1, costs=HandoffCosts())
    assert is_worth(MIN_BLOCKS, costs=HandoffCosts())


def test_the_operators_number_decides_alone():
    assert is_worth(3, num_streams=0, num_ahead=10_000, min_blocks=3)
    assert not is_worth(2, num_streams=64, min_blocks=3)


def test_the_first_measurement_is_the_mean_and_the_next_counts_a_fifth():
    costs = HandoffCosts()
    costs.observe(compute=1.0)
    costs.observe(compute=2.0, copy=3.0)
    assert costs.compute == pytest.approx(1.2)
    assert (costs.copy, costs.round_trip) == (3.0, 0.0)


def test_patience_covers_all_blocks_under_way_and_has_a_limit():
    assert patience(50, 30, COSTS) == pytest.approx(3.0 + 4 * 0.8)
    assert patience(1_000_000, 0, COSTS) == MAX_WAIT
    assert patience(50, 30, replace(COSTS, wire=0.02)) == pytest.approx(3.0 + 4 * 1.6)
    assert patience(1, 0, HandoffCosts()) == UNKNOWN_WAIT
