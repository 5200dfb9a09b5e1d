"""Messages with parts of requests, and the storing of large payloads in a worker's arena.

Large payloads are copied on a thread, so that other requests continue meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from mindspore_serving.aio import on_thread
from mindspore_serving.core.buffers import Buffer, BufferList
from mindspore_serving.ipc.messages import Payload, RequestPart
from mindspore_serving.master.request import PendingPart

LARGE = 4 << 20  # bytes, which take some milliseconds to copy


class PayloadStore(Protocol):
    """Arena that payloads are put into."""

    def put(self, data: "Buffer | BufferList") -> Payload: ...


class LargePartSender:
    """Sender of large parts to one worker, each after its payloads are stored."""

    def __init__(
        self,
        payloads: PayloadStore,
        send: Callable[[PendingPart, Sequence[Payload], float], None],
        cancel: Callable[[PendingPart], None],
    ) -> None:
        """Create a sender over `send` and `cancel`.

        `send` is called with a part, its stored payloads and the time; `cancel` follows it if the
        part was cancelled meanwhile.
        """
        self._payloads = payloads
        self._send, self._cancel = send, cancel
        self._cancelled: dict[PendingPart, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, part: PendingPart, now: float) -> bool:
        """Begin to store and send `part`; return False if it is small and can be stored at once."""
        if sum(map(len, part.chunks)) < LARGE:
            return False
        self._cancelled[part] = False
        task = asyncio.get_running_loop().create_task(self._store(part, now))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def cancel(self, part: PendingPart) -> bool:
        """Cancel `part` once it is sent; return False if it is not being stored."""
        if part not in self._cancelled:
            return False
        self._cancelled[part] = True
        return True

    async def _store(self, part: PendingPart, now: float) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            chunks = await on_thread("arenas", store, self._payloads, part)
        except ValueError:  # the arena is closed, as the worker has ended
            return
        finally:
            is_cancelled = self._cancelled.pop(part)
        self._send(part, chunks, now + loop.time() - begin)
        if is_cancelled:
            self._cancel(part)


def store(payloads: PayloadStore, part: PendingPart) -> list[Payload]:
    """Put the payloads of `part` into `payloads`."""
    return [payloads.put(chunk) for chunk in part.chunks]


def message(part: PendingPart, chunks: Sequence[Payload], worker: str, now: float) -> RequestPart:
    """Create the message that carries `part` and its `chunks` to a worker."""
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
        sequence=part.sequence,
    )
