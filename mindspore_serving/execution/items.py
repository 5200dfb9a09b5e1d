"""The work items of one thread: decoded, run by its executor, encoded as replies."""

import time

from mindspore_serving import log, wire
from mindspore_serving.errors import InvalidInputs, NotFound, ServingError
from mindspore_serving.execution.executor import Executor
from mindspore_serving.execution.host import Host
from mindspore_serving.execution.job import Item
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.messages import WorkItem, WorkReply, to_fault


class Items:
    """What runs on this thread.  Sends nothing itself: `collect` gives the replies."""

    def __init__(
        self, host: Host, executor: Executor, arena: Arena | NoArena, view: ArenaView | NoArena
    ) -> None:
        self.executor = executor
        self._language = host.language
        self._arena = arena
        self._view = view
        self._open: dict[int, Item] = {}

    @property
    def is_idle(self) -> bool:
        """Whether everything is answered."""
        return not self._open and not self.executor.has_work

    def accept(self, work: WorkItem) -> WorkReply | None:
        """Queue the instances of `work`; the reply if they cannot be."""
        program = self.executor.programs.get(work.method)
        deadline = None if work.timeout is None else time.monotonic() + work.timeout
        try:
            if program is None:
                raise NotFound(f"method {work.method} is not available")
            codec = wire.worker_codec(work.codec)
            chunks = [self._view.get(chunk) for chunk in work.chunks]
            instances = codec.decode(chunks, program.method, program.label)
            item = Item(work.id, program, codec, deadline)
            item.is_stream = work.is_stream
            self.executor.add(item, instances)
        except Exception as error:
            return rejection(work.id, error)
        self._open[work.id] = item
        return None

    def cancel(self, item_id: int) -> None:
        """Nobody waits for the item any more."""
        item = self._open.get(item_id)
        if item is not None:
            item.is_cancelled = True
            if self._language is not None:
                self._language.stage.cancel(self.executor, item)

    def collect(self) -> list[WorkReply]:
        """The replies that are ready: pieces of streams, and what is finished."""
        executor = self.executor
        replies = [self._pieces(item) for item in executor.with_pieces.values()]
        executor.with_pieces.clear()
        if executor.finished:
            replies += [self._reply(item) for item in executor.finished]
            executor.finished.clear()
        return replies

    def _pieces(self, item: Item) -> WorkReply:
        """What a stream has by now; its end follows."""
        pieces, item.outputs = item.outputs, []
        return WorkReply(item.id, [self._arena.put(piece) for piece in pieces], is_last=False)

    def _reply(self, item: Item) -> WorkReply:
        del self._open[item.id]
        put = self._arena.put
        instances = [put(output) for output in item.outputs]
        if item.faults is None:
            return WorkReply(item.id, instances)
        faults = [None if error is None else to_fault(error) for error in item.faults]
        if item.is_stream:
            return WorkReply(item.id, [], rejected=faults[0])
        return WorkReply(item.id, instances, faults)


def rejection(item_id: int, error: Exception) -> WorkReply:
    """The reply to an item that cannot be run.  `error` is being handled."""
    if isinstance(error, RecursionError):
        error = InvalidInputs("the request has too many arrays or objects in one another")
    if not isinstance(error, ServingError):
        log.error("decoding a request", exc_info=True)
        error = ServingError("the request could not be decoded")
    return WorkReply(item_id, [], rejected=to_fault(error))
