"""A worker: loads a servable, and runs its loops until the master ends it."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from mindspore_serving import extras, loading, log
from mindspore_serving.core.graph import StageKind
from mindspore_serving.errors import ServingError, printable
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.messages import Setup, WorkerReady
from mindspore_serving.ipc.status import STEPS, Lane, set_loaded
from mindspore_serving.process.vocabulary import Failed, Leaving
from mindspore_serving.servable.check import check_servable_name
from mindspore_serving.tracing import user_spans
from mindspore_serving.worker.connection import Connection, Inbox, PostSource, ThreadSource
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.host import Host
from mindspore_serving.worker.job import Program
from mindspore_serving.worker.loading import load
from mindspore_serving.worker.loop import LanguageLoop, StageLoop
from mindspore_serving.worker.remote import RemoteCaller

_QUICK = frozenset({StageKind.LANGUAGE, StageKind.BUILTIN})


@dataclass(frozen=True, slots=True)
class Overrides:
    """What this machine knows better than the master: where servables are, and which device."""

    servables: str | None = None  # the only directory of which anything is loaded
    device_id: int | None = None

    def apply(self, setup: Setup) -> Setup:
        """Raises InvalidInputs if the servable would lie elsewhere."""
        if self.servables is not None:
            check_servable_name("servable_name", setup.servable_name)
            setup = msgspec.structs.replace(setup, servable_directory=self.servables)
        if self.device_id is not None and setup.device_id is not None:
            setup = msgspec.structs.replace(setup, device_id=self.device_id)
        return setup


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
        self.overrides = Overrides()
        self._on_broken = on_broken
        self._connection = Connection(stream, arena, view)
        self._status = arena.reserved
        self._inbox = Inbox(self._connection, self._connection)
        self._remote = RemoteCaller(self._connection, self._inbox)

    def serve(self) -> int:
        """Until the end; returns the exit status.  Raises EOFError if the master is gone."""
        setup, *later = self._connection.receive(wait=True)
        assert isinstance(setup, Setup)
        self._inbox.kept.extend(later)
        host = self._load(setup)
        if host is None:
            return 1
        if host.language is not None:
            self._serve_language(host)
        elif host.threads is not None:
            self._serve_threads(host)
        else:
            self._loop(self._inbox, Executor(host.programs, status=self._status)).run()
        host.close()
        return 0

    def announce_leaving(self) -> None:
        """From any thread: ask the master to send no more work and then `Exit`."""
        self._connection.send(Leaving())

    def _load(self, setup: Setup) -> Host | None:
        self._remote.servable = setup.servable_name
        try:
            setup, steps = self.overrides.apply(setup), Lane(self._status, STEPS)
            wakeable = self._connection.make_wakeable
            with loading.reported_to(partial(set_loaded, self._status)):
                host = load(setup, self._remote, wakeable, steps, self._broke)
            if setup.traces is not None:
                user_spans.provide(setup.traces)
        except ModuleNotFoundError as error:  # of ours, or of what ours need
            self._connection.send(Failed(extras.missing(error, "it")))
            return None
        except Exception as error:
            if not isinstance(error, ServingError):
                log.error("loading servable %s", setup.servable_name, exc_info=True)
            self._connection.send(Failed(printable(str(error)) or repr(error)))
            return None
        self._remote.version = host.version
        card = None if host.language is None else host.language.engine.card
        methods = host.method_reports()
        self._connection.send(WorkerReady(host.version, methods, host.models, card, host.agents))
        return host

    def _broke(self, reason: str) -> None:
        """From any thread: the servable cannot go on; the master ends this process."""
        self._connection.send(Failed(printable(reason)))

    def _serve_threads(self, host: Host) -> None:
        """With a model that runs several batches at a time, on threads of their own."""
        source = PostSource(self._connection)
        inbox = Inbox(source, self._connection)
        inbox.kept.extend(self._inbox.kept)
        self._remote.inbox = inbox
        self._loop(inbox, Executor(host.programs, source.post, self._status)).run()

    def _loop(self, inbox: Inbox, executor: Executor) -> StageLoop:
        return StageLoop(self._connection, inbox, self._remote, executor)

    def _serve_language(self, host: Host) -> None:
        assert host.language is not None
        quick = {name: program for name, program in host.programs.items() if _is_quick(program)}
        slow = {name: program for name, program in host.programs.items() if name not in quick}
        others = ThreadSource() if slow else None
        loop = LanguageLoop(
            self._connection,
            self._inbox,
            self._remote,
            Executor(quick),
            language=host.language,
            others=others,
        )
        if others is None:
            loop.run()
            return
        self._remote.inbox = Inbox(others, self._connection)
        thread = threading.Thread(target=self._run, args=[loop], name="channel", daemon=True)
        thread.start()
        self._loop(self._remote.inbox, Executor(slow, others.put, self._status)).run()
        loop.is_alone = True
        self._connection.wake()
        thread.join()

    def _run(self, loop: LanguageLoop) -> None:
        try:
            loop.run()
        except (EOFError, ConnectionError):
            return  # the master is gone; the thread that watches it ends the process
        except BaseException:
            log.error("the thread that reads the channel has failed", exc_info=True)
            self._on_broken()


def _is_quick(program: Program) -> bool:
    """Whether a method has no stage that could hold up a stream."""
    return all(stage.kind in _QUICK for stage in program.method.stages)
