"""Goodput at ten times the load, in simulated time: what is answered before its client leaves, from
second 5 on, as a share of the peak under the same conditions."""

import random

import pytest

from tests.master.simulated import Engine, LinearEngine, Load, Stage, peak, simulate

FACTOR = 10
SETTLED = 5  # seconds
AIM = 0.9


def half_from(second):
    """A neighbour takes half of the processor from then on."""
    return lambda now: 1.0 if now < second else 0.5


def unsteady(level):
    """The speed changes four times in a second, by up to 40 %."""
    draw = random.Random(5)
    speeds = [level * draw.uniform(0.6, 1.4) for _ in range(400)]
    return lambda now: speeds[int(4 * now) % len(speeds)]


def short_tailed(draw):
    return 1.0 + draw.expovariate(1 / 3)


def of_three_kinds(draw):
    return draw.choice([2.0, 4.0, 8.0])


STEADY = half_from(1e9)
SCENARIOS = {
    "cold": (Load(), STEADY),
    "cold, half the processor": (Load(), half_from(0)),
    "a neighbour comes": (Load(seconds=25), half_from(10)),
    "a neighbour leaves": (Load(seconds=25), lambda now: 0.5 if now < 10 else 1.0),
    "four neighbours come": (Load(seconds=25), lambda now: 1.0 if now < 10 else 0.25),
    "deadlines": (Load(says_timeout=True), STEADY),
    "deadlines, a neighbour comes": (Load(says_timeout=True, seconds=25), half_from(10)),
    "patience of any length": (Load(patience=short_tailed), STEADY),
    "patience of three kinds": (Load(patience=of_three_kinds), STEADY),
    "a burst": (Load(bursts={8: 600}), STEADY),
    "unsteady": (Load(seconds=25), unsteady(1.0)),
    "unsteady, half the processor": (Load(seconds=25), unsteady(0.5)),
}


def goodput(kind, name, seed=1):
    """From second SETTLED on, as a share of the peak at the speed of each second."""
    load, speed = SCENARIOS[name]
    answered, _ = simulate(kind, load, FACTOR * kind.peak, speed, seed)
    seconds = range(SETTLED, load.seconds)
    best = sum(peak(kind, load, speed(second + 0.5)) for second in seconds)
    return sum(answered[second] for second in seconds) / best


@pytest.mark.parametrize("name", SCENARIOS)
def test_goodput_of_a_language_model_at_ten_times_the_load_is_nine_tenths(name):
    assert goodput(Engine, name) >= AIM


@pytest.mark.parametrize("name", SCENARIOS)
def test_goodput_of_a_model_that_gains_little_from_batches_is_nine_tenths(name):
    assert goodput(LinearEngine, name, seed=11) >= AIM


@pytest.mark.parametrize("name", SCENARIOS)
def test_goodput_of_a_stage_at_ten_times_the_load_is_nine_tenths(name):
    assert goodput(Stage, name) >= AIM


@pytest.mark.parametrize("kind", [Engine, Stage])
def test_patient_clients_of_a_burst_are_all_served(kind):
    load = Load(patience=lambda draw: 600.0, bursts={1: 200})
    answered, outcomes = simulate(kind, load, 0.5 * kind.peak)
    assert set(outcomes) == {"NoneType"}


def test_the_few_that_leave_early_keep_no_burst_of_patient_clients_out():
    load = Load(patience=lambda draw: draw.choice([1.5, 600.0, 600.0]), bursts={1: 100})
    _, outcomes = simulate(Engine, load, 0.3 * Engine.peak)
    assert outcomes["Overloaded"] == 0
