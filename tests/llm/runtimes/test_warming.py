import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.warming import VARIABLE, within


def test_without_time_the_first_size_alone_is_warmed_up(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert list(within(0, [1, 2, 3])) == [1]
    assert list(within(600, [1, 2, 3])) == [1, 2, 3]


def test_the_environment_may_allow_less_time(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0")
    assert list(within(600, [1, 2, 3])) == [1]


def test_the_environment_gives_no_more_time_than_the_runtime_takes(monkeypatch):
    monkeypatch.setenv(VARIABLE, "600")
    assert list(within(0, [1, 2, 3])) == [1]


def test_what_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "long")
    with pytest.raises(StartError, match=r"SERVING_WARM_UP_SECONDS is 'long', expected seconds"):
        list(within(1, [1, 2]))


def test_all_ranks_stop_when_one_has_no_time(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert list(within(600, [1, 2, 3], least=lambda own: 0)) == [1]
