"""A request under way in the master: the parts it was cut into, and the answer they add up to.

No I/O and no clock.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Code, ServingError
from mindspore_serving.wire.cutting import Chunk

if TYPE_CHECKING:
    from mindspore_serving.dispatch.registry import Line


class Part:
    """Instances of one request that go to one worker together."""

    __slots__ = (
        "attempts",
        "call",
        "chunks",
        "codec",
        "has_replied",
        "holder",
        "id",
        "index",
        "is_stream",
        "num_left",
    )

    def __init__(self, call: "CallState", index: int, codec: str, chunks: Sequence[Chunk]) -> None:
        self.call = call
        self.index = index  # among the parts of the call
        self.codec = codec
        self.chunks = chunks
        self.attempts = 0
        self.is_stream = False
        self.has_replied = False  # some of a stream; it cannot be run again elsewhere
        self.id = 0
        self.num_left = [0]  # of the message it was sent in
        self.holder: Any = None  # the link to the worker that has it, while one does


class CallState:
    """Collects the parts' answers in order and replies once: the `Call` of a front end."""

    __slots__ = (
        "_answers",
        "_left",
        "_on_reply",
        "deadline",
        "is_done",
        "line",
        "on_done",
        "parts",
        "started",
        "timer",
    )

    def __init__(
        self,
        line: "Line | None",
        on_reply: Callable[[Reply], None],
        on_done: "Callable[[CallState, int], None]",
        started: float,
    ) -> None:
        self.line = line
        self._on_reply = on_reply
        self.on_done = on_done
        self.started = started
        self.deadline: float | None = None
        self.timer: Any = None
        self.is_done = False
        self.parts: list[Part] = []
        self._answers: list[Reply | None] = []
        self._left = 0

    def set_parts(self, parts: list[Part]) -> None:
        self.parts = parts
        self._answers = [None] * len(parts)
        self._left = len(parts)

    def answer(self, part: Part, reply: Reply) -> None:
        """`part` came back.  A part that failed as a whole fails the request as a whole."""
        if self.is_done:
            return
        if reply.failure is not None:
            self.fail(reply.failure)
        elif len(self.parts) == 1:
            if reply.is_last:
                self._end(0)
            self._on_reply(reply)
        else:
            self._answers[part.index] = reply
            self._left -= 1
            if self._left == 0:
                self._end(0)
                self._on_reply(_join([answer for answer in self._answers if answer]))

    def fail(self, error: ServingError) -> None:
        """Reply with `error` if there was no reply yet."""
        if not self.is_done:
            self._end(error.code)
            self._on_reply(Reply(failure=error))

    def cancel(self) -> None:
        """Nobody waits any more."""
        if not self.is_done:
            self._end(Code.CANCELLED)

    def _end(self, code: int) -> None:
        self.is_done = True
        self.on_done(self, code)


def cut(
    call: CallState, codec: str, chunks: Sequence[Chunk], *, workers: int, batch_size: int
) -> list[Part]:
    """`chunks` (one per instance) as parts, shared evenly over `workers` in whole batches."""
    size = max(1, math.ceil(len(chunks) / max(1, workers)))
    size = math.ceil(size / batch_size) * batch_size
    return [
        Part(call, index, codec, chunks[start : start + size])
        for index, start in enumerate(range(0, len(chunks), size))
    ]


def _join(replies: Sequence[Reply]) -> Reply:
    instances = [instance for reply in replies for instance in reply.instances]
    if all(reply.faults is None for reply in replies):
        return Reply(instances)
    faults: list[ServingError | None] = []
    for reply in replies:
        faults.extend(reply.faults or [None] * len(reply.instances))
    return Reply(instances, faults)
