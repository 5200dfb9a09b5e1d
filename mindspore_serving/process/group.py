"""A group of processes that live once and together: the ranks of one model, say.

The group is ready when all are, and the end of one is the end of all.  What members compute, and
what they say to each other, is not known here; nor where they run: a member is a child of this
process or, behind a relay, a process of another machine.
"""

import asyncio
import signal
import socket
from contextlib import suppress
from typing import Protocol

from mindspore_serving import log
from mindspore_serving.aio import readable
from mindspore_serving.errors import StartError
from mindspore_serving.process.child import exit_text
from mindspore_serving.process.supervisor import EndedForGood

CAUSE_SECONDS = 1.0  # for the first end to be heard of, behind one that is only its consequence


class Process(Protocol):
    """A process that was started, here or on another machine."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Return its exit status once it has ended (negative: the signal that ended it)."""
        ...

    def kill(self) -> None:
        """End it and everything it started, now.  Harmless if it is gone."""
        ...

    def log_tail(self) -> str:
        """Return the end of what it wrote to its log, for error texts."""
        ...


class Member(Protocol):
    """One that lives and ends with the others of its group."""

    async def ready(self) -> None:
        """Wait until it can work.  Raises StartError with what it says if it cannot."""
        ...

    async def ended(self) -> str:
        """Wait for its end; return how it ended, or "" if it did because another one had.

        Raises StartError in place of a text that is more than one: EndedForGood, for example.
        """
        ...

    def kill(self) -> None:
        """End it now.  Harmless if it is gone."""
        ...

    def close(self) -> None:
        """Give back descriptors, once it has ended."""
        ...


class ProcessMember:
    """A member that is a process, and that says over `stream` that it is ready, or why it is not.

    A role says what its messages are by `receive`.
    """

    def __init__(self, title: str, process: Process, stream: socket.socket) -> None:
        self.title = title  # "rank 1"
        self.process = process
        self.stream = stream
        self.is_ready = False
        self.problem = ""  # that it has reported

    def receive(self) -> None:
        """Read what has come, without waiting, and set `is_ready` or `problem`.

        Raises EOFError when nothing more will come.
        """
        raise NotImplementedError

    async def ready(self) -> None:
        """As `Member.ready`."""
        while not self.is_ready:
            await readable(self.stream.fileno())
            try:
                self.receive()
            except EOFError:
                raise StartError(await self.ended()) from None
            if self.problem:
                raise StartError(f"{self.title}: {self.problem}")

    async def ended(self) -> str:
        """As `Member.ended`."""
        status = await self.process.wait()
        with suppress(EOFError):
            self.receive()
        return f"{self.title}: {self.problem or self.end_text(status)}"

    def end_text(self, status: int) -> str:
        """Say how it ended, with the end of its log unless it was killed."""
        tail = self.process.log_tail() if status != -signal.SIGKILL else ""
        return f"{exit_text(status)}{': ' if tail else ''}{tail}"

    def kill(self) -> None:
        """As `Member.kill`."""
        self.process.kill()

    def close(self) -> None:
        """As `Member.close`."""
        self.stream.close()


class Group:
    """Members from the start of the first to the end of all.  Lives on an event loop."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._watches: list[asyncio.Future[None]] = []
        self._end: asyncio.Future[StartError] = asyncio.get_running_loop().create_future()

    def add(self, member: Member) -> None:
        """Have a member, which has been started, live and end with the others."""
        self._members.append(member)
        self._watches.append(asyncio.ensure_future(self._watch(member)))

    async def ready(self) -> None:
        """Wait until all are.  Raises StartError with what the first says that cannot be, or how
        the first has ended; all are killed then."""
        tasks = [asyncio.ensure_future(self._wait_until_ready(member)) for member in self._members]
        all_ready = asyncio.gather(*tasks)
        try:
            await asyncio.wait({all_ready, self._end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if self._end.done():
            raise self._end.result()

    async def wait(self) -> str:
        """Wait for the end; return the text of the first one that has ended, with which all are
        killed.  Raises EndedForGood if that is what it said."""
        error = await asyncio.shield(self._end)
        if isinstance(error, EndedForGood):
            raise error
        return str(error)

    def kill(self) -> None:
        """End all now."""
        for member in self._members:
            member.kill()

    async def close(self) -> None:
        """End all, wait for their ends, and give back descriptors."""
        self._finish(StartError("the group is ended"))
        if self._watches:
            await asyncio.wait(self._watches)
        for member in self._members:
            member.close()

    async def _wait_until_ready(self, member: Member) -> None:
        try:
            await member.ready()
        except StartError as error:
            self._finish(error)
        except Exception as error:  # what it said is no message
            log.error("starting a group", exc_info=True)
            self._finish(StartError(str(error)))

    async def _watch(self, member: Member) -> None:
        try:
            text = await member.ended()
            if not text:
                await asyncio.wait({self._end}, timeout=CAUSE_SECONDS)
            self._finish(StartError(text))
        except StartError as error:
            self._finish(error)
        except Exception as error:  # what it said is no message
            log.error("watching a group", exc_info=True)
            self._finish(StartError(str(error)))

    def _finish(self, error: StartError) -> None:
        """Kill all, for this reason if it is the first."""
        if not self._end.done():
            self._end.set_result(error)
        self.kill()
