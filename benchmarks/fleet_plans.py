"""Plans for a fleet of language models, compared at the rate that each can take: cost, not speed.

Chats of several apps: the prompt of a turn is the app's, all that was said, and the turn's.  A
plan is sized by the highest rate at which 99 of 100 first tokens come within `FIRST` seconds and
99 of 100 further tokens within `GAP` seconds after the one before.
"""

import random
from dataclasses import dataclass, replace
from math import ceil
from statistics import quantiles

from benchmarks.fleet import CHUNK, Fleet, Turn
from benchmarks.fleet_plan import Costs, Plan
from benchmarks.report import print_json, print_table

FIRST, GAP = 5.0, 0.25  # seconds
SIZED = 20  # replicas of which a plan is sized
SPARE = 0.9  # of the rate of the sized plan, for as many more replicas
MASTER_LOAD = 0.7  # of a master's processor
APPS, APP_TOKENS, TURN_TOKENS, ANSWER, TURNS, THINK = 40, 2048, 128, 64, 4, 8.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in seconds, shares and answers of a run, without its first quarter."""

    first: float  # 99th percentile
    gap: float  # 99th percentile
    hits: float  # share of prompt tokens that were in a cache
    fetched: float  # share that was read from the store
    tokens: float  # generated per second
    retried: int
    failed: int
    decision: float  # seconds of processor time, per choice of a replica
    handed_off: float = 0.0  # share of prompts that replicas with prefill were to compute

    @property
    def is_good(self) -> bool:
        return self.tokens > 0 and self.first <= FIRST and self.gap <= GAP


class Chats:
    """Chats that begin at `rate` per second; the next turn comes some time after the answer."""

    def __init__(self, fleet: Fleet, rate: float, seconds: float, seed: int = 1) -> None:
        self._draw = random.Random(seed)
        self._fleet = fleet
        self._seconds = seconds
        self._rate = rate
        self.asked: list[Turn] = []
        self.done: list[Turn] = []
        self._said: dict[int, int] = {}  # turns, by chat
        fleet.on_answered = self._on_answered

    def start(self) -> None:
        """Let all chats begin, as many of them in the middle as there are in the long run."""
        now, chat = -TURNS * THINK, 0
        while now < self._seconds:
            now += self._draw.expovariate(self._rate)
            chat += 1
            turn = max(0, int(-now / THINK)) if now < 0 else 0
            self._submit(max(0.0, now) + self._draw.random() * THINK * (now < 0), chat, turn)

    def _submit(self, when: float, chat: int, number: int) -> None:
        if number >= TURNS:
            return
        self._said[chat] = number + 1
        app = int(APPS * (chat * 0.6180339887 % 1) ** 2)  # the first apps have more chats
        length = APP_TOKENS + number * (TURN_TOKENS + ANSWER) + TURN_TOKENS
        turn = Turn(_hashes(app, chat, length), length, ANSWER, when, chat)
        turn.next_hashes = _hashes(app, chat, length + ANSWER)
        self.asked.append(turn)
        self._fleet.submit(turn)

    def _on_answered(self, now: float, turn: Turn) -> None:
        self.done.append(turn)
        pause = self._draw.expovariate(1 / THINK)
        self._submit(now + pause, turn.chat, self._said[turn.chat])


def _hashes(app: int, chat: int, length: int) -> list[int]:
    common = [hash((app, -1, index)) for index in range(APP_TOKENS // CHUNK)]
    return common + [hash((chat, index)) for index in range((length - APP_TOKENS) // CHUNK)]


def simulate(costs: Costs, plan: Plan, rate: float, seconds: float, lost: int = 0) -> Outcome:
    """Run chats at `rate`; `lost` replicas are lost at half of the time."""
    fleet = Fleet(costs, plan)
    chats = Chats(fleet, rate, seconds)
    chats.start()
    for number in range(lost):
        fleet.at(seconds / 2, fleet.lose, number * plan.num_replicas // lost)
    fleet.run(seconds)
    turns = [turn for turn in chats.done if turn.arrival >= seconds / 4]
    asked = sum(turn.num_tokens for turn in turns) or 1
    waiting = [turn for turn in chats.asked if not turn.first and turn.arrival < seconds]
    firsts = [(turn.first or seconds) - turn.arrival for turn in turns + waiting]
    return Outcome(
        quantiles(firsts, n=100)[98] if len(firsts) > 100 else seconds,
        _gap(fleet),
        sum(turn.num_cached for turn in turns) / asked,
        sum(turn.num_fetched for turn in turns) / asked,
        sum(turn.num_answer for turn in turns) / (seconds * 3 / 4),
        fleet.num_retried,
        fleet.num_failed,
        fleet.decision_seconds / max(1, fleet.num_decisions),
        fleet.num_handed_off / max(1, fleet.num_handed_off + fleet.num_local),
    )


def _gap(fleet: Fleet) -> float:
    total, left = sum(fleet.gaps.values()), 0
    for milliseconds in sorted(fleet.gaps, reverse=True):
        left += fleet.gaps[milliseconds]
        if left > total / 100:
            return milliseconds / 1000
    return 0.0


def plans(count: int, masters: int = 1) -> list[Plan]:
    """The plans that are compared, of `count` replicas."""
    base = Plan("fewest open requests", count, has_prefixes=False, num_masters=masters)
    prefixes = replace(base, name="by prefix", has_prefixes=True)
    store = replace(prefixes, name="by prefix, store", has_store=True)
    roles = [
        replace(store, name=f"{share:.0%} prefill, store", num_prefill=round(share * count))
        for share in (0.25, 0.5)
    ]
    return [base, replace(base, name="fewest, store", has_store=True), prefixes, store, *roles]


def size(costs: Costs, plan: Plan, seconds: float) -> float:
    """Return the highest rate of chats that a plan can take, to 4 %."""
    low, high = 0.0, 1.0 * plan.num_replicas
    while high - low > 0.04 * high:
        rate = (low + high) / 2
        if simulate(costs, plan, rate, seconds).is_good:
            low = rate
        else:
            high = rate
    return low


def show(costs: Costs, large: int, seconds: float) -> None:
    """Size each plan, and run it with `large` replicas, without and with losses of a twentieth."""
    rows = []
    for plan in plans(SIZED):
        rate = size(costs, plan, 3 * seconds)
        if not rate:
            rows.append([plan.name, "0"])
            continue
        small = simulate(costs, plan, rate, 3 * seconds)
        price = plan.price * plan.num_replicas / 3600 / small.tokens * 1e6
        print_json("fleet_plan", plan=plan.name, chats=rate / SIZED, price=price, hits=small.hits,
                   fetched=small.fetched, first=small.first, gap=small.gap,
                   handed_off=small.handed_off)  # fmt: skip
        shown = f"{rate / SIZED:.3f}", f"{small.hits:.2f}", f"{small.fetched:.2f}"
        shown += (f"{small.handed_off:.2f}",)
        rows.append([plan.name, *shown, f"{small.tokens / SIZED:.1f}", f"{price:.2f}"])
        rows[-1] += _large(costs, plan, SPARE * rate * large / SIZED, large, seconds)
    header = ["plan", "chats/s", "hits", "read", "handed off", "tokens/s", "$ / million tokens"]
    header += ["one master", "masters", "tokens/s", "first p99", "again", "failed", "first p99"]
    width = len(header)
    print_table(header, [row + ["-"] * (width - len(row)) for row in rows])


def _large(costs: Costs, plan: Plan, rate: float, large: int, seconds: float) -> list[str]:
    """The plan with `large` replicas: behind one master, and behind as many as it needs."""
    share = large // plan.num_replicas
    grown = replace(plan, num_replicas=large, num_prefill=plan.num_prefill * share)
    work = rate * TURNS * (costs.dispatch + ANSWER * costs.reply)
    spread = replace(grown, num_masters=max(1, ceil(work / MASTER_LOAD)))
    one = simulate(costs, grown, rate, seconds)
    many = simulate(costs, spread, rate, seconds)
    lost = simulate(costs, spread, rate, seconds, large // 20)
    print_json("fleet_large", plan=plan.name, replicas=large, masters=spread.num_masters,
               first=many.first, tokens=many.tokens, tokens_one=one.tokens, hits=many.hits,
               choice_us=1e6 * many.decision, choice_us_one=1e6 * one.decision,
               retried=lost.retried, failed=lost.failed, first_lost=lost.first)  # fmt: skip
    shown = f"{one.tokens / large:.1f}", f"{spread.num_masters}", f"{many.tokens / large:.1f}"
    return [*shown, f"{many.first:.2f}", f"{lost.retried}", f"{lost.failed}", f"{lost.first:.2f}"]
