"""Connection of a worker to the master, and how messages reach the worker's threads."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.messages import CallReply, Done, PartReply, Slice, ToWorker, Work
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.vocabulary import Exit

_EXIT_SECONDS = 0.1  # interval of looking for `Exit` while ranks join

Action: TypeAlias = Callable[[], None]
"""Function to be called on the thread that receives messages."""


class MasterConnection(BlockingChannel[ToWorker]):
    """Channel to the master, with the arenas for large payloads."""

    def __init__(
        self, stream: socket.socket, arena: Arena | NoArena, view: ArenaView | NoArena
    ) -> None:
        super().__init__(stream, ToWorker)
        self.arena = arena
        self.view = view

    def free(self, work: Work) -> None:
        """Free the payloads that the master has finished reading, as listed in `work`."""
        for offset in work.freed:
            self.arena.free(offset)

    def release(self, reply: PartReply) -> None:
        """Return the shared memory of `reply` to the master, after the reply was copied."""
        freed = [item.offset for item in reply.instances if isinstance(item, Slice)]
        if freed:
            self.send(Done([], freed))


class MessageSource(Protocol):
    """Source of messages."""

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """Return all messages that have arrived; with `wait`, block until there is one."""
        ...


class Inbox:
    """Messages in order of arrival; keeps those that arrive while a stage waits for a reply."""

    def __init__(self, source: MessageSource, connection: MasterConnection) -> None:
        self.pending: deque[ToWorker] = deque()  # received, and to be handled next
        self._source = source
        self._connection = connection

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """Return all messages that have arrived; with `wait`, block until there is one."""
        if not self.pending:
            return self._source.receive(wait=wait)
        messages = list(self.pending)
        self.pending.clear()
        return messages

    async def exit_requested(self) -> None:
        """Wait until the master sends `Exit`; keep all messages.  Nobody may call `receive`."""
        # A reader of uvloop would leave the socket in non-blocking mode.
        while not any(isinstance(message, Exit) for message in self.pending):
            await asyncio.sleep(_EXIT_SECONDS)
            self.pending += self._connection.receive(wait=False)

    def wait_for(self, call_id: int) -> PartReply:
        """Block until the call is answered and return the reply; keep all other messages."""
        while True:
            reply = None
            for message in self._source.receive(wait=True):
                if isinstance(message, CallReply) and message.reply.id == call_id:
                    reply = message.reply
                elif isinstance(message, Work):
                    self._connection.free(message)  # the waiting stage may need the memory
                    self.pending.append(Work(message.parts))
                else:
                    self.pending.append(message)
            if reply is not None:
                return reply


class PostSource:
    """Messages from the connection, and actions that other threads `post`."""

    def __init__(self, connection: MasterConnection) -> None:
        self._connection = connection
        self._actions: deque[Action] = deque()
        self._wake = connection.make_wakeable()

    def post(self, action: Action) -> None:
        """Have `action` called on the receiving thread; can be called from any thread."""
        self._actions.append(action)
        self._wake()

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """Return the messages that have arrived, like `MessageSource.receive`, and run the actions.

        Can return no messages even with `wait`.
        """
        messages = self._connection.receive(wait=wait)
        while self._actions:
            self._actions.popleft()()
        return messages


class ThreadSource:
    """Messages and actions that another thread puts into a queue."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[ToWorker | Action] = SimpleQueue()
        self.put = self._queue.put

    def receive(self, *, wait: bool) -> list[ToWorker]:
        """Return the messages that have arrived, and run the actions among them.

        With `wait`, block until there is a message or an action.
        """
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
