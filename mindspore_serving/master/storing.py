"""What a worker is sent of a part, and large payloads on their way to where the worker reads them:
they are copied on a thread, so that requests of others go on meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from mindspore_serving.aio import on_thread
from mindspore_serving.core.pieces import Buffer, Pieces
from mindspore_serving.ipc.messages import Payload, RequestPart
from mindspore_serving.master.request import PendingPart

LARGE = 4 << 20  # bytes, which are copied in some milliseconds


class PayloadStore(Protocol):
    """Where payloads lie."""

    def put(self, data: "Buffer | Pieces") -> Payload: ...


class Storing:
    """Large parts on their way to one worker."""

    def __init__(
        self,
        payloads: PayloadStore,
        send: Callable[[PendingPart, Sequence[Payload], float], None],
        cancel: Callable[[PendingPart], None],
    ) -> None:
        """`send` is called with a part, its payloads where they now lie, and the time, and `cancel`
        behind it if nobody waits for the part any more.
        """
        self._payloads = payloads
        self._send, self._cancel = send, cancel
        self._cancelled: dict[PendingPart, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, part: PendingPart, now: float) -> bool:
        """False if `part` is small: it can be stored at once."""
        if sum(map(len, part.chunks)) < LARGE:
            return False
        self._cancelled[part] = False
        task = asyncio.get_running_loop().create_task(self._store(part, now))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def cancel(self, part: PendingPart) -> bool:
        """Whether `part` is on its way, and is cancelled when it is sent."""
        if part not in self._cancelled:
            return False
        self._cancelled[part] = True
        return True

    async def _store(self, part: PendingPart, now: float) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            chunks = await on_thread("arenas", store, self._payloads, part)
        except ValueError:  # the arena is closed: the worker is gone
            return
        finally:
            is_cancelled = self._cancelled.pop(part)
        self._send(part, chunks, now + loop.time() - begin)
        if is_cancelled:
            self._cancel(part)


def store(payloads: PayloadStore, part: PendingPart) -> list[Payload]:
    """The payloads of `part`, where they now lie."""
    return [payloads.put(chunk) for chunk in part.chunks]


def message(part: PendingPart, chunks: Sequence[Payload], worker: str, now: float) -> RequestPart:
    """`chunks` are the payloads of `part` for the `worker` of that name."""
    request = part.request
    timeout = None if request.deadline is None else max(0.0, request.deadline - now)
    traceparent = tracestate = ""
    if request.trace is not None:
        context = request.trace.sent(part, worker)
        traceparent, tracestate = context.traceparent, context.state
    return RequestPart(
        part.id,
        request.method,
        part.codec,
        list(chunks),
        timeout,
        is_stream=part.is_stream,
        first=part.first,
        request_id=request.id,
        traceparent=traceparent,
        tracestate=tracestate,
    )
