"""Requests as coroutines: submit a request, await its reply or iterate over its replies.

Knows no protocol.
"""

import asyncio
from collections import deque
from typing import ClassVar

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Call, Inference, Reply, Request
from mindspore_serving.errors import DeadlineExceeded, Overloaded
from mindspore_serving.frontends import access, answer_headers

MAX_UNREAD = 8 << 20  # bytes of one stream: more than an answer of 30,000 tokens
MAX_UNREAD_SOUND = 64 << 20  # the same of sound: 20 minutes without compression
REPLY_SIZE = 256  # bytes of a reply without instances
SMALL = 64 << 10  # bytes: the connection itself uses more
_ENDED = "the stream was ended: its client left"
_UNREAD = f"{_ENDED} over %d MiB unread"
_NO_ROOM = f"{_ENDED} %d bytes unread, and there is no memory for more (max_unsent_memory)"


async def infer(inference: Inference, request: Request) -> Reply:
    """Return the reply to a request that does not stream.

    Cancelling the caller cancels the call.
    """
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def resolve(reply: Reply) -> None:
        if not future.done():
            future.set_result(reply)

    access.note(request.servable, request.method)
    call = inference.submit(request, resolve)
    try:
        reply = await future
    except asyncio.CancelledError:
        call.cancel()
        raise
    answer_headers.note(reply)
    return reply


class Replies:
    """Replies to a request that streams.  One coroutine awaits `next` at a time.

    With `limits`, a stream without a reply for `stream_idle_timeout` seconds ends with a failure.
    A reader that leaves more than `max_unread` bytes unread, for example because its client does
    not read, gets a failure in their place, and the request ends.  With `limits` so does a reader
    that leaves over SMALL bytes unread while all streams of this process have more than
    `max_unsent_memory`.  Replies before the first `next` have no limit: the reader has not begun.
    A reader that stops before the last reply calls `cancel`, which `with` does.
    """

    num_unread: ClassVar[int] = 0  # bytes, in all streams

    def __init__(
        self,
        inference: Inference,
        request: Request,
        limits: ServerLimits | None = None,
        max_unread: int = MAX_UNREAD,
    ) -> None:
        self._replies: deque[Reply] = deque()
        self._max_unread = max_unread
        self._num_unread = 0  # bytes of `_replies`
        self._has_begun = False  # `next` was called
        self._is_over = False
        self.version = 0  # that a traffic rule has chosen, after the first `next`
        self._waiter: asyncio.Future[None] | None = None
        self._idle_timeout = None if limits is None else limits.stream_idle_timeout
        self._max_total = None if limits is None else limits.max_unsent_memory
        self._is_silent = True  # since the timer was started
        self._timer: asyncio.TimerHandle | None = None
        access.note(request.servable, request.method)
        # The call refers to this object: dropped at the end, so that no cycle keeps unread replies.
        self._call: Call | None = inference.submit(request, self._take)

    async def next(self) -> Reply | None:
        """Return the next reply; None after the last."""
        self._has_begun = True
        while not self._replies:
            if self._is_over:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        reply = self._replies.popleft()
        self._count(-_size(reply))
        if reply.version and not self.version:
            self.version = reply.version
            answer_headers.note(reply)
        return reply

    def cancel(self) -> None:
        """End the request.  Has no effect after the last reply."""
        self._is_over = True
        self._stop_timer()
        self._end_call()
        self._drop()

    def __enter__(self) -> "Replies":
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def _take(self, reply: Reply) -> None:
        if self._is_over:
            return
        text = self._why_ended() if self._waiter is None and self._has_begun else ""
        if text:
            self._end_call()
            self._drop()
            reply = Reply(failure=Overloaded(text))
        self._replies.append(reply)
        self._count(_size(reply))
        self._is_over = reply.is_last
        self._is_silent = False
        if self._is_over:
            self._stop_timer()
            self._call = None
        elif self._timer is None and self._idle_timeout is not None:
            self._start_timer(self._idle_timeout)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _why_ended(self) -> str:
        """Return why the stream ends if its reader leaves too much unread, else ''."""
        if self._num_unread > self._max_unread:
            return _UNREAD % (self._max_unread >> 20)
        limit = self._max_total
        if limit is not None and Replies.num_unread > limit and self._num_unread > SMALL:
            return _NO_ROOM % self._num_unread
        return ""

    def _drop(self) -> None:
        """Drop unread replies."""
        self._replies.clear()
        self._count(-self._num_unread)

    def _count(self, num_bytes: int) -> None:
        self._num_unread += num_bytes
        Replies.num_unread += num_bytes

    def _start_timer(self, seconds: float) -> None:
        self._is_silent = True
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._end_if_silent, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end_if_silent(self, seconds: float) -> None:
        if not self._is_silent:
            self._start_timer(seconds)
            return
        self._end_call()
        text = f"the stream was ended: no more of it came within {seconds:g} seconds"
        self._take(Reply(failure=DeadlineExceeded(text)))


def _size(reply: Reply) -> int:
    """Return a lower bound of the bytes of a reply."""
    return REPLY_SIZE + sum(map(len, reply.instances))
