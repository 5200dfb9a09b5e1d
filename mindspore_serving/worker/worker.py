"""Worker: loads a servable and runs its loops until the master ends it."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from mindspore_serving import extras, loading, log
from mindspore_serving.core.graph import StageKind
from mindspore_serving.core.roles import DECODE
from mindspore_serving.errors import ServingError, printable
from mindspore_serving.ipc.arena import Arena, ArenaView, NoArena
from mindspore_serving.ipc.messages import Setup, WorkerReady
from mindspore_serving.ipc.status import STEPS, Lane, set_loaded
from mindspore_serving.process.vocabulary import Failed, Leaving
from mindspore_serving.servable.check import check_servable_name
from mindspore_serving.tracing import user_spans
from mindspore_serving.worker.connection import Inbox, MasterConnection, PostSource, ThreadSource
from mindspore_serving.worker.executor import Executor
from mindspore_serving.worker.job import PreparedMethod
from mindspore_serving.worker.loaded_servable import LoadedServable
from mindspore_serving.worker.loading import load
from mindspore_serving.worker.loop import LanguageLoop, StageLoop
from mindspore_serving.worker.pinning import pin
from mindspore_serving.worker.prefill_calls import PrefillCalls
from mindspore_serving.worker.remote import RemoteCaller

_QUICK = frozenset({StageKind.LANGUAGE, StageKind.BUILTIN})


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings of this machine that replace the master's: directory, device and addresses."""

    servables: str | None = None  # the only directory from which servables are loaded
    device_id: int | None = None
    address: str = ""  # of this machine, for others
    server: str = ""  # address of the master's machine

    def apply(self, setup: Setup) -> Setup:
        """Return `setup` with these settings.

        Raises InvalidInputs if the servable's name leads out of the directory.
        """
        if self.servables is not None:
            check_servable_name("servable_name", setup.servable_name)
            setup = msgspec.structs.replace(setup, servable_directory=self.servables)
        if self.device_id is not None and setup.device_id is not None:
            setup = msgspec.structs.replace(setup, device_id=self.device_id)
        if setup.link is not None and self.address:
            link = replace(setup.link, listen_host=self.address, server_host=self.server)
            setup = msgspec.structs.replace(setup, link=link)
        return setup


class Worker:
    """Worker that serves one servable over one channel.

    A single thread does everything, unless there are both a language model and methods with stages
    of the user's code: those stages run on this thread then, and another thread reads the channel.
    `on_broken` is called when that other thread fails, after which nothing can be answered.
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
        self._connection = MasterConnection(stream, arena, view)
        self._status = arena.reserved
        self._inbox = Inbox(self._connection, self._connection)
        self._remote = RemoteCaller(self._connection, self._inbox)

    def serve(self) -> int:
        """Serve until the end and return the exit status.  Raises EOFError if the master died."""
        setup, *later = self._connection.receive(wait=True)
        assert isinstance(setup, Setup)
        self._inbox.pending.extend(later)
        servable = self._load(setup)
        if servable is None:
            return 1
        if servable.language is not None:
            self._serve_language(servable)
        elif servable.threads is not None:
            self._serve_threads(servable)
        else:
            self._loop(self._inbox, Executor(servable.programs, status=self._status)).run()
        servable.close()
        return 0

    def announce_leaving(self) -> None:
        """Ask the master to send no more work and then `Exit`; can be called from any thread."""
        self._connection.send(Leaving())

    def _load(self, setup: Setup) -> LoadedServable | None:
        self._remote.servable = setup.name or setup.servable_name
        try:
            setup, steps = self.overrides.apply(setup), Lane(self._status, STEPS)
            pin(setup.cores, setup.number)
            wakeable = self._connection.make_wakeable
            with loading.reported_to(partial(set_loaded, self._status)):
                servable = load(setup, self._remote, wakeable, steps, self._broke)
            self._assign_role(servable, setup)
            if setup.traces is not None:
                user_spans.provide(setup.traces)
        except ModuleNotFoundError as error:  # of ours, or of what ours need
            self._connection.send(Failed(extras.missing(error, "it")))
            return None
        except Exception as error:
            if not isinstance(error, ServingError):
                log.error("failed to load servable %s", setup.servable_name, exc_info=True)
            self._connection.send(Failed(printable(str(error)) or repr(error)))
            return None
        self._remote.version = servable.version
        card = None if servable.language is None else servable.language.engine.card
        methods = servable.method_reports()
        if servable.language is not None:  # an upstream may be away: then this is no ready worker
            self._connection.send(servable.language.report())
        self._connection.send(
            WorkerReady(servable.version, methods, servable.models, card, servable.agents)
        )
        return servable

    def _assign_role(self, servable: LoadedServable, setup: Setup) -> None:
        """Connect a language model with those of workers with another role.  Raises StartError."""
        if servable.language is None or not setup.role:
            return
        servable.language.share_adapters()
        if setup.link is not None:
            servable.language.link(setup.link)
        if setup.role == DECODE:
            servable.language.hand_off(PrefillCalls(self._connection, self._remote))

    def _broke(self, reason: str) -> None:
        """Report that the servable cannot continue, so that the master ends this process.

        Can be called from any thread.
        """
        self._connection.send(Failed(printable(reason)))

    def _serve_threads(self, servable: LoadedServable) -> None:
        """Serve a model that runs several batches at once, on threads of their own."""
        source = PostSource(self._connection)
        inbox = Inbox(source, self._connection)
        inbox.pending.extend(self._inbox.pending)
        self._remote.inbox = inbox
        self._loop(inbox, Executor(servable.programs, source.post, self._status)).run()

    def _loop(self, inbox: Inbox, executor: Executor) -> StageLoop:
        return StageLoop(self._connection, inbox, self._remote, executor)

    def _serve_language(self, servable: LoadedServable) -> None:
        assert servable.language is not None
        quick = {name: program for name, program in servable.programs.items() if _is_quick(program)}
        slow = {name: program for name, program in servable.programs.items() if name not in quick}
        stage_source = ThreadSource() if slow else None
        loop = LanguageLoop(
            self._connection,
            self._inbox,
            self._remote,
            Executor(quick),
            language=servable.language,
            stage_source=stage_source,
        )
        if stage_source is None:
            loop.run()
            return
        self._remote.inbox = Inbox(stage_source, self._connection)
        thread = threading.Thread(target=self._run, args=[loop], name="channel", daemon=True)
        thread.start()
        self._loop(self._remote.inbox, Executor(slow, stage_source.put, self._status)).run()
        loop.is_alone = True
        self._connection.wake()
        thread.join()

    def _run(self, loop: LanguageLoop) -> None:
        try:
            loop.run()
        except (EOFError, ConnectionError):
            return  # the master died; the thread that watches it ends the process
        except BaseException:
            log.error("the thread that reads the channel failed", exc_info=True)
            self._on_broken()


def _is_quick(program: PreparedMethod) -> bool:
    """Return whether a method has no stage that could delay a stream."""
    return all(stage.kind in _QUICK for stage in program.method.stages)
