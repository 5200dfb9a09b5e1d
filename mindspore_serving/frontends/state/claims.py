"""Claims of one server on work that several servers could do, and their renewal.

A claim ends by itself CLAIM_SECONDS after it was last renewed, as the database counts them.  A
server that cannot renew one ends the work before that, so that no two servers do it at once.
"""

import asyncio
from collections.abc import Awaitable, Callable

from mindspore_serving import log
from mindspore_serving.aio import within
from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.state.store import StateStore

CLAIM_SECONDS = 30
RENEWAL_SECONDS = 5.0
_SAFE_SECONDS = 20.0  # since the last renewal, after which work ends


async def run_claimed(
    store: StateStore,
    name: str,
    work: Callable[[], Awaitable[None]],
    on_renewal: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Do `work` while no other server does what `name` names; return False if one does it.

    `on_renewal` is called with each renewal.  Work whose claim is lost is cancelled.
    """
    if not store.is_shared:
        await work()
        return True
    loop = asyncio.get_running_loop()
    renewed = loop.time()
    if not await _claim(store, name):
        return False
    working = asyncio.ensure_future(work())
    try:
        while not (await asyncio.wait([working], timeout=RENEWAL_SECONDS))[0]:
            started = loop.time()
            try:
                is_held = await within(_SAFE_SECONDS, _claim(store, name))
                renewed = started if is_held else renewed
                if on_renewal is not None:
                    await on_renewal()
            except (ServingError, asyncio.TimeoutError):
                is_held = loop.time() - renewed < _SAFE_SECONDS
            if not is_held:
                log.error("the claim on %s is lost: another server goes on with it", name)
                return True
        await working
        return True
    finally:
        working.cancel()
        await asyncio.wait([working])
        store.post(lambda database: database.release(name, store.holder))


async def _claim(store: StateStore, name: str) -> bool:
    return await store.run(lambda database: database.claim(name, store.holder, CLAIM_SECONDS))
