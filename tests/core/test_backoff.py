from mindspore_serving.core.backoff import Backoff


def test_quick_deaths_are_restarted_with_growing_delays_up_to_a_limit():
    backoff = Backoff()
    delays = [backoff.died(1.0) for _ in range(2000)]
    assert delays[:5] == [0.0, 0.25, 0.5, 1.0, 2.0]
    assert set(delays[9:]) == {30.0}


def test_with_a_limit_the_fifth_quick_death_is_the_end():
    backoff = Backoff("limited")
    assert [backoff.died(1.0) for _ in range(5)] == [0.0, 0.25, 0.5, 1.0, None]


def test_without_restarts_the_first_death_is_the_end():
    assert Backoff("never").died(100.0) is None


def test_nobody_should_wait_for_a_worker_that_died_quickly_five_times():
    backoff = Backoff()
    failing = [backoff.is_failing for _ in range(6) if backoff.died(1.0) is not None]
    assert failing == [False, False, False, False, True, True]
    backoff.died(10.0)
    assert not backoff.is_failing


def test_a_long_life_starts_the_count_anew():
    backoff = Backoff("limited")
    for _ in range(4):
        backoff.died(1.0)
    assert backoff.died(10.0) == 0.0
    assert [backoff.died(9.9) for _ in range(5)] == [0.0, 0.25, 0.5, 1.0, None]
