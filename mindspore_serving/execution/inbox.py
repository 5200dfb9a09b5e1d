"""The messages for one thread of a worker: from the channel itself, or by way of a thread."""

from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from mindspore_serving.ipc.messages import CallReply, ToWorker, Work, WorkReply

Action: TypeAlias = Callable[[], None]
"""What another thread wants to be done on this one."""


class Source(Protocol):
    """Where messages come from."""

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """All that has come; with `wait`, waits for the first."""
        ...


class Inbox:
    """Messages in order.  Those that come while a stage waits for one reply are kept."""

    def __init__(self, source: Source, free: Callable[[Work], None]) -> None:
        self._source = source
        self._free = free
        self._kept: deque[ToWorker] = deque()

    def keep(self, messages: Iterable[ToWorker]) -> None:
        """Messages that came with another one: the next to be received."""
        self._kept.extend(messages)

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """All that has come; with `wait`, waits for the first."""
        if not self._kept:
            return self._source.receive(wait=wait)
        messages = list(self._kept)
        self._kept.clear()
        return messages

    def wait_for(self, call_id: int) -> WorkReply:
        """Blocks until the call is answered; other work waits."""
        while True:
            reply = None
            for message in self._source.receive(wait=True):
                if isinstance(message, CallReply) and message.reply.id == call_id:
                    reply = message.reply
                elif isinstance(message, Work):
                    self._free(message)  # the stage that waits may need the room
                    self._kept.append(Work(message.items))
                else:
                    self._kept.append(message)
            if reply is not None:
                return reply


class ThreadSource:
    """Messages and actions that another thread puts here."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[ToWorker | Action] = SimpleQueue()

    def put(self, entry: "ToWorker | Action") -> None:
        self._queue.put(entry)

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """As `Source.receive`; runs the actions that come before the next message."""
        messages: list[ToWorker] = []
        try:
            entry = self._queue.get(block=wait)
            while True:
                if callable(entry):
                    entry()
                else:
                    messages.append(entry)
                entry = self._queue.get_nowait()
        except Empty:
            return messages
