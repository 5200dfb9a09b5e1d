"""A group of processes that live once and together: the ranks of one model, say.

The group is ready when all are, and the end of one is the end of all.  What members compute, and
what they say to each other, is not known here; nor where they run: a member is a child of this
process or, behind a relay, a process of another machine.
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
from mindspore_serving.process.supervisor import EndedForGood
from mindspore_serving.process.vocabulary import Failed, Hello, Ready, why_other

CAUSE_SECONDS = 1.0  # for the first end to be heard of, behind one that is only its consequence


class RunningProcess(Protocol):
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
    """A member that is a process, and that says over `channel` when it is ready, or why it is not.

    It speaks as `process.vocabulary` has it, with the `messages` of its role.
    """

    def __init__(
        self,
        title: str,
        process: RunningProcess,
        channel: BlockingChannel[Any],
        messages: ModuleType,
    ) -> None:
        """Follow a process that was started."""
        self.title = title  # "rank 1"
        self.process = process
        self.channel = channel
        self.is_ready = False
        self._messages = messages
        self._problem = ""  # that it has reported

    async def ready(self) -> None:
        """As `Member.ready`."""
        while not self.is_ready:
            await readable(self.channel.fileno())
            try:
                self._receive()
            except EOFError:
                raise StartError(await self.ended()) from None
            if self._problem:
                raise StartError(f"{self.title}: {self._problem}")

    async def ended(self) -> str:
        """As `Member.ended`."""
        status = await self.process.wait()
        with suppress(EOFError):
            self._receive()
        text = self._problem or self.end_text(status)
        return f"{self.title}: {text}" if text else ""

    def end_text(self, status: int) -> str:
        """Say how it ended, with the end of its log unless it was killed; "" as `ended`."""
        tail = self.process.log_tail() if status != -signal.SIGKILL else ""
        return f"{exit_text(status)}{': ' if tail else ''}{tail}"

    def on_ready(self, message: Ready) -> None:
        """Note that it has said so."""
        self.is_ready = True

    def kill(self) -> None:
        """As `Member.kill`."""
        self.process.kill()

    def close(self) -> None:
        """As `Member.close`."""
        self.channel.close()

    def _receive(self) -> None:
        """Read what has come, without waiting.  Raises EOFError when nothing more will come."""
        for message in self.channel.receive(wait=False):
            if isinstance(message, Hello):
                self._problem = why_other(message, self._messages, self.title)
            elif isinstance(message, Failed):
                self._problem = message.text
            elif isinstance(message, Ready):
                self.on_ready(message)


class Group:
    """Members from the start of the first to the end of all.  Lives on an event loop."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._starts: set[asyncio.Future[None]] = set()
        self._watches: set[asyncio.Future[None]] = set()
        self._end: asyncio.Future[StartError] = asyncio.get_running_loop().create_future()

    def add(self, member: Member) -> None:
        """Have a member, which has been started, live and end with the others."""
        self._members.append(member)
        self._starts.add(asyncio.ensure_future(self._wait_until_ready(member)))
        self._watches.add(asyncio.ensure_future(self._watch(member)))

    async def ready(self) -> None:
        """Wait until all are.  Raises StartError with what the first says that cannot be, or how
        the first has ended; all are killed then.
        """
        waiting: set[asyncio.Future[Any]] = {*self._starts}
        while waiting and not self._end.done():
            await asyncio.wait({*waiting, self._end}, return_when=asyncio.FIRST_COMPLETED)
            waiting = {start for start in waiting if not start.done()}
        if self._end.done():
            raise self._end.result()

    async def wait(self) -> str:
        """Wait for the end, and close; return the text of the first one that has ended, with which
        all are killed.  Raises EndedForGood if that is what it said.
        """
        try:
            error = await asyncio.shield(self._end)
        finally:
            await self.close()
        if isinstance(error, EndedForGood):
            raise error
        return str(error)

    async def find_cause(self) -> str:
        """Return the text of the first end, which has consequences already; "" if none comes."""
        await asyncio.wait({self._end}, timeout=CAUSE_SECONDS)
        return str(self._end.result()) if self._end.done() else ""

    def kill(self) -> None:
        """End all now."""
        for member in self._members:
            member.kill()

    async def close(self) -> None:
        """End all, wait for their ends, and give back descriptors."""
        self._finish(StartError("the group is ended"))
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
