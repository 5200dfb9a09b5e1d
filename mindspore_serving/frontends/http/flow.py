"""Flow control of one connection: when to read, and when to write."""

import asyncio


class Flow:
    """`is_full` while much of what was written is not sent, since the client does not read it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._room = asyncio.Event()
        self._room.set()
        self._is_paused = False
        self.is_full = False

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def fill(self) -> None:
        """Much of what was written is not sent."""
        self.is_full = True
        self._room.clear()

    def empty(self) -> None:
        """Most of it is sent, or the connection is lost."""
        self.is_full = False
        self._room.set()

    async def drain(self) -> None:
        """Wait until there is room."""
        await self._room.wait()
