"""The seam for coroutines: submit a request, await its reply or each of its replies.  Knows no
protocol."""

import asyncio
from collections import deque

from mindspore_serving.core.service import Inference, Reply, Request


async def infer(inference: Inference, request: Request) -> Reply:
    """The one reply to a request that does not stream.  Cancelling the caller cancels the call."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def resolve(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    call = inference.submit(request, resolve)
    try:
        return await future
    except asyncio.CancelledError:
        call.cancel()
        raise


class Replies:
    """The replies to a request that streams.  One coroutine awaits `next` at a time.

    Leaving before the last needs `cancel`; `with` does that.
    """

    def __init__(self, inference: Inference, request: Request) -> None:
        self._replies: deque[Reply] = deque()
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self._call = inference.submit(request, self._take)

    async def next(self) -> Reply | None:
        """The next reply; None after the last."""
        while not self._replies:
            if self._is_over:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._replies.popleft()

    def cancel(self) -> None:
        """Nobody waits any more.  Harmless at the end."""
        if not self._is_over:
            self._is_over = True
            self._call.cancel()

    def __enter__(self) -> "Replies":
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def _take(self, reply: Reply) -> None:
        self._replies.append(reply)
        self._is_over = self._is_over or reply.is_last
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
