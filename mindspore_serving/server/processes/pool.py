"""The pool of front-end processes: start, supervision, distribution of connections, and stop."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count

import msgspec
from starlette.types import ASGIApp

from mindspore_serving import log
from mindspore_serving.aio import within
from mindspore_serving.core.service import Control
from mindspore_serving.errors import StartError
from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.http.listener import Listener
from mindspore_serving.process.child import exit_text
from mindspore_serving.process.supervisor import Supervisor
from mindspore_serving.process.vocabulary import Exit
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.server.processes import child as children
from mindspore_serving.server.processes.catalog import current_state
from mindspore_serving.server.processes.child import CONNECTION, FrontEndProcess
from mindspore_serving.server.processes.messages import (
    Admission,
    Admit,
    Serve,
    ServedState,
)
from mindspore_serving.server.processes.session import Session, SharedServices

POLL_SECONDS = 0.1  # interval of checks for a changed state
POLLS_PER_SYNC = 10
SYNC_SECONDS = 1.0  # timeout of a sync, as a front end may hang
START_SECONDS = 120.0  # timeout of a start
END_SECONDS = 1.0  # for processes to exit, after the time for requests to finish


class FrontEndPool:
    """A pool of `num_processes` front ends, for an HTTP server, a gRPC server or both."""

    services: SharedServices

    def __init__(
        self,
        num_processes: int,
        control: Control,
        admission: Callable[[FrontEndOptions], Admission],
    ) -> None:
        """Create the pool; `admission` returns the current keys and certificate of a server."""
        self.num_processes = num_processes
        self._admission = admission
        self._control = control
        self._serials = count(1)
        self._state = ServedState(0, False, True, [], [], [], [])
        self._live: dict[Session, FrontEndProcess] = {}  # those that serve
        self._children: set[FrontEndProcess] = set()
        self._supervisors: list[Supervisor[Session]] = []
        self._has_live = asyncio.Event()
        self._servers: list[Serve] = []
        self._listeners: list[Listener] = []
        self._closing: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, services: SharedServices) -> None:
        """Start the processes.  Raises StartError."""
        self.services = services
        self._supervisors = [
            Supervisor(f"front end {number}", partial(self._open, number), self._wait, self._kill)
            for number in range(self.num_processes)
        ]
        await asyncio.gather(*(supervisor.start() for supervisor in self._supervisors))
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._watch())]

    async def serve(
        self, message: Serve, where: Address, app: ASGIApp, close: Callable[[], None]
    ) -> None:
        """Start a server at the address `where`; `app` answers forwarded requests.

        `close` is called first when the pool stops.  Raises StartError.
        """
        tag = "RESTful server" if message.has_http else "Serving gRPC server"
        listener = addresses.listen(where, tag)
        self.services.apps.append(app)
        hand = partial(self._hand, len(self._servers))
        try:
            await self._serve(message)
        except BaseException:
            listener.close()
            raise
        options = message.options
        has_tls = options.ssl_config is not None
        self._listeners.append(Listener(listener, options.limits, hand, has_tls=has_tls))
        self._closing += [close, partial(addresses.remove_socket, where)]

    async def sync(self) -> None:
        """Send the current state to all front ends, and wait until they have reported counts.

        Waits at most SYNC_SECONDS, and not for a front end that hangs.
        """
        state = self._state = msgspec.structs.replace(
            current_state(self._control), serial=next(self._serials)
        )
        syncing = {
            asyncio.ensure_future(session.sync(state)): session for session in list(self._live)
        }
        awaited = [task for task, session in syncing.items() if not session.pulse.is_silent]
        if awaited:
            await asyncio.wait(awaited, timeout=SYNC_SECONDS)

    async def renew(self) -> None:
        """Send current keys and certificates to all front ends, and wait as `sync`."""
        for session in self._live:
            self._admit(session)
        await self.sync()

    async def stop(self, grace: float) -> None:
        """Close the ports, let requests finish within `grace` seconds, and end the processes."""
        for supervisor in self._supervisors:
            supervisor.cancel()
        for task in self._tasks:
            task.cancel()
        for listener in self._listeners:
            listener.close()
        for close in self._closing:
            close()
        for session in self._live:
            session.pipe.send(Exit(grace))
        await self._wait_for_end(grace + END_SECONDS)
        for child in self._children:
            child.kill()
        await self._wait_for_end(None)
        for session in list(self._live):
            session.pipe.close()
        self._has_live.set()  # wakes connections that wait for a front end

    async def _wait_for_end(self, timeout: float | None) -> None:
        if self._children:
            await asyncio.wait([child.ended for child in self._children], timeout=timeout)

    # --- processes ----------------------------------------------------------------------------

    async def _open(self, number: int) -> Session:
        """Start a process with all servers of the pool; return its session.  Raises StartError."""
        child = await children.start(number)
        self._children.add(child)
        session = Session(child.ends, self.services)
        try:
            await within(START_SECONDS, self._begin(session))
        except BaseException as error:
            child.kill()
            session.pipe.close()
            self._children.discard(child)
            if isinstance(error, asyncio.TimeoutError):
                text = f"front-end process {number} did not start within {START_SECONDS:g} s"
                raise StartError(text) from None
            raise
        self._live[session] = child
        self._has_live.set()
        return session

    async def _begin(self, session: Session) -> None:
        """Send state and servers to a new process and wait until it serves.  Raises StartError."""
        await session.begin(self._state)
        for message in self._servers:
            await self._ask(session, message)
        self._admit(session)  # keys or certificates may have changed meanwhile

    async def _wait(self, session: Session) -> str:
        """Wait until the process of `session` has ended; return how."""
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

    async def _serve(self, message: Serve) -> None:
        """Start a server in all front ends, and in those that start later.  Raises StartError."""
        self._servers.append(message)
        await asyncio.gather(*(self._ask(session, message) for session in self._live))

    async def _ask(self, session: Session, message: Serve) -> None:
        """Start a server in a front end, with current keys.  Raises StartError."""
        admission = self._admission(message.options)
        await session.serve(msgspec.structs.replace(message, admission=admission))

    def _admit(self, session: Session) -> None:
        for number, message in enumerate(self._servers):
            session.pipe.send(Admit(number, self._admission(message.options)))

    async def _follow(self) -> None:
        """Call `sync` when the state has changed, and periodically.

        The latter collects their counts, so that few are lost with a process.
        """
        for number in count(1):
            await asyncio.sleep(POLL_SECONDS)
            has_changed = current_state(self._control, self._state.serial) != self._state
            if has_changed or number % POLLS_PER_SYNC == 0:
                await self.sync()

    async def _watch(self) -> None:
        """Kill front ends that do not answer."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            # If this process was stopped for a while, the front ends are not to blame.
            elapsed, last = min(loop.time() - last, 2 * POLL_SECONDS), loop.time()
            for session, child in self._live.items():
                session.check_heartbeat(elapsed)
                if session.pulse.is_dead and not child.is_killed:
                    log.error("a front end has not answered for %.0f s", session.pulse.silent_for)
                    child.kill()

    # --- connections --------------------------------------------------------------------------

    async def _hand(
        self, server: int, connection: socket.socket, on_closed: Callable[[], None]
    ) -> None:
        """Pass an accepted connection of a server to the front end with the fewest connections."""
        with connection:
            await self._has_live.wait()
            if not self._live:  # the server stops
                on_closed()
                return
            session = min(self._live, key=lambda live: (live.pulse.is_silent, live.num_connections))
            child = self._live[session] = self._live.pop(session)  # last in order: round robin
            number = session.add_connection(on_closed)
            with suppress(OSError):
                name = CONNECTION.pack(server, number)
                socket.send_fds(child.connections, [name], [connection.fileno()])
                return
            session.remove_connection(number)  # the front end has ended, or its queue is full
