"""A call that the library pygrpc-native has read: what grpcio calls its context, as far as the
methods of this package use it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from grpc.aio import AbortError

Metadata = tuple[tuple[str, str | bytes], ...]


class NativeCall:
    """`status`, `details` and `trailing` (metadata) are what it is answered with if it is aborted,
    `trailing` else too.
    """

    __slots__ = (
        "_body",
        "_deadline",
        "_has_left",
        "_metadata",
        "_on_done",
        "_peer",
        "details",
        "status",
        "task",
        "trailing",
    )

    def __init__(
        self, body: bytes, metadata: Metadata, peer: str, seconds_left: float | None
    ) -> None:
        self._body: Any = body
        self._metadata = metadata
        self._peer = peer
        self._deadline = None if seconds_left is None else time.monotonic() + seconds_left
        self._has_left = False
        self._on_done: list[Callable[[Any], None]] | None = None
        self.task: asyncio.Task[None] | None = None
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: Metadata = ()

    async def read(self) -> Any:
        """The one message; after it None, as there is no other."""
        body, self._body = self._body, None
        return body

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def set_trailing_metadata(self, trailing: Metadata) -> None:
        self.trailing = trailing

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def code(self) -> grpc.StatusCode | None:
        return self.status

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        self.status, self.details = code, details
        if trailing_metadata:
            self.trailing = trailing_metadata
        raise AbortError(details)

    def cancelled(self) -> bool:
        """Whether its client has left, or its deadline has passed."""
        return self._has_left

    def cancel(self) -> None:
        """Its client has left, or its deadline has passed."""
        self._has_left = True
        if self.task is not None:
            self.task.cancel()

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        self._on_done = [*(self._on_done or ()), call]

    def end(self) -> None:
        """It is answered, or nobody waits for an answer."""
        for call in self._on_done or ():
            call(self)
