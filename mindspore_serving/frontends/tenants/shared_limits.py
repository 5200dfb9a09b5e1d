"""Limits that several servers count together, and that survive a restart.

Each server writes what it has counted since midnight UTC, and reads what the other servers have.  A
request never waits for that, so servers together may exceed a limit by what they admit between two
exchanges.  While an exchange fails, each server counts what it sees itself.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple, TypeAlias

from mindspore_serving import log
from mindspore_serving.frontends.keys import Tenant, TenantTable
from mindspore_serving.frontends.tenants.limits import DAY, DayUse
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.stores.circuit import Circuit

MAX_TENANTS = 4096  # of an exchange; as many are held for the day
ACTIVE_SECONDS = 120.0  # after its last use, in which the counts of a tenant are read

Exchange: TypeAlias = Callable[[Mapping[str, bytes]], Awaitable[Mapping[str, Sequence[bytes]]]]
"""Writes the counts of this server by name, but empty ones, and returns those of other servers.

A count is kept for two days.  Raises any error.
"""


class _LastUse(NamedTuple):
    """Counts of a tenant, when they last changed, and the tenant if it is held in memory.

    A tenant that were made anew would begin with a count of 0, and replace that in the store.
    """

    use: DayUse
    time: float
    held: Tenant | None


class SharedLimits:
    """Counts of `tenants` that this server exchanges with others each `interval` seconds."""

    def __init__(
        self, exchange: Exchange, tenants: TenantTable, where: str, interval: float
    ) -> None:
        self._exchange, self._tenants, self._where = exchange, tenants, where
        self._interval = interval
        self._circuit = Circuit()
        self._last: dict[str, _LastUse] = {}  # by owner
        self.counts: Counter[str] = Counter(ok=0, failed=0, wrong=0)

    async def follow(self) -> None:
        """Exchange counts forever."""
        while True:
            await asyncio.sleep(self._interval)
            await self.exchange()

    async def exchange(self) -> None:
        """Exchange the counts of active and new tenants; failures are logged and counted."""
        if self._circuit.is_open:
            return
        now = time.time()
        active = self._active(now)
        if not active:
            return
        rows = {f"{tenant.owner}:{int(now // DAY)}": tenant for tenant in active}
        texts = {name: _to_bytes(tenant.local_use(now)) for name, tenant in rows.items()}
        try:
            answers = await self._exchange(texts)
        except Exception as error:  # of the store, whatever it is: requests go on
            self.counts["failed"] += 1
            if not self._circuit.is_failing:
                cause = str(error).partition("\n")[0]
                log.warning(
                    "limits are counted by this server alone, as %s fails: %s", self._where, cause
                )
            self._circuit.fail()
            return
        if self._circuit.is_failing:
            log.warning("limits are counted together again, by %s", self._where)
        self._circuit.succeed()
        self.counts["ok"] += 1
        if time.time() // DAY != now // DAY:  # these counts are of yesterday
            return
        for name, tenant in rows.items():
            tenant.learn(self._sum(answers.get(name, ())), now)

    def add_metrics(self, page: Page) -> None:
        """Add the numbers of exchanges."""
        for result, count in self.counts.items():
            page.add("serving_limits_exchanges_total", count, result)

    def _active(self, now: float) -> list[Tenant]:
        """Return tenants with limits over time that were used lately, or are new."""
        known, self._last = self._last, {}
        active = []
        for tenant in list(self._tenants.values()):
            if not (tenant.owner and tenant.key.limits.are_over_time):
                continue
            use, last = tenant.local_use(now), known.get(tenant.owner)
            changed = now if last is None or last.use != use else last.time
            is_held = use != DayUse() and len(self._last) < MAX_TENANTS
            self._last[tenant.owner] = _LastUse(use, changed, tenant if is_held else None)
            if now - changed <= ACTIVE_SECONDS:
                active.append((changed, tenant))
        active.sort(key=lambda row: row[0], reverse=True)
        return [tenant for _, tenant in active[:MAX_TENANTS]]

    def _sum(self, texts: Iterable[bytes]) -> DayUse:
        requests = tokens = 0.0
        for text in texts:
            try:
                used = [float(number) for number in text.split(b" ", 2)]
                if len(used) != 2 or not all(isfinite(number) and number >= 0 for number in used):
                    raise ValueError
            except ValueError:
                self.counts["wrong"] += 1
                continue
            requests, tokens = requests + used[0], tokens + used[1]
        return DayUse(requests, tokens)


def _to_bytes(use: DayUse) -> bytes:
    return f"{use.requests!r} {use.tokens!r}".encode() if use != DayUse() else b""
