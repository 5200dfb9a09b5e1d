"""A simulation of language models on many replicas, with the decision modules of the master.

Real are `StreamBalancer`, `PrefixMap`, `decide_retry` and, with roles, `is_worth_handoff`; links,
engines and time are simulated.  An engine runs steps: each has the next token of all its sequences,
and pieces of prompts within a budget.  A replica that is lost is back, with an empty cache, after
`Plan.restart` seconds.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from time import process_time
from typing import Any, cast

from benchmarks.fleet_plan import BLOCK, Costs, Plan
from mindspore_serving.core.prefixes import PrefixMap
from mindspore_serving.llm.engine.handoff_choice import is_worth_handoff
from mindspore_serving.llm.serving.handoffs import CACHE_SHARE
from mindspore_serving.master.request import (
    NO_REQUEST,
    PendingPart,
    RetryDecision,
    decide_retry,
)
from mindspore_serving.master.streamed import StreamBalancer

CHUNK = 64  # tokens of a hash, as `PrefixMap` counts token ids


@dataclass(slots=True, eq=False)
class Turn:
    """A request: its prompt as hashes, and the number of tokens of its answer."""

    hashes: Sequence[int]
    num_tokens: int
    num_answer: int
    arrival: float
    chat: int = 0
    next_hashes: Sequence[int] = ()  # of prompt and answer, for the cache
    first: float = 0.0  # when the first token was sent
    end: float = 0.0
    num_cached: int = 0
    num_fetched: int = 0
    left: int = 0  # prompt tokens to be computed


@dataclass(slots=True, eq=False)
class Part(PendingPart):
    """A turn at a replica, or the prompt of another part that a replica computes."""

    turn: Turn = field(default_factory=lambda: Turn((), 0, 1, 0.0))
    num_moved: int = 0  # tokens that another replica has computed, or is to
    source: "tuple[Replica, int, Part] | None" = None  # of a prompt: who waits, in which epoch


class Master:
    """A master: one processor, its balancers, and the prefixes that replicas had."""

    def __init__(self, prompts: "list[Replica]", decodes: "list[Replica]") -> None:
        self.free_at = 0.0
        self.prompts, self.decodes = prompts, decodes
        self.prefixes: PrefixMap[Any] = PrefixMap()
        self.balancers = [StreamBalancer(lambda _: None) for _ in range(2)]
        for balancer, links in zip(self.balancers, (prompts, decodes), strict=True):
            for link in links:
                balancer.add_worker(cast(Any, link))

    def enter(self, now: float, seconds: float) -> float:
        """When work that comes `now` is done."""
        self.free_at = max(now, self.free_at) + seconds
        return self.free_at


class Replica:
    """An engine, and the link to it."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self.fleet, self.number, self.epoch = fleet, number, 0
        self.master: Master
        self.clear()

    def clear(self) -> None:
        self.waiting: deque[Part] = deque()
        self.running: list[tuple[int, int, Part]] = []  # a heap by the step of the last token
        self.computed: list[Part] = []  # whose prompts end with this step
        self.started: Part | None = None  # whose prompt is computed in part
        self.num_steps = 0
        self.is_busy = False
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.handed_off: set[Part] = set()  # whose prompts other replicas compute

    def send_work(self, parts: Sequence[Part], now: float, _: object) -> None:
        """As `Link.send_work`: prompts come after what is read from the store."""
        costs = self.fleet.costs
        for part in parts:
            turn = part.turn
            known = _shared(turn.hashes, self.cache) * CHUNK
            stored = known
            if self.fleet.plan.has_store and costs.fetch < costs.prompt:
                stored = max(known, _shared(turn.hashes, self.fleet.store) * CHUNK)
            turn.num_cached, turn.num_fetched = known, stored - known
            turn.left = max(1, turn.num_tokens - stored)
            wait = turn.num_fetched * costs.fetch
            if self.fleet.plan.num_prefill and part.source is None and self.hand_off(now, part):
                continue
            self.fleet.at(now + wait, self.enqueue, part, self.epoch)

    def hand_off(self, now: float, part: Part) -> bool:
        """Let another replica compute a prompt; return whether that is worth it."""
        turn, plan = part.turn, self.fleet.plan
        ahead = sum(other.num_moved for other in self.handed_off) // BLOCK
        num_blocks = (turn.left - 1) // BLOCK
        is_worth = num_blocks and is_worth_handoff(
            num_blocks,
            num_streams=len(self.running) + len(self.handed_off),
            num_ahead=ahead,
            costs=self.fleet.handoff_costs,
        )
        if not is_worth or num_blocks + ahead > plan.cache_tokens // BLOCK // CACHE_SHARE:
            self.fleet.num_local += 1
            return False
        self.fleet.num_handed_off += 1
        part.num_moved = num_blocks * BLOCK
        self.handed_off.add(part)
        self.fleet.send_prompt(now, part, self)
        return True

    def take_back(self, now: float, part: Part, epoch: int, num_tokens: int) -> None:
        """Go on with a part of whose prompt `num_tokens` have come, or 0 after a failure."""
        if epoch == self.epoch:  # else it was retried
            self.handed_off.remove(part)
            part.num_moved = num_tokens
            part.turn.left = max(1, part.turn.left - num_tokens)
            self.enqueue(now, part, epoch)

    def enqueue(self, now: float, part: Part, epoch: int) -> None:
        if epoch != self.epoch:
            self.fleet.retry(now, part, was_running=False)
            return
        self.waiting.append(part)
        if not self.is_busy:
            self.step(now, epoch)

    def step(self, now: float, epoch: int) -> None:
        """Begin a step, if there is anything to do."""
        if epoch != self.epoch:
            return
        costs, plan = self.fleet.costs, self.fleet.plan
        num = len(self.running)
        budget = max(1, plan.budget - num)
        tokens = 0
        while tokens < budget and (self.started or self.waiting):
            if self.started is None:
                if num + len(self.computed) >= plan.max_running:
                    break
                self.started = self.waiting.popleft()
                self._find_cached(self.started)
            part = self.started
            piece = min(part.turn.left, budget - tokens)
            part.turn.left -= piece
            tokens += piece
            if part.turn.left > 0:
                break
            self.computed.append(part)
            self.started = None
        self.is_busy = bool(num or tokens or self.computed)
        if self.is_busy:
            seconds = costs.step + costs.sequence * num + costs.prompt * tokens
            if num:
                self.fleet.gaps[round(1000 * seconds)] += num
            self.fleet.at(now + seconds, self.end_step, epoch)

    def _find_cached(self, part: Part) -> None:
        """Leave out what another prompt has computed while this one waited."""
        turn = part.turn
        known = _shared(turn.hashes, self.cache) * CHUNK
        if known > turn.num_cached + turn.num_fetched + part.num_moved:
            turn.num_cached, turn.num_fetched = known, 0
            turn.left = max(1, turn.num_tokens - known)

    def end_step(self, now: float, epoch: int) -> None:
        if epoch != self.epoch:
            return
        self.num_steps += 1
        sent = self.master.enter(
            now, self.fleet.costs.reply * (len(self.running) + len(self.computed))
        )
        while self.running and self.running[0][0] <= self.num_steps:
            self.finish(sent, heapq.heappop(self.running)[2])
        for part in self.computed:
            self.begin(sent, part)
        self.computed = []
        self.step(now, epoch)

    def begin(self, sent: float, part: Part) -> None:
        """Send the first token of a prompt that is computed, or its blocks."""
        turn = part.turn
        self.keep(turn.hashes)
        if self.fleet.plan.has_store:
            self.fleet.store.update(dict.fromkeys(turn.hashes))
        if part.source is not None:
            self.release(part)
            replica, epoch, waiting = part.source
            when = sent + waiting.num_moved * self.fleet.costs.transfer
            self.fleet.at(when, replica.take_back, waiting, epoch, waiting.num_moved)
            return
        turn.first = sent
        part.has_replied = True
        left = turn.num_answer - 1
        if left < 1:
            self.finish(sent, part)
        else:
            last = self.num_steps + left
            heapq.heappush(self.running, (last, next(self.fleet.numbers), part))

    def finish(self, sent: float, part: Part) -> None:
        self.keep(part.turn.next_hashes or part.turn.hashes)
        self.release(part)
        part.turn.end = sent
        self.fleet.on_answered(sent, part.turn)

    def release(self, part: Part) -> None:
        """Let the balancer count a stream less."""
        balancer = self.master.balancers[part.source is None]
        balancer.on_answers(cast(Any, self), [(part, LAST)])

    def keep(self, hashes: Iterable[int]) -> None:
        """Cache blocks; the least recently used ones are evicted."""
        cache = self.cache
        for each in hashes:
            cache[each] = None
            cache.move_to_end(each)
        while len(cache) * CHUNK > self.fleet.plan.cache_tokens:
            cache.popitem(last=False)


class _Last:
    is_last = True


LAST = cast(Any, _Last())


class Fleet:
    """Replicas by a plan, behind one master or several.

    `on_answered(now, turn)` is called for each answer, and may `submit` more.
    """

    def __init__(self, costs: Costs, plan: Plan) -> None:
        self.costs, self.plan = costs, plan
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.numbers = count()
        self.gaps: Counter[int] = Counter()  # milliseconds between two tokens of a sequence
        self.store: dict[int, None] = {}
        self.num_retried = self.num_failed = 0
        self.handoff_costs = costs.handoff()
        self.num_handed_off = self.num_local = 0  # prompts of replicas that decode
        self.num_decisions, self.decision_seconds = 0, 0.0
        self.on_answered: Callable[[float, Turn], None] = lambda now, turn: None
        replicas = [Replica(self, number) for number in range(plan.num_replicas)]
        self.masters = []
        for number in range(plan.num_masters):
            mine = replicas[number :: plan.num_masters]
            num_prefill = -(-plan.num_prefill // plan.num_masters)
            master = Master(mine[:num_prefill], mine[num_prefill:])
            for replica in mine:
                replica.master = master
            self.masters.append(master)
        self.replicas = replicas

    def at(self, when: float, run: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), run, arguments))

    def submit(self, turn: Turn) -> None:
        """Let a request arrive at its time."""
        self.at(turn.arrival, self._arrive, turn)

    def run(self, until: float) -> None:
        """Run all events before `until` seconds."""
        while self.events and self.events[0][0] < until:
            now, _, run, arguments = heapq.heappop(self.events)
            run(now, *arguments)

    def lose(self, now: float, number: int) -> None:
        """Lose a replica: what it has is run again, or fails; it is back later."""
        replica = self.replicas[number]
        master = replica.master
        replica.epoch += 1
        running = [part for _, _, part in replica.running] + replica.computed
        running += [replica.started] if replica.started else []
        waiting = [*replica.waiting, *replica.handed_off]
        master.prefixes.remove(cast(Any, replica))
        for balancer, links in zip(master.balancers, (master.prompts, master.decodes), strict=True):
            if replica in links:
                balancer.remove_worker(cast(Any, replica))
                links.remove(replica)
        replica.clear()
        self.at(now + self.plan.restart, self._restore, replica)
        for part in running:
            self.retry(now, part, was_running=True)
        for part in waiting:
            self.retry(now, part, was_running=False)

    def _restore(self, now: float, replica: Replica) -> None:
        master, number = replica.master, replica.number
        index = number // self.plan.num_masters
        is_prefill = index < -(-self.plan.num_prefill // self.plan.num_masters)
        for balancer, links, takes in zip(
            master.balancers,
            (master.prompts, master.decodes),
            (is_prefill, not is_prefill),
            strict=True,
        ):
            if takes and replica not in links:
                links.append(replica)
            if takes:
                balancer.add_worker(cast(Any, replica))

    def retry(self, now: float, part: Part, *, was_running: bool) -> None:
        """Decide as the master does; a client whose stream has begun asks again."""
        turn = part.turn
        if part.source is not None:  # the replica that waits for the prompt computes it
            replica, epoch, waiting = part.source
            replica.take_back(now, waiting, epoch, 0)
            return
        if decide_retry(part, was_running=was_running, can_retry=True) is RetryDecision.FAIL:
            self.num_failed += 1
        else:
            self.num_retried += 1
        self.send(now, turn)

    def _arrive(self, now: float, turn: Turn) -> None:
        master = self.masters[turn.chat % len(self.masters)]
        self.at(master.enter(now, self.costs.dispatch), self.send, turn)

    def send_prompt(self, now: float, part: Part, replica: Replica) -> None:
        """Send the prompt of a part to a replica that computes prompts."""
        turn, master = part.turn, replica.master
        if not master.prompts:
            self.at(now, replica.take_back, part, replica.epoch, 0)
            return
        prompt = replace(turn, num_answer=1, next_hashes=())
        prompt.num_tokens = turn.num_tokens - turn.left + part.num_moved
        source = replica, replica.epoch, part
        job = Part(NO_REQUEST, 0, "llm", (), is_stream=True, turn=prompt, source=source)
        link = master.balancers[0].choose(cast(Any, master.prompts))
        master.prompts.remove(cast(Any, link))
        master.prompts.append(cast(Any, link))
        sent = master.enter(now, self.costs.dispatch)
        master.balancers[0].send(job, link, sent)

    def send(self, now: float, turn: Turn) -> None:
        """Choose a replica as `StreamedMethod` does."""
        master = self.masters[turn.chat % len(self.masters)]
        links, balancer = master.decodes, master.balancers[1]
        if not links:
            self.at(now + 1.0, self.send, turn)
            return
        began = process_time()
        if not self.plan.has_prefixes or len(links) == 1 or not turn.hashes:
            link = balancer.choose(cast(Any, links))
        else:
            holders = master.prefixes.find(turn.hashes, cast(Any, links))
            link = balancer.choose(cast(Any, links), holders)
            master.prefixes.add(turn.hashes, link)
        self.decision_seconds += process_time() - began
        self.num_decisions += 1
        links.remove(cast(Any, link))  # as `_make_last`: equal workers take turns
        links.append(cast(Any, link))
        part = Part(NO_REQUEST, 0, "llm", (), is_stream=True, turn=turn)
        balancer.send(part, link, now)


def _shared(hashes: Sequence[int], cached: "dict[int, None]") -> int:
    """How many hashes from the first are cached."""
    return next((i for i, each in enumerate(hashes) if each not in cached), len(hashes))
