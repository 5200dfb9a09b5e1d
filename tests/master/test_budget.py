"""Which servables keep their workers, and which give way."""

from dataclasses import dataclass

import pytest

from mindspore_serving.master.budget import LoadBudget


@dataclass
class Servable:
    last_used: float
    is_loaded: bool = True
    is_leaving: bool = False
    is_idle: bool = True
    is_unloaded: bool = False

    def unload(self):
        self.is_unloaded = self.is_leaving = True
        self.is_idle = False


@pytest.fixture
def budget():
    made = LoadBudget()
    made.limit = 2
    return made


def unloaded(*servables):
    return [one.last_used for one in servables if one.is_unloaded]


def test_without_a_limit_every_servable_may_be_loaded():
    assert LoadBudget().admit([Servable(1), Servable(2), Servable(3)])


def test_unloaded_servables_do_not_count_against_the_budget(budget):
    assert budget.admit([Servable(1), Servable(2, is_loaded=False)])


def test_the_least_recently_used_servable_is_unloaded(budget):
    others = [Servable(5), Servable(3), Servable(4, is_loaded=False)]
    assert not budget.admit(others)
    assert unloaded(*others) == [3]


def test_a_single_servable_is_unloaded_per_admission(budget):
    others = [Servable(5), Servable(3)]
    assert not budget.admit(others)
    assert not budget.admit(others)
    assert unloaded(*others) == [3]
    others[1].is_loaded = False
    assert budget.admit(others)


def test_a_servable_in_use_is_not_unloaded(budget):
    others = [Servable(5), Servable(3, is_idle=False)]
    assert not budget.admit(others)
    assert unloaded(*others) == [5]


def test_while_all_are_used_nobody_is_loaded(budget):
    others = [Servable(5, is_idle=False), Servable(3, is_idle=False)]
    assert not budget.admit(others)
    assert unloaded(*others) == []
