"""A worker: loads a servable, and runs its loops until it is told to leave."""

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from mindspore_serving import log
from mindspore_serving.core.graph import StageKind
from mindspore_serving.errors import ServingError
from mindspore_serving.execution.executor import Executor
from mindspore_serving.execution.host import Host
from mindspore_serving.execution.inbox import Inbox, ThreadSource
from mindspore_serving.execution.items import Items
from mindspore_serving.execution.job import Program
from mindspore_serving.execution.loading import load
from mindspore_serving.execution.loop import StageLoop
from mindspore_serving.execution.remote import RemoteCaller
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.channel import BlockingChannel
from mindspore_serving.ipc.messages import (
    Done,
    Failed,
    Leaving,
    Ready,
    Setup,
    Slice,
    ToWorker,
    Work,
    WorkReply,
)

if TYPE_CHECKING:
    from mindspore_serving.execution.language_loop import LanguageLoop

_QUICK = frozenset({StageKind.LANGUAGE, StageKind.BUILTIN})


class Worker:
    """Serves one servable over one channel.

    One thread does everything, unless there are a language model and methods with stages of the
    user's own: those run on this thread then, and the channel is read on another.  `on_broken` is
    called when that other thread fails, which leaves nothing that could be answered.
    """

    def __init__(
        self,
        stream: socket.socket,
        arena: Arena | NoArena,
        view: ArenaView | NoArena,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel: BlockingChannel[ToWorker] = BlockingChannel(stream, ToWorker)
        self._arena = arena
        self._view = view
        self._on_broken = on_broken
        self._inbox = Inbox(self._channel, self._free)
        self._wake: Callable[[], None] = lambda: None
        self._remote = RemoteCaller(self._channel.send, self._wait_for, arena, view, self._release)

    def serve(self) -> int:
        """Until the end; returns the exit status.  Raises EOFError if the master is gone."""
        setup, *later = self._channel.receive(wait=True)
        assert isinstance(setup, Setup)
        self._inbox.keep(later)
        host = self._load(setup)
        if host is None:
            return 1
        if host.language is None:
            self._loop(host, host.programs).run()
        else:
            self._serve_language(host)
        host.close()
        return 0

    def announce_leaving(self) -> None:
        """From any thread: ask the master to send no more work and then `Exit`."""
        self._channel.send(Leaving())

    def _load(self, setup: Setup) -> Host | None:
        self._remote.servable = setup.servable_name
        try:
            host = load(setup, self._remote, self._make_wake)
        except Exception as error:
            if not isinstance(error, ServingError):
                log.error("loading servable %s", setup.servable_name, exc_info=True)
            self._channel.send(Failed(str(error) or repr(error)))
            return None
        self._remote.version = host.version
        card = None if host.language is None else host.language.engine.card
        self._channel.send(Ready(host.version, host.method_reports(), host.models, card))
        return host

    def _make_wake(self) -> Callable[[], None]:
        self._wake = self._channel.make_wakeable()
        return self._wake

    def _loop(self, host: Host, programs: dict[str, Program]) -> StageLoop:
        items = Items(host, Executor(programs), self._arena, self._view)
        return StageLoop(self._inbox, items, self._channel, self._remote, self._free)

    def _serve_language(self, host: Host) -> None:
        quick = {name: program for name, program in host.programs.items() if _is_quick(program)}
        slow = {name: program for name, program in host.programs.items() if name not in quick}
        others = ThreadSource() if slow else None
        loop = self._language_loop(host, quick, others)
        if others is None:
            loop.run()
            return
        self._inbox = Inbox(others, self._free)
        items = Items(host, Executor(slow, others.put), self._arena, self._view)
        thread = threading.Thread(target=self._run, args=[loop], name="channel", daemon=True)
        thread.start()
        StageLoop(self._inbox, items, self._channel, self._remote, self._free).run()
        loop.others_end()
        self._wake()
        thread.join()

    def _language_loop(
        self, host: Host, programs: dict[str, Program], others: ThreadSource | None
    ) -> "LanguageLoop":
        from mindspore_serving.execution.language_loop import LanguageLoop

        assert host.language is not None
        items = Items(host, Executor(programs), self._arena, self._view)
        return LanguageLoop(
            self._inbox,
            items,
            self._channel,
            self._remote,
            self._free,
            language=host.language,
            arena=self._arena,
            view=self._view,
            others=others,
        )

    def _run(self, loop: StageLoop) -> None:
        try:
            loop.run()
        except (EOFError, ConnectionError):
            return  # the master is gone; who watches for that ends the process
        except BaseException:
            log.error("the thread that reads the channel has failed", exc_info=True)
            self._on_broken()

    def _free(self, work: Work) -> None:
        for offset in work.freed:
            self._arena.free(offset)

    def _wait_for(self, call_id: int) -> WorkReply:
        return self._inbox.wait_for(call_id)

    def _release(self, reply: WorkReply) -> None:
        """Tell the master that what `reply` has in shared memory was copied."""
        freed = [item.offset for item in reply.instances if isinstance(item, Slice)]
        if freed:
            self._channel.send(Done([], freed))


def _is_quick(program: Program) -> bool:
    """Whether a method has no stage that could hold up a stream."""
    return all(stage.kind in _QUICK for stage in program.method.stages)
