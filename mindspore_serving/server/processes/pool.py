"""The front-end processes of a server: started, kept running, given connections, and stopped."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec
from starlette.types import ASGIApp

from mindspore_serving import log
from mindspore_serving.core.service import Control
from mindspore_serving.errors import StartError
from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends.http.listener import Listener
from mindspore_serving.process.child import exit_text
from mindspore_serving.process.supervisor import Supervisor
from mindspore_serving.process.vocabulary import Exit
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.processes import child as children
from mindspore_serving.server.processes.catalog import state_of
from mindspore_serving.server.processes.child import FrontEndProcess
from mindspore_serving.server.processes.messages import (
    Admission,
    Admit,
    ServeGrpc,
    ServeHttp,
    State,
)
from mindspore_serving.server.processes.session import Desk, Session

LOOK_SECONDS = 0.1  # between two looks whether what is served has changed
LOOKS_PER_SYNC = 10
SYNC_SECONDS = 1.0  # that an answer waits for front ends, of which one may hang
START_SECONDS = 120.0  # that a process has until it serves
END_SECONDS = 1.0  # more than they have to let requests finish


class FrontEnds:
    """`num_processes` of them.  What they are to serve comes later, and may be two things."""

    desk: Desk

    def __init__(
        self,
        num_processes: int,
        control: Control,
        admission: Callable[[FrontEndOptions], Admission],
    ) -> None:
        """`admission` says what a server of these options lets in now."""
        self.num_processes = num_processes
        self._admission = admission
        self._control = control
        self._serials = count(1)
        self._state = State(0, False, True, [], [], [], [])
        self._live: dict[Session, FrontEndProcess] = {}  # those that serve what they are to
        self._children: set[FrontEndProcess] = set()
        self._supervisors: list[Supervisor[Session]] = []
        self._has_live = asyncio.Event()
        self._services: list[ServeHttp | ServeGrpc] = []
        self._listener: Listener | None = None
        self._reserved: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, desk: Desk) -> None:
        """Raises StartError."""
        self.desk = desk
        self._supervisors = [
            Supervisor(f"front end {number}", partial(self._open, number), self._wait, self._kill)
            for number in range(self.num_processes)
        ]
        await asyncio.gather(*(supervisor.start() for supervisor in self._supervisors))
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._watch())]

    async def start_http(self, message: ServeHttp, app: ASGIApp) -> None:
        """Accept connections, for front ends to serve; what they cannot answer `app` does.  Raises
        StartError.
        """
        options = message.options
        where = addresses.parse(options.address, "RESTful server", allow_unix=False)
        listener = addresses.listen(where)
        self.desk.app = app
        try:
            await self._serve(message)
        except BaseException:
            listener.close()
            raise
        has_tls = options.ssl_config is not None
        self._listener = Listener(listener, options.limits, self._hand, has_tls=has_tls)

    async def start_grpc(self, message: ServeGrpc) -> None:
        """Raises StartError."""
        where = addresses.parse(message.options.address, "Serving gRPC", allow_unix=False)
        self._reserved = addresses.reserve(where, "Serving gRPC")
        await self._serve(message)

    async def sync(self) -> None:
        """Returns when all front ends know what is served, and have said what they have counted; or
        soon, if one hangs.
        """
        state = self._state = msgspec.structs.replace(
            state_of(self._control), serial=next(self._serials)
        )
        syncing = {
            asyncio.ensure_future(session.sync(state)): session for session in list(self._live)
        }
        awaited = [one for one, session in syncing.items() if not session.pulse.is_silent]
        if awaited:
            await asyncio.wait(awaited, timeout=SYNC_SECONDS)

    async def renew(self) -> None:
        """Returns when all front ends let in what is to be let in now; or soon, if one hangs."""
        for session in self._live:
            self._admit(session)
        await self.sync()

    async def stop(self, grace: float) -> None:
        """Free the ports, let running requests finish within `grace` seconds, end the processes."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            self._listener.close()
        for session in self._live:
            session.pipe.send(Exit(grace))
        await self._wait_for_end(grace + END_SECONDS)
        for child in self._children:
            child.kill()
        await self._wait_for_end(None)
        for session in list(self._live):
            session.pipe.close()
        self._has_live.set()  # for connections that wait for one
        if self._reserved is not None:
            self._reserved.close()

    async def _wait_for_end(self, timeout: float | None) -> None:
        if self._children:
            await asyncio.wait([child.ended for child in self._children], timeout=timeout)

    # --- processes ----------------------------------------------------------------------------

    async def _open(self, number: int) -> Session:
        """Return the session of a new process that serves what there is.  Raises StartError."""
        child = await children.start(number)
        self._children.add(child)
        session = Session(child.ends, self.desk)
        try:
            await asyncio.wait_for(self._begin(session), START_SECONDS)
        except BaseException as error:
            child.kill()
            session.pipe.close()
            self._children.discard(child)
            if isinstance(error, asyncio.TimeoutError):
                text = f"front-end process {number} has not begun within {START_SECONDS:g} s"
                raise StartError(text) from None
            raise
        self._live[session] = child
        self._has_live.set()
        return session

    async def _begin(self, session: Session) -> None:
        """Returns when it serves what there is to serve.  Raises StartError."""
        await session.begin(self._state)
        for message in self._services:
            await self._ask(session, message)
        self._admit(session)  # what was renewed meanwhile

    async def _wait(self, session: Session) -> str:
        """Return how the process of `session` has ended, once it has."""
        child = self._live[session]
        status = await asyncio.shield(child.ended)
        session.pipe.close()
        self._children.discard(child)
        del self._live[session]
        if not self._live:
            self._has_live.clear()
        return exit_text(status)

    def _kill(self, session: Session) -> None:
        self._live[session].kill()

    async def _serve(self, message: ServeHttp | ServeGrpc) -> None:
        """Raises StartError."""
        self._services.append(message)
        await asyncio.gather(*(self._ask(session, message) for session in self._live))

    async def _ask(self, session: Session, message: ServeHttp | ServeGrpc) -> None:
        """Raises StartError."""
        admission = self._admission(message.options)
        await session.serve(msgspec.structs.replace(message, admission=admission))

    def _admit(self, session: Session) -> None:
        for number, message in enumerate(self._services):
            session.pipe.send(Admit(number, self._admission(message.options)))

    async def _follow(self) -> None:
        """Have front ends know what is served, soon after it has changed; and at times in any case,
        so that little of what they have counted is lost with one.
        """
        for look in count(1):
            await asyncio.sleep(LOOK_SECONDS)
            has_changed = state_of(self._control, self._state.serial) != self._state
            if has_changed or look % LOOKS_PER_SYNC == 0:
                await self.sync()

    async def _watch(self) -> None:
        """End those that do not answer."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            # If we were stopped ourselves for a while, they are not to blame.
            elapsed, last = min(loop.time() - last, 2 * LOOK_SECONDS), loop.time()
            for session, child in self._live.items():
                session.look(elapsed)
                if session.pulse.is_dead and not child.is_killed:
                    log.error("a front end has not answered for %.0f s", session.pulse.silent_for)
                    child.kill()

    # --- connections --------------------------------------------------------------------------

    async def _hand(self, connection: socket.socket, on_closed: Callable[[], None]) -> None:
        """Give a connection to the front end that has the fewest."""
        with connection:
            await self._has_live.wait()
            if not self._live:  # the server stops
                on_closed()
                return
            session = min(self._live, key=lambda one: (one.pulse.is_silent, one.num_connections))
            child = self._live[session] = self._live.pop(session)  # among equals it is next last
            number = session.add_connection(on_closed)
            with suppress(OSError):
                name = number.to_bytes(8, "little")
                socket.send_fds(child.connections, [name], [connection.fileno()])
                return
            session.remove_connection(number)  # it takes none, or has ended
