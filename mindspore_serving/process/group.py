"""A group of processes with a common life: the ranks of one model, for example.

The group is ready when all members are, and the first member to end ends the group.  Does not know
what members compute or say to each other, nor where they run: a member is a child of this process
or, behind a relay, a process of another machine.
"""

import asyncio
import signal
from contextlib import suppress
from types import ModuleType
from typing import Any, Protocol

from mindspore_serving import log
from mindspore_serving.aio import readable
from mindspore_serving.errors import StartError
from mindspore_serving.process.channel import BlockingChannel
from mindspore_serving.process.child import exit_text
from mindspore_serving.process.supervisor import NoRestart
from mindspore_serving.process.vocabulary import Failed, Hello, Ready, version_mismatch

# How long to wait for the end that caused another one: it may be reported after its consequence.
CAUSE_SECONDS = 1.0


class RunningProcess(Protocol):
    """A process that was started on this machine or on another."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Wait until it has ended; return its exit status, negative for a signal."""
        ...

    def kill(self) -> None:
        """Kill it and its descendants, if it still runs."""
        ...

    def log_tail(self) -> str:
        """Return its last output, for error messages."""
        ...


class Member(Protocol):
    """A member of a group, which ends with all the other members."""

    async def ready(self) -> None:
        """Wait until the member can work.  Raises StartError with its reason if it cannot."""
        ...

    async def ended(self) -> str:
        """Wait until the member has ended; return how, or "" if another member's end caused it.

        Raises StartError instead of returning a text if the type matters: NoRestart, for example.
        """
        ...

    def kill(self) -> None:
        """Kill the member, if it still runs."""
        ...

    def close(self) -> None:
        """Close descriptors, after the member has ended."""
        ...


class ProcessMember:
    """A member that is a process and reports `Ready` or `Failed` over a channel.

    `messages` is the module with the messages of its role, see `process.vocabulary`.
    """

    def __init__(
        self,
        title: str,
        process: RunningProcess,
        channel: BlockingChannel[Any],
        messages: ModuleType,
    ) -> None:
        """Follow a process that was started; `title` ("rank 1") names it in error messages."""
        self.title = title
        self.process = process
        self.channel = channel
        self.is_ready = False
        self._messages = messages
        self._problem = ""  # reported by the process

    async def ready(self) -> None:
        """Wait until the process can work, see `Member.ready`."""
        while not self.is_ready:
            await readable(self.channel.fileno())
            try:
                self._receive()
            except EOFError:
                raise StartError(await self.ended()) from None
            if self._problem:
                raise StartError(f"{self.title}: {self._problem}")

    async def ended(self) -> str:
        """Wait until the process has ended, see `Member.ended`."""
        status = await self.process.wait()
        with suppress(EOFError):
            self._receive()
        text = self._problem or self.describe_exit(status)
        return f"{self.title}: {text}" if text else ""

    def describe_exit(self, status: int) -> str:
        """Describe an exit status, with the last output unless it was SIGKILL; "" as `ended`."""
        tail = self.process.log_tail() if status != -signal.SIGKILL else ""
        return f"{exit_text(status)}{': ' if tail else ''}{tail}"

    def on_ready(self, message: Ready) -> None:
        """Handle the message that the process is ready."""
        self.is_ready = True

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        self.process.kill()

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()

    def _receive(self) -> None:
        """Handle the messages received so far.  Raises EOFError if the channel is closed."""
        for message in self.channel.receive(wait=False):
            if isinstance(message, Hello):
                self._problem = version_mismatch(message, self._messages, self.title)
            elif isinstance(message, Failed):
                self._problem = message.text
            elif isinstance(message, Ready):
                self.on_ready(message)


class Group:
    """Members from the start of the first to the end of all; on the running event loop.

    The first member that ends, or fails to start, decides the text of the group's end:

        add ... add --> ready() --> wait()
         |                |           |
         +----------------+-----------+--> a member ends: all are killed
    """

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._starts: set[asyncio.Future[None]] = set()
        self._watches: set[asyncio.Future[None]] = set()
        self._end: asyncio.Future[StartError] = asyncio.get_running_loop().create_future()

    def add(self, member: Member) -> None:
        """Add a member that has been started."""
        self._members.append(member)
        self._starts.add(asyncio.ensure_future(self._wait_until_ready(member)))
        self._watches.add(asyncio.ensure_future(self._watch(member)))

    async def ready(self) -> None:
        """Wait until all members are ready.

        Raises StartError, after killing all, with the reason of the first member that cannot start
        or has ended.
        """
        waiting: set[asyncio.Future[Any]] = {*self._starts}
        while waiting and not self._end.done():
            await asyncio.wait({*waiting, self._end}, return_when=asyncio.FIRST_COMPLETED)
            waiting = {start for start in waiting if not start.done()}
        if self._end.done():
            raise self._end.result()

    async def wait(self) -> str:
        """Wait until the first member has ended, close the group and return how that member ended.

        Raises NoRestart if the member raised it.
        """
        try:
            error = await asyncio.shield(self._end)
        finally:
            await self.close()
        if isinstance(error, NoRestart):
            raise error
        return str(error)

    async def find_cause(self) -> str:
        """Return how the first member ended, when an effect was seen already; "" if none has."""
        await asyncio.wait({self._end}, timeout=CAUSE_SECONDS)
        return str(self._end.result()) if self._end.done() else ""

    def kill(self) -> None:
        """Kill all members."""
        for member in self._members:
            member.kill()

    async def close(self) -> None:
        """Kill all members, wait until they have ended, and close their descriptors."""
        self._finish(StartError("the group was closed"))
        for start in self._starts:
            start.cancel()
        if self._members:
            await asyncio.wait(self._starts | self._watches)
        for member in self._members:
            member.close()

    async def _wait_until_ready(self, member: Member) -> None:
        try:
            await member.ready()
        except StartError as error:
            self._finish(error)
        except Exception as error:  # an invalid message
            log.error("starting a member of a group failed", exc_info=True)
            self._finish(StartError(str(error)))

    async def _watch(self, member: Member) -> None:
        try:
            text = await member.ended()
            if not text:
                await asyncio.wait({self._end}, timeout=CAUSE_SECONDS)
            self._finish(StartError(text))
        except StartError as error:
            self._finish(error)
        except Exception as error:  # an invalid message
            log.error("watching a member of a group failed", exc_info=True)
            self._finish(StartError(str(error)))

    def _finish(self, error: StartError) -> None:
        """Kill all members; the first `error` is the reason of the group's end."""
        if not self._end.done():
            self._end.set_result(error)
        self.kill()
