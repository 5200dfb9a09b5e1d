"""The loop of a worker's thread: receive messages, run stages, send answers.

Knows messages; what a stage does is the executor's business.
"""

import time
from collections.abc import Callable
from typing import Protocol

from mindspore_serving.execution.inbox import Inbox
from mindspore_serving.execution.items import Items
from mindspore_serving.execution.remote import RemoteCaller
from mindspore_serving.ipc.messages import (
    CallReply,
    Cancel,
    Done,
    Exit,
    Numbers,
    ToWorker,
    Work,
    WorkItem,
    WorkReply,
)


class Sender(Protocol):
    """The channel's sending half; any thread may use it."""

    def send(self, message: Done | Numbers) -> None: ...


class StageLoop:
    """Runs work items until it is told to leave and has answered them all."""

    def __init__(
        self,
        inbox: Inbox,
        items: Items,
        sender: Sender,
        remote: RemoteCaller,
        free: Callable[[Work], None],
    ) -> None:
        self.items = items
        self.sender = sender
        self._inbox = inbox
        self._remote = remote
        self._free = free
        self._is_leaving = False

    @property
    def is_idle(self) -> bool:
        """Whether everything is answered."""
        return self.items.is_idle

    def run(self) -> None:
        executor = self.items.executor
        while not (self._is_leaving and self.is_idle):
            for message in self._inbox.receive(wait=not executor.has_work):
                self._handle(message)
            if executor.has_work:
                executor.run_next(time.monotonic())
            replies = self.collect()
            if replies:
                self.sender.send(Done(replies))

    def accept(self, item: WorkItem) -> None:
        rejection = self.items.accept(item)
        if rejection is not None:
            self.sender.send(Done([rejection]))

    def cancel(self, message: Cancel) -> None:
        for item_id in message.ids:
            self.items.cancel(item_id)

    def resume(self, message: CallReply) -> None:
        """A model that another worker ran has answered."""
        self.items.executor.resume(*self._remote.take(message.reply))
        self._remote.release(message.reply)

    def leave(self, message: Exit) -> None:
        self._is_leaving = True

    def collect(self) -> list[WorkReply]:
        """The replies that are ready."""
        return self.items.collect()

    def _handle(self, message: ToWorker) -> None:
        if isinstance(message, Work):
            self._free(message)
            for item in message.items:
                self.accept(item)
        elif isinstance(message, Cancel):
            self.cancel(message)
        elif isinstance(message, CallReply):
            self.resume(message)
        elif isinstance(message, Exit):
            self.leave(message)
