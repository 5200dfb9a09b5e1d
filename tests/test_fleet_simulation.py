"""The simulation of a fleet: known answers, and that no request is lost with a replica."""

from dataclasses import replace

import pytest

from benchmarks.fleet import CHUNK, Fleet, Turn
from benchmarks.fleet_plan import Costs, Plan

COSTS = Costs(dispatch=0.5, reply=0.01, step=1.0, sequence=0.1, prompt=0.001, fetch=0.0001)
PROMPT = list(range(10))  # hashes


def answered(fleet: Fleet, turns: list[Turn], until: float = 1e6) -> list[Turn]:
    done: list[Turn] = []
    fleet.on_answered = lambda _, turn: done.append(turn)
    for turn in turns:
        fleet.submit(turn)
    fleet.run(until)
    return done


def turn_at(arrival: float, num_answer: int = 3, chat: int = 0) -> Turn:
    return Turn(PROMPT, 10 * CHUNK, num_answer, arrival, chat)


def test_a_turn_alone_takes_the_sum_of_its_costs() -> None:
    (turn,) = answered(Fleet(COSTS, Plan("one", 1, budget=10_000)), [turn_at(1.0)])
    prompt = 1.0 + 10 * CHUNK * 0.001
    assert turn.first == pytest.approx(1.0 + 0.5 + prompt + 0.01)
    assert turn.end == pytest.approx(1.0 + 0.5 + prompt + 2 * (1.0 + 0.1) + 0.01)


def test_prompts_over_the_budget_take_more_steps() -> None:
    (turn,) = answered(Fleet(COSTS, Plan("one", 1, budget=CHUNK)), [turn_at(0.0, 1)])
    assert turn.first == pytest.approx(0.5 + 10 * 1.0 + 10 * CHUNK * 0.001 + 0.01)


def test_a_prompt_goes_where_its_beginning_is_cached() -> None:
    turns = [turn_at(30.0 * number) for number in range(4)]
    assert len(answered(Fleet(COSTS, Plan("prefix", 3)), turns)) == 4
    assert [turn.num_cached for turn in turns] == [0, 640, 640, 640]
    turns = [turn_at(30.0 * number) for number in range(4)]
    answered(Fleet(COSTS, Plan("fewest", 3, has_prefixes=False)), turns)
    assert [turn.num_cached for turn in turns] == [0, 0, 0, 640]


def test_another_replica_reads_a_prompt_from_the_store() -> None:
    turns = [turn_at(30.0 * number) for number in range(2)]
    answered(Fleet(COSTS, Plan("store", 2, has_store=True, has_prefixes=False)), turns)
    assert (turns[1].num_cached, turns[1].num_fetched) == (0, 640)
    computed, fetched = (turn.first - turn.arrival for turn in turns)
    assert fetched == pytest.approx(computed - 639 * 0.001 - 1.0 + 640 * 0.0001)  # a step fewer


def roles(count: int = 4, **costs: float) -> Fleet:
    """Half of the replicas compute prompts."""
    measured = replace(COSTS, dispatch=0.001, reply=0.0001, transfer=0.0002, **costs)
    return Fleet(measured, Plan("roles", count, num_prefill=count // 2))


def distinct(number: int, num_answer: int = 50) -> Turn:
    """A turn whose prompt begins unlike all others."""
    turn = turn_at(5.0 * number, num_answer)
    return replace(turn, hashes=[hash((number, index)) for index in PROMPT])


def test_prefill_replicas_compute_prompts_and_do_not_decode() -> None:
    fleet = roles()
    assert len(answered(fleet, [distinct(number) for number in range(8)])) == 8
    assert (fleet.num_handed_off, fleet.num_local) == (8, 0)
    assert all(0 < replica.num_steps <= 4 * 3 for replica in fleet.replicas[:2])
    assert all(replica.num_steps >= 50 for replica in fleet.replicas[2:])


def test_a_handed_off_turn_takes_a_prompt_its_transfer_and_the_rest() -> None:
    (turn,) = answered(roles(2), [distinct(0, 1)])
    prompt = 1.0 + (9 * CHUNK + 32) * 0.001 * 1.0  # in steps of 512 tokens: two
    rest = 1.0 + 32 * 0.001
    moved = (9 * CHUNK + 32) * 0.0002
    assert turn.first == pytest.approx(0.002 + 1.0 + prompt + 0.0001 + moved + rest + 0.0001)


def test_a_cached_prompt_is_not_handed_off() -> None:
    fleet = roles(2)
    turns = [replace(distinct(0, 1), arrival=when) for when in (0.0, 50.0)]
    answered(fleet, turns)
    assert (fleet.num_handed_off, fleet.num_local) == (1, 1)
    assert turns[1].num_cached == 640


def test_nothing_is_handed_off_where_moving_costs_more_than_computing() -> None:
    fleet = roles(prompt=0.0001)
    answered(fleet, [distinct(number) for number in range(8)])
    assert (fleet.num_handed_off, fleet.num_local) == (0, 8)


def test_a_replica_computes_prompts_itself_if_another_is_lost() -> None:
    fleet = roles(2)
    fleet.at(0.5, fleet.lose, 0)
    (turn,) = answered(fleet, [distinct(0)])
    assert (fleet.num_handed_off, fleet.num_retried, fleet.num_failed) == (1, 0, 0)
    assert turn.first > 0.5 + 2.0


@pytest.mark.parametrize("num_prefill", [0, 2])
@pytest.mark.parametrize("num_masters", [1, 2])
def test_every_turn_is_answered_though_replicas_are_lost(
    num_prefill: int, num_masters: int
) -> None:
    plan = Plan("lost", 4, num_prefill=num_prefill, num_masters=num_masters, restart=5.0)
    fleet = Fleet(COSTS, plan)
    for number, when in ((0, 3.0), (3, 6.0), (1, 7.0), (3, 16.0), (0, 20.0)):
        fleet.at(when, fleet.lose, number)
    turns = [turn_at(0.3 * number, 8, chat=number) for number in range(60)]
    done = answered(fleet, turns)
    assert len(done) == 60
    assert set(map(id, done)) == set(map(id, turns))
    assert fleet.num_failed > 0
    assert fleet.num_retried > 0
    assert all(turn.end >= turn.first > turn.arrival for turn in turns)
    counts = [num for master in fleet.masters for each in master.balancers
              for num in each._num_open.values()]  # fmt: skip
    assert set(counts) == {0}
