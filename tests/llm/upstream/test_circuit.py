"""When a circuit opens, tries and closes, by a clock of the test."""

from mindspore_serving.llm.upstream.circuit import MAX_DELAY, CircuitBreaker


def opened(delay: float = 5.0) -> CircuitBreaker:
    """A circuit that has opened at 0."""
    circuit = CircuitBreaker(3, delay)
    for _ in range(3):
        circuit.fail(0.0)
    return circuit


def test_failures_in_a_row_open_a_circuit() -> None:
    circuit = CircuitBreaker(3, 5.0)
    for _ in range(2):
        circuit.fail(0.0)
    circuit.succeed(0.0)
    for _ in range(2):
        circuit.fail(0.0)
    assert (circuit.state(0.0), circuit.allows(0.0)) == ("closed", True)
    circuit.fail(0.0)
    assert (circuit.state(0.0), circuit.allows(4.9)) == ("open", False)
    assert circuit.remaining(1.0) == 4.0


def test_a_half_open_circuit_allows_a_single_trial() -> None:
    circuit = opened()
    assert (circuit.state(5.0), circuit.allows(5.0)) == ("half-open", True)
    assert circuit.begin(5.0)
    assert not circuit.allows(5.0)
    circuit.end_trial()  # its client left
    assert circuit.allows(5.0)


def test_a_trial_that_succeeds_closes_the_circuit() -> None:
    circuit = opened()
    circuit.begin(5.0)
    assert circuit.succeed(6.0)
    assert (circuit.state(6.0), circuit.allows(6.0)) == ("closed", True)
    circuit.fail(6.0)
    assert circuit.state(6.0) == "closed"  # the failures from before do not count any more


def test_trials_that_fail_open_the_circuit_for_ever_longer_up_to_a_limit() -> None:
    circuit, now, delays = opened(), 5.0, []
    for _ in range(6):
        circuit.begin(now)
        circuit.fail(now)
        delays.append(circuit.remaining(now))
        now += delays[-1]
    assert delays == [10.0, 20.0, 40.0, MAX_DELAY, MAX_DELAY, MAX_DELAY]


def test_requests_from_before_do_not_change_an_open_circuit() -> None:
    circuit = opened()
    circuit.fail(1.0)
    assert not circuit.succeed(1.0)
    assert circuit.remaining(1.0) == 4.0


def test_a_circuit_of_0_failures_never_opens() -> None:
    circuit = CircuitBreaker(0, 5.0)
    for _ in range(100):
        circuit.fail(0.0)
    assert circuit.allows(0.0)
    assert not circuit.begin(0.0)
