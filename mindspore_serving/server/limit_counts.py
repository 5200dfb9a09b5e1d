"""Counts of the limits of keys outside of this process: in a store of servers, or in the state."""

import asyncio
from functools import partial

from mindspore_serving import log
from mindspore_serving.aio import on_thread, within
from mindspore_serving.core.server_options import ServerOptions
from mindspore_serving.frontends.keys import TenantTable
from mindspore_serving.frontends.state.counts import StateCounts
from mindspore_serving.frontends.state.store import StateStore
from mindspore_serving.frontends.tenants.shared_limits import SharedLimits
from mindspore_serving.metrics.exposition import Page
from mindspore_serving.stores.kinds import open_counts

TIMEOUT = 1.0  # seconds without an answer of the store
STORE_INTERVAL, STATE_INTERVAL = 0.5, 5.0  # seconds between exchanges
FIRST_SECONDS, LAST_SECONDS = 5.0, 2.0  # that the start and the end wait for an exchange


class LimitCounts:
    """The counts of `tenants` that survive this server; None if the options name no place."""

    def __init__(self, tenants: TenantTable) -> None:
        self._tenants = tenants
        self._limits: SharedLimits | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, options: ServerOptions, state: StateStore | None) -> None:
        """Read the counts, and exchange them from now on.  Raises StartError for a wrong store."""
        if self._limits is not None:
            return
        if options.limits_store:
            arguments = "limits_store", options.limits_store, TIMEOUT
            counts = await on_thread("limits", open_counts, *arguments)
            exchange = partial(on_thread, "limits", counts.exchange)
            limits = SharedLimits(exchange, self._tenants, str(counts), STORE_INTERVAL)
        elif state is not None and state.is_durable:
            counts_of_state = StateCounts(state)
            where = f"the state of {state.where!r}"
            limits = SharedLimits(counts_of_state.exchange, self._tenants, where, STATE_INTERVAL)
        else:
            return
        self._limits = limits
        await self._exchange(limits, FIRST_SECONDS)
        self._task = asyncio.create_task(limits.follow())

    def add_metrics(self, page: Page) -> None:
        """Add the numbers of exchanges."""
        if self._limits is not None:
            self._limits.add_metrics(page)

    async def close(self) -> None:
        """Write the last counts."""
        if self._task is not None and self._limits is not None:
            self._task.cancel()
            await self._exchange(self._limits, LAST_SECONDS)

    async def _exchange(self, limits: SharedLimits, seconds: float) -> None:
        try:
            await within(seconds, limits.exchange())
        except asyncio.TimeoutError:
            log.warning("the counts of limits were not exchanged within %g s", seconds)
