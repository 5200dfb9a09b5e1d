"""The loop of the thread that reads the channel of a worker with a language model.

It sends tokens as they come.  Where methods have stages of the user's own, those run on another
thread, so that a slow one holds up no stream.
"""

from typing import Any

from mindspore_serving.core.llm_messages import CODEC
from mindspore_serving.execution.inbox import ThreadSource
from mindspore_serving.execution.items import rejection
from mindspore_serving.execution.language_service import LanguageService
from mindspore_serving.execution.loop import StageLoop
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.messages import (
    CallReply,
    Cancel,
    Done,
    Exit,
    Numbers,
    Work,
    WorkItem,
    WorkReply,
)


class LanguageLoop(StageLoop):
    """A `StageLoop` with a language model.  `others`, if given, takes the messages about methods
    that this loop does not run; `others_end` says that its thread has answered them all."""

    def __init__(
        self,
        *arguments: Any,
        language: LanguageService,
        arena: Arena | NoArena,
        view: ArenaView | NoArena,
        others: ThreadSource | None,
    ) -> None:
        super().__init__(*arguments)
        self._language = language
        self._arena = arena
        self._view = view
        self._others = others
        self._has_others = others is not None
        self._numbers: dict[str, int] = {}  # last sent

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self._language.has_work and not self._has_others

    def others_end(self) -> None:
        """From the other thread, which then has to wake this one: it has nothing left to do."""
        self._has_others = False

    def accept(self, item: WorkItem) -> None:
        if item.codec == CODEC:
            self._accept_request(item)
        elif self._others is not None and item.method not in self.items.executor.programs:
            self._others.put(Work([item]))
        else:
            super().accept(item)

    def cancel(self, message: Cancel) -> None:
        super().cancel(message)
        for item_id in message.ids:
            self._language.cancel(item_id)
        if self._others is not None:
            self._others.put(message)

    def resume(self, message: CallReply) -> None:
        if self._others is None:
            super().resume(message)
        else:
            self._others.put(message)

    def leave(self, message: Exit) -> None:
        super().leave(message)
        if self._others is not None:
            self._others.put(message)

    def collect(self) -> list[WorkReply]:
        collected = self._language.collect(self._arena)
        numbers = self._language.numbers()
        if numbers and numbers != self._numbers:
            self._numbers = numbers
            self.sender.send(Numbers(numbers))
        return super().collect() + collected

    def _accept_request(self, item: WorkItem) -> None:
        try:
            self._language.accept(item.id, item.method, self._view.get(item.chunks[0]))
        except Exception as error:
            self.sender.send(Done([rejection(item.id, error)]))
