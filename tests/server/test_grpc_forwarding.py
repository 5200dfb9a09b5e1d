"""What a front end answers when its call of the master fails."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from mindspore_serving.server.processes import grpc_forwarding

INTERNAL, UNAUTHENTICATED = grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAUTHENTICATED


class Master:
    """Ends calls with a message as `sent`, and those without one as `empty`."""

    def __init__(self, sent: grpc.StatusCode, empty: grpc.StatusCode) -> None:
        self._sent, self._empty = sent, empty

    def begin(self, messages: AsyncIterator[bytes], **_: Any) -> "_Call":
        return _Call(messages, self._sent, self._empty)


class _Call:
    def __init__(self, messages: Any, sent: grpc.StatusCode, empty: grpc.StatusCode) -> None:
        self._messages, self._sent, self._empty = messages, sent, empty

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = len([message async for message in self._messages])
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(self._sent if count else self._empty, none, none, "why")
        yield b""  # so that this is a generator

    def cancel(self) -> None:
        pass


class Context:
    """The context of a call with one message."""

    def __init__(self) -> None:
        self._messages = [b"message"]
        self.status: grpc.StatusCode | None = None

    async def read(self) -> bytes | None:
        return self._messages.pop() if self._messages else None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return ""

    def time_remaining(self) -> None:
        return None

    def set_trailing_metadata(self, trailing: Any) -> None:
        pass

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        self.status = code
        raise grpc.aio.AbortError(details)


async def status_of(master: Master) -> grpc.StatusCode | None:
    context = Context()
    with pytest.raises(grpc.aio.AbortError):
        async for _ in grpc_forwarding._forward(master.begin, context):  # type: ignore[arg-type]
            pass
    return context.status


async def test_a_refusal_that_came_while_the_message_was_sent_is_asked_for_again() -> None:
    assert await status_of(Master(INTERNAL, UNAUTHENTICATED)) is UNAUTHENTICATED


async def test_other_failures_of_the_master_are_passed_on() -> None:
    unread = grpc.StatusCode.INVALID_ARGUMENT  # the master wanted the message
    assert await status_of(Master(INTERNAL, unread)) is INTERNAL
    assert await status_of(Master(UNAUTHENTICATED, unread)) is UNAUTHENTICATED
