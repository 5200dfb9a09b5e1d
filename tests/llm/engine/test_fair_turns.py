"""Turns of tenants: those with many sequences wait, the others do not."""

from mindspore_serving.llm.engine import fair_turns
from mindspore_serving.llm.engine.fair_turns import FairTurns
from mindspore_serving.llm.engine.sequence import Sequence, order_of


class Line:
    """A queue by turns, whose sequences end with `answer` more tokens as soon as they begin."""

    def __init__(self, answer: int = 0) -> None:
        self.turns, self.answer = FairTurns(), answer
        self.waiting: list[Sequence] = []
        self.num_arrivals = 0

    def add(self, tenant: str, num_tokens: int = 10, count: int = 1) -> None:
        for _ in range(count):
            order = (0, self.num_arrivals, 0)
            sequence = Sequence([1] * num_tokens, 1000, order, tenant=tenant)
            self.num_arrivals += 1
            self.turns.enter(sequence)
            self.waiting.append(sequence)

    def run(self, count: int) -> str:
        """Return the tenants of the next `count` sequences."""
        names = []
        for _ in range(count):
            sequence = min(self.waiting, key=order_of)
            self.waiting.remove(sequence)
            self.turns.begin(sequence)
            sequence.tokens += [1] * self.answer
            self.turns.leave(sequence)
            names.append(sequence.tenant)
        return "".join(names)


def test_sequences_of_a_tenant_keep_their_order():
    line = Line(answer=3)
    for number in range(50):
        line.add("", num_tokens=1 + number * 7 % 11)
        if number % 3:
            line.run(1)
    arrivals = []
    while line.waiting:
        arrivals.append(min(line.waiting, key=order_of).order[1])
        line.run(1)
    assert arrivals == sorted(arrivals)


def test_a_tenant_with_few_sequences_is_next():
    line = Line()
    line.add("h", count=100)
    assert line.run(5) == "hhhhh"
    line.add("l")
    assert line.run(2) in ("lh", "hl")
    line.add("l")
    line.add("m")
    assert sorted(line.run(3)) in (["h", "l", "m"], ["l", "m", "m"])


def test_turns_alternate_by_tokens_and_not_by_sequences():
    line = Line()
    line.add("h", num_tokens=40, count=20)
    line.add("l", num_tokens=10, count=40)
    assert line.run(25).count("l") in (19, 20, 21)


def test_long_answers_count_for_their_tenant():
    line = Line()
    line.add("h", num_tokens=5, count=8)
    line.answer = 35  # of the tenant h
    line.run(8)
    line.answer = 0
    line.add("h", num_tokens=5, count=20)
    line.add("l", num_tokens=5, count=100)
    assert line.run(40).count("h") < 10


def test_a_tenant_that_was_idle_saves_nothing():
    line = Line()
    line.add("h", count=100)
    line.run(90)
    line.add("l", count=50)
    assert 8 <= line.run(20).count("h") <= 12


def test_tenants_that_have_caught_up_are_forgotten(monkeypatch):
    monkeypatch.setattr(fair_turns, "MAX_TENANTS", 4)
    line = Line()
    for number in range(20):
        line.add(f"t{number}")
        line.run(1)
    assert len(line.turns._accounts) <= 4
