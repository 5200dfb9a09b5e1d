"""A call from the library pygrpc-native, with the part of grpcio's context that methods use."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from grpc.aio import AbortError

Metadata = tuple[tuple[str, str | bytes], ...]


class NativeCall:
    """A context of a call.

    An aborted call is answered with `status`, `details` and the metadata `trailing`, others with
    `trailing`.
    """

    __slots__ = (
        "_body",
        "_deadline",
        "_is_cancelled",
        "_metadata",
        "_on_done",
        "_peer",
        "details",
        "status",
        "task",
        "trailing",
    )

    def __init__(
        self, body: bytes, metadata: Metadata, peer: str, seconds_remaining: float | None
    ) -> None:
        self._body: Any = body
        self._metadata = metadata
        self._peer = peer
        self._deadline = None if seconds_remaining is None else time.monotonic() + seconds_remaining
        self._is_cancelled = False
        self._on_done: list[Callable[[Any], None]] | None = None
        self.task: asyncio.Task[None] | None = None
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: Metadata = ()

    async def read(self) -> Any:
        """Return the message of the call; afterwards None."""
        body, self._body = self._body, None
        return body

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def set_trailing_metadata(self, trailing: Metadata) -> None:
        self.trailing = trailing

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float | None:
        """Return the seconds until the client's deadline, None without a deadline."""
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
        """Return whether the client has disconnected, or the deadline has passed."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Cancel the call: the client has disconnected, or the deadline has passed."""
        self._is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        self._on_done = [*(self._on_done or ()), call]

    def end(self) -> None:
        """Run the callbacks: the call is answered or cancelled."""
        for call in self._on_done or ():
            call(self)
