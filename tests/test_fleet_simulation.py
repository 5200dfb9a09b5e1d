"""The simulation of a fleet: known answers, and that no request is lost with a replica."""

from dataclasses import replace

import pytest

from benchmarks.fleet import CHUNK, Costs, Fleet, Plan, Turn

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


def test_prefill_replicas_do_not_decode() -> None:
    fleet = Fleet(replace(COSTS, transfer=0.0002), Plan("roles", 4, num_prefill=2))
    turns = [turn_at(0.1 * number, 50) for number in range(8)]
    assert len(answered(fleet, turns)) == 8
    assert all(replica.num_steps <= 4 * 3 for replica in fleet.replicas[:2])
    assert all(replica.num_steps >= 50 for replica in fleet.replicas[2:])


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
