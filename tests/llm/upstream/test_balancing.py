"""Which upstream a request gets: loads, weights, prefixes, states and slow starts, by the clock of
the test."""

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.core.prefixes import CHUNK, hashes
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import Overloaded, ServableUnavailable
from mindspore_serving.llm.upstream.balancing import (
    OVERLOADED,
    SPARE,
    UNLIMITED,
    Balancer,
    Demand,
    FleetMember,
    unready_reason,
)
from mindspore_serving.llm.upstream.circuit import CircuitBreaker

SMALL = Demand(10, 90)
SLOW = 100.0  # seconds of a slow start


def balancer(**weights: float) -> Balancer:
    """With a ready member for each of `weights`."""
    made = Balancer(SLOW)
    for name, weight in weights.items():
        made.add(FleetMember(name, weight, CircuitBreaker(1, 5.0)))
    return made


def chosen(
    of: Balancer, demand: Demand = SMALL, now: float = 0.0, tried: Iterable[str] = ()
) -> str:
    member = of.choose(demand, now, tuple(tried))
    return "" if member is None else member.name


def counted(of: Balancer, times: int, now: float, *, ends: bool) -> Counter[str]:
    """How many of so many requests each member gets, one after another or at once."""
    names: Counter[str] = Counter()
    for _ in range(times):
        member = of.choose(SMALL, now)
        assert member is not None
        ticket = of.begin(member, SMALL, now)
        names[member.name] += 1
        if ends:
            of.end(ticket)
    return names


def test_a_demand_counts_prompt_and_answers() -> None:
    params = SamplingParams(max_tokens=50, n=3)
    demand = Demand.of(Generate(prompt="x" * 4000, params=params))
    assert (demand.prompt, demand.answer) == (1000, 150)
    assert len(demand.hashes) == 4000 // CHUNK
    messages = [{"role": "user", "content": [{"type": "text", "text": "y" * 400}]}]
    demand = Demand.of(Generate(messages=messages, params=SamplingParams(max_tokens=None)))
    assert (demand.prompt, demand.answer) == (101, UNLIMITED)
    assert Demand.of(Generate(prompt=list(range(1000)), params=params)).prompt == 1000


def test_the_member_with_the_fewest_outstanding_tokens_is_chosen() -> None:
    of = balancer(a=1, b=1)
    large = of.begin(of.members["a"], Demand(0, 1000), 0.0)
    for _ in range(5):
        of.begin(of.members["b"], SMALL, 0.0)
    assert chosen(of) == "b"  # though it has more requests
    large.advance(700)
    assert of.members["a"].outstanding == 300
    assert chosen(of) == "a"
    of.end(large)
    of.end(large)
    assert (of.members["a"].outstanding, of.members["a"].num_open) == (0, 0)


@pytest.mark.parametrize("ends", [False, True], ids=["at once", "one after another"])
def test_requests_are_divided_by_weight(ends: bool) -> None:
    of = balancer(heavy=3, light=1)
    names = counted(of, 400, 0.0, ends=ends)
    assert names["heavy"] == pytest.approx(300, abs=2)


def test_equal_members_take_turns_when_they_are_idle() -> None:
    assert counted(balancer(a=1, b=1, c=1), 9, 0.0, ends=True) == {"a": 3, "b": 3, "c": 3}


def test_an_answer_longer_than_announced_counts_no_less_than_nothing() -> None:
    of = balancer(a=1)
    ticket = of.begin(of.members["a"], Demand(0, 10), 0.0)
    ticket.advance(25)
    of.end(ticket)
    assert of.members["a"].outstanding == 0


def prompt(*texts: str) -> Demand:
    return Demand(10, 90, hashes(texts))


def test_a_prompt_goes_to_the_member_that_had_its_beginning() -> None:
    of = balancer(a=1, b=1)
    first = prompt("x" * 4 * CHUNK)
    of.begin(of.members["b"], first, 0.0)
    assert chosen(of) == "a"
    assert chosen(of, prompt("x" * 4 * CHUNK, "y" * CHUNK)) == "b"
    assert chosen(of, prompt("z" * 4 * CHUNK)) == "a"
    assert chosen(of, first, tried=["b"]) == "a"


def test_a_member_with_far_more_tokens_is_not_preferred_for_a_prefix() -> None:
    of = balancer(a=1, b=1)
    first = prompt("x" * 4 * CHUNK)
    of.end(of.begin(of.members["b"], first, 0.0))
    of.begin(of.members["a"], Demand(0, 1000), 0.0)
    limit = int(OVERLOADED * 1000) + SPARE
    of.begin(of.members["b"], Demand(0, limit), 0.0)
    assert chosen(of, first) == "b"
    of.begin(of.members["b"], Demand(0, 1), 0.0)
    assert chosen(of, first) == "a"


def test_a_member_that_is_gone_has_no_prefix() -> None:
    of = balancer(a=1, b=1)
    of.begin(of.members["b"], prompt("x" * 4 * CHUNK), 0.0)
    of.remove(of.members["b"])
    assert chosen(of, prompt("x" * 4 * CHUNK)) == "a"


def test_members_that_cannot_take_requests_are_not_chosen() -> None:
    of = balancer(a=1, b=1, c=1, d=1, e=0)
    of.members["a"].problem = "the upstream a cannot be reached"
    of.members["b"].rest(7.0, 0.0)
    of.fail(of.begin(of.members["c"], SMALL, 0.0), 0.0)
    of.members["d"].is_leaving = True
    states = {name: of.state(member, 0.0) for name, member in of.members.items()}
    assert states == {"a": "unready", "b": "busy", "c": "open", "d": "draining", "e": "draining"}
    assert chosen(of) == ""
    assert chosen(of, now=5.0) == "c"
    assert chosen(of, now=7.0) == "b"  # it has no request
    refusal = of.refusal(1.0)
    assert isinstance(refusal, Overloaded)
    assert refusal.retry_after == 6.0
    assert str(refusal) == (
        "no upstream can take requests: the upstream a cannot be reached; b is busy; c is open; d "
        "is draining; e is draining"
    )


def test_a_refusal_says_when_the_first_circuit_may_close() -> None:
    of = balancer(a=1, b=1)
    for name, now in (("a", 0.0), ("b", 1.0)):
        of.fail(of.begin(of.members[name], SMALL, now), now)
    refusal = of.refusal(2.0)
    assert isinstance(refusal, ServableUnavailable)
    assert refusal.retry_after == 3.0


def test_a_rest_is_bounded() -> None:
    of = balancer(a=1)
    of.members["a"].rest(1e9, 0.0)
    assert (chosen(of, now=59.0), chosen(of, now=60.0)) == ("", "a")


def test_members_tried_before_are_chosen_only_if_no_other_is_left() -> None:
    of = balancer(a=1, b=1)
    assert chosen(of, tried=["a"]) == "b"
    assert chosen(of, tried=["a", "b"]) == "a"


def test_a_half_open_member_gets_a_single_request_until_its_result() -> None:
    of = balancer(a=1)
    of.fail(of.begin(of.members["a"], SMALL, 0.0), 0.0)
    trial = of.begin(of.members["a"], SMALL, 5.0)
    assert (chosen(of, now=5.0), of.state(of.members["a"], 5.0)) == ("", "half-open")
    of.end(trial)  # without a result
    assert chosen(of, now=5.0) == "a"
    of.succeed(of.begin(of.members["a"], SMALL, 5.0), 5.0)
    assert of.state(of.members["a"], 5.0) == "slow start"


def shares(of: Balancer, times: Sequence[float]) -> list[float]:
    """The share of "b" among 200 requests, at each time."""
    return [counted(of, 200, now, ends=True)["b"] / 200 for now in times]


def test_a_member_that_comes_back_gets_its_share_little_by_little() -> None:
    of = balancer(a=1, b=1)
    of.members["b"].start_slowly(1000.0)
    at = shares(of, [1000.0, 1050.0, 1100.0])
    assert at == pytest.approx([1 / 11, 1 / 3, 1 / 2], abs=0.02)
    assert of.state(of.members["b"], 1099.0) == "slow start"
    assert of.state(of.members["b"], 1100.0) == "ready"


def test_a_member_that_was_away_does_not_catch_up() -> None:
    of = balancer(a=1, b=1)
    of.members["b"].problem = "away"
    counted(of, 100, 0.0, ends=True)
    of.members["b"].problem = ""
    assert counted(of, 10, 0.0, ends=True)["a"] >= 4
    of.add(FleetMember("new", 1, CircuitBreaker(0, 5.0)))
    assert counted(of, 30, 0.0, ends=True)["new"] == pytest.approx(10, abs=1)


def test_a_fleet_is_ready_while_any_member_can_be_reached() -> None:
    of = balancer(a=1, b=1)
    of.members["a"].problem = "a is away"
    of.fail(of.begin(of.members["b"], SMALL, 0.0), 0.0)
    assert unready_reason(of.members.values()) == ""  # or no request would ever close the circuit
    of.members["b"].is_leaving = True
    assert unready_reason(of.members.values()) == "a is away; b is draining"
