"""A worker's connection to the master, and the messages that reach a thread by it."""

import socket
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.messages import CallReply, Done, PartReply, Slice, ToWorker, Work
from mindspore_serving.process.channel import BlockingChannel

Action: TypeAlias = Callable[[], None]
"""What another thread wants to be done on this one."""


class Connection(BlockingChannel[ToWorker]):
    """The channel, and the arenas for what is large."""

    def __init__(
        self, stream: socket.socket, arena: Arena | NoArena, view: ArenaView | NoArena
    ) -> None:
        super().__init__(stream, ToWorker)
        self.arena = arena
        self.view = view

    def free(self, work: Work) -> None:
        """The master is done with what `work` names."""
        for offset in work.freed:
            self.arena.free(offset)

    def release(self, reply: PartReply) -> None:
        """What `reply` has in shared memory was copied: the master may use the room again."""
        freed = [item.offset for item in reply.instances if isinstance(item, Slice)]
        if freed:
            self.send(Done([], freed))


class Source(Protocol):
    """Where messages come from."""

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """All that has come; with `wait`, waits for the first."""
        ...


class Inbox:
    """Messages in order.  Those that come while a stage waits for one reply are kept."""

    def __init__(self, source: Source, connection: Connection) -> None:
        self.kept: deque[ToWorker] = deque()  # the next to be received
        self._source = source
        self._connection = connection

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """All that has come; with `wait`, waits for the first."""
        if not self.kept:
            return self._source.receive(wait=wait)
        messages = list(self.kept)
        self.kept.clear()
        return messages

    def wait_for(self, call_id: int) -> PartReply:
        """Blocks until the call is answered; other work waits."""
        while True:
            reply = None
            for message in self._source.receive(wait=True):
                if isinstance(message, CallReply) and message.reply.id == call_id:
                    reply = message.reply
                elif isinstance(message, Work):
                    self._connection.free(message)  # the stage that waits may need the room
                    self.kept.append(Work(message.parts))
                else:
                    self.kept.append(message)
            if reply is not None:
                return reply


class PostSource:
    """What comes by the connection, and actions that other threads `post`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._actions: deque[Action] = deque()
        self._wake = connection.make_wakeable()

    def post(self, action: Action) -> None:
        """From any thread: have `action` run by the thread that receives."""
        self._actions.append(action)
        self._wake()

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """As `Source.receive`, but it may wait in vain; runs the actions."""
        messages = self._connection.receive(wait=wait)
        while self._actions:
            self._actions.popleft()()
        return messages


class ThreadSource:
    """Messages and actions that another thread puts here."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[ToWorker | Action] = SimpleQueue()
        self.put = self._queue.put

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
