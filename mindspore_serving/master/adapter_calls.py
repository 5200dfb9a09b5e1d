"""Requests to one worker to load LoRA adapters, until it has replied."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from mindspore_serving.errors import WorkerUnavailable
from mindspore_serving.ipc.messages import AdapterSource, AdaptersSet, Fault, SetAdapters

Faults: TypeAlias = Mapping[str, Fault]  # by the name of the adapter


class AdapterCalls:
    """Pending `SetAdapters` messages of one worker; `send` sends a message to it."""

    def __init__(self, send: Callable[[SetAdapters], None]) -> None:
        self._send = send
        self._num_sent = 0
        self._open: dict[int, asyncio.Future[Faults]] = {}
        self._has_ended = False

    async def set(self, adapters: Sequence[AdapterSource]) -> Faults:
        """Set the complete list of adapters of the worker's model.

        Returns the errors of adapters that could not be loaded.  Raises WorkerUnavailable if the
        worker ends meanwhile.
        """
        self._num_sent += 1
        future: asyncio.Future[Faults] = asyncio.get_running_loop().create_future()
        self._open[self._num_sent] = future
        self._send(SetAdapters(self._num_sent, list(adapters)))
        if self._has_ended:
            self.end()
        return await future

    def take(self, message: AdaptersSet) -> None:
        """Pass a reply to the waiting call.  Raises KeyError if there is no such call."""
        future = self._open.pop(message.serial)
        if not future.done():  # the caller may have been cancelled
            future.set_result(message.faults)

    def end(self) -> None:
        """Fail the pending calls, as the worker has ended."""
        self._has_ended = True
        pending, self._open = self._open, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(WorkerUnavailable("a worker ended while it loaded adapters"))
                future.exception()  # mark as read: nobody may await it any more
