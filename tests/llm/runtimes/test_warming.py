import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.warming import VARIABLE, warm_up_within


def test_without_time_the_first_size_alone_is_warmed_up(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert list(warm_up_within(0, [1, 2, 3])) == [1]
    assert list(warm_up_within(600, [1, 2, 3])) == [1, 2, 3]


def test_the_environment_may_allow_less_time(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0")
    assert list(warm_up_within(600, [1, 2, 3])) == [1]


def test_environment_cannot_raise_the_warm_up_limit(monkeypatch):
    monkeypatch.setenv(VARIABLE, "600")
    assert list(warm_up_within(0, [1, 2, 3])) == [1]


def test_warm_up_seconds_that_are_no_number_are_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "long")
    with pytest.raises(StartError, match=r"SERVING_WARM_UP_SECONDS is 'long', expected seconds"):
        list(warm_up_within(1, [1, 2]))


def test_all_ranks_stop_when_any_is_out_of_time(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert list(warm_up_within(600, [1, 2, 3], minimum=lambda number: 0)) == [1]
