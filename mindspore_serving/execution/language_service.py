"""Requests of front ends to the worker's language model: messages in, replies out.

Everything here runs on one thread, the one that reads the channel.
"""

import msgspec

from mindspore_serving.core.llm_messages import Event, decode_request, encode_events
from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, ServingError
from mindspore_serving.execution.language_stage import LanguageStage
from mindspore_serving.ipc.arena import Arena, NoArena
from mindspore_serving.ipc.messages import WorkReply, to_fault
from mindspore_serving.llm.serving.async_engine import AsyncEngine


class LanguageService:
    """Serves one model: `stage` to methods, and by `accept` to front ends."""

    def __init__(self, engine: AsyncEngine, stage: LanguageStage) -> None:
        self.engine = engine
        self.stage = stage
        self._open: dict[int, str] = {}  # work item -> the engine's request
        self._replies: list[tuple[int, bytes, ServingError | None, bool]] = []

    @property
    def has_work(self) -> bool:
        return self.engine.num_open > 0

    def numbers(self) -> dict[str, int]:
        """The engine's newest numbers; empty before its first step."""
        stats = self.engine.stats
        return {} if stats is None else msgspec.to_builtins(stats)

    def accept(self, item_id: int, method: str, body: bytes | memoryview) -> None:
        """Start a request.  Raises InvalidInputs if `body` is none."""
        try:
            request = decode_request(method, body)
        except msgspec.DecodeError as error:
            raise InvalidInputs(f"the request cannot be read: {error}") from None

        def sink(events: list[Event] | ServingError, is_last: bool) -> None:
            if is_last:
                del self._open[item_id]
            if isinstance(events, ServingError):
                self._replies.append((item_id, b"", events, is_last))
            else:
                self._replies.append((item_id, encode_events(events), None, is_last))

        self._open[item_id] = self.engine.accept(request, sink)

    def cancel(self, item_id: int) -> None:
        """Nobody waits for the item any more.  It is answered all the same: the master counts."""
        request_id = self._open.pop(item_id, None)
        if request_id is not None:
            self.engine.cancel(request_id)
            error = DeadlineExceeded("the request was cancelled")
            self._replies.append((item_id, b"", error, True))

    def collect(self, arena: Arena | NoArena) -> list[WorkReply]:
        """What the engine has made since.  Raises RuntimeError if its step loop broke."""
        self.engine.collect()
        replies, self._replies = self._replies, []
        return [
            WorkReply(item_id, [arena.put(events)], is_last=is_last)
            if error is None
            else WorkReply(item_id, [], rejected=to_fault(error))
            for item_id, events, error, is_last in replies
        ]

    def close(self) -> None:
        self.engine.close()
