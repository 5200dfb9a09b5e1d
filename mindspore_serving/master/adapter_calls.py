"""The LoRA adapters that one worker was asked to have, until it has answered."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from mindspore_serving.errors import WorkerUnavailable
from mindspore_serving.ipc.messages import AdapterSource, AdaptersSet, Fault, SetAdapters

Faults: TypeAlias = Mapping[str, Fault]  # by the name of the adapter


class AdapterCalls:
    """Over `send`, which sends a message to the worker."""

    def __init__(self, send: Callable[[SetAdapters], None]) -> None:
        self._send = send
        self._num_sent = 0
        self._open: dict[int, asyncio.Future[Faults]] = {}
        self._has_ended = False

    async def set(self, adapters: Sequence[AdapterSource]) -> Faults:
        """The worker's model is to have these and no others; why some could not be loaded.  Raises
        WorkerUnavailable if the worker ends meanwhile.
        """
        self._num_sent += 1
        future: asyncio.Future[Faults] = asyncio.get_running_loop().create_future()
        self._open[self._num_sent] = future
        self._send(SetAdapters(self._num_sent, list(adapters)))
        if self._has_ended:
            self.end()
        return await future

    def take(self, message: AdaptersSet) -> None:
        """Raises KeyError if nobody has asked."""
        future = self._open.pop(message.serial)
        if not future.done():  # who waited may have left
            future.set_result(message.faults)

    def end(self) -> None:
        """The worker has ended."""
        self._has_ended = True
        waiting, self._open = self._open, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(WorkerUnavailable("a worker ended while it loaded adapters"))
                future.exception()  # it may have no reader any more
