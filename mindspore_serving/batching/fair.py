"""Queue with the interface of `Batcher` whose items leave in turns of their tenants.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): an item gets its turn when it is queued: the
virtual time, which is the turn of the item that left last, or later by the cost of the tenant's
items before it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from mindspore_serving.batching.batcher import MAX_SAMPLE, Batcher

T = TypeVar("T")
MAX_TENANTS = 1024  # without queued items, whose next turn is known


class _Queued(NamedTuple, Generic[T]):
    arrival: int
    since: float
    turn: float
    item: T


class FairBatcher(Generic[T]):
    """FIFO queue for each tenant; a batch may mix tenants, and is complete as that of a `Batcher`.

    `tenant_of` and `cost_of` return the tenant and the cost of an item.
    """

    def __init__(
        self, queue: Batcher[T], tenant_of: Callable[[T], str], cost_of: Callable[[T], float]
    ) -> None:
        """Take over the items and the settings of `queue`."""
        self._delay, self._preferred = queue.max_batch_delay_ms / 1000, queue.preferred_batch_size
        self._tenant_of, self._cost_of = tenant_of, cost_of
        self._queues: dict[str, deque[_Queued[T]]] = {}
        self._heads: list[tuple[float, int, str]] = []  # heap of turn, arrival and tenant
        self._returned: deque[T] = deque()
        self._next: dict[str, float] = {}  # turn of a tenant's next item
        self._now = 0.0  # virtual time
        self._length = self._num_arrivals = 0
        for since, item in queue.pairs():
            self.add(item, since)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items, the oldest first."""
        return chain(self._returned, (queued.item for queued in merge(*self._queues.values())))

    def num_ahead(self, tenant: str) -> int:
        """Return how many queued items leave before one that `tenant` would add, about."""
        queued = len(self._queues.get(tenant, ()))
        lengths = (len(q) for name, q in self._queues.items() if name != tenant)
        return len(self._returned) + queued + sum(min(count, queued + 1) for count in lengths)

    def sample(self, limit: int = MAX_SAMPLE) -> list[T]:
        """Return at most `limit` items, spread evenly over the queue."""
        return list(islice(self, 0, None, -(-len(self) // limit) or 1))

    def add(self, item: T, now: float) -> None:
        tenant = self._tenant_of(item)
        turn = max(self._now, self._next.get(tenant, 0.0))
        self._next[tenant] = turn + self._cost_of(item)
        self._num_arrivals += 1
        queued = _Queued(self._num_arrivals, now, turn, item)
        queue = self._queues.setdefault(tenant, deque())
        if not queue:
            heappush(self._heads, (turn, queued.arrival, tenant))
        queue.append(queued)
        self._length += 1

    def put_back(self, item: T) -> None:
        """Return a taken `item` to the head of the queue, due at once."""
        self._returned.appendleft(item)
        self._length += 1

    def peek(self) -> T | None:
        """Return the item that leaves next, or None if the queue is empty."""
        if self._returned:
            return self._returned[0]
        return self._queues[self._heads[0][2]][0].item if self._heads else None

    def due(self) -> float | None:
        """Return the time at which the oldest item must leave; None if the queue is empty."""
        if self._returned:
            return float("-inf")
        if not self._heads:
            return None
        if not self._delay:
            return self._queues[self._heads[0][2]][0].since
        return min(queue[0].since for queue in self._queues.values()) + self._delay

    def is_complete(self, now: float) -> bool:
        """Return whether a batch can be taken."""
        due = self.due()
        return due is not None and (now >= due or 0 < self._preferred <= len(self))

    def take(self, limit: int, now: float) -> list[T]:
        """Remove and return the next batch of at most `limit` items; [] if none is complete."""
        if not self.is_complete(now):
            return []
        if self._preferred:
            limit = min(limit, self._preferred)
        return [self._pop() for _ in range(min(limit, len(self)))]

    def _pop(self) -> T:
        self._length -= 1
        if self._returned:
            return self._returned.popleft()
        turn, _, tenant = heappop(self._heads)
        self._now = turn
        queue = self._queues[tenant]
        item = queue.popleft().item
        if queue:
            heappush(self._heads, (queue[0].turn, queue[0].arrival, tenant))
        else:
            del self._queues[tenant]
        if not self._heads:  # nobody waits for the turns that are past
            self._next.clear()
        elif len(self._next) > 2 * len(self._queues) + MAX_TENANTS:
            self._next = {name: then for name, then in self._next.items() if name in self._queues}
        return item

    def keep(self, predicate: Callable[[T], bool]) -> None:
        """Remove the items for which `predicate` is false."""
        self._returned = deque(filter(predicate, self._returned))
        kept = (
            (name, deque(queued for queued in queue if predicate(queued.item)))
            for name, queue in self._queues.items()
        )
        self._queues = {name: queue for name, queue in kept if queue}
        self._heads = [(q[0].turn, q[0].arrival, name) for name, q in self._queues.items()]
        heapify(self._heads)
        self._length = len(self._returned) + sum(map(len, self._queues.values()))

    def clear(self) -> list[T]:
        """Remove and return all items."""
        items = list(self)
        self._returned.clear()
        self._queues.clear()
        self._heads.clear()
        self._length = 0
        return items
