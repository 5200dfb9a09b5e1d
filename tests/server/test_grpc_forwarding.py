"""gRPC calls that a front end forwards to the master, over a real channel between the two."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import grpc
import grpc.aio
import pytest

from mindspore_serving.frontends.grpc.http2_server import GrpcMethods
from mindspore_serving.frontends.grpc.messages import CallFault, Code, Metadata
from mindspore_serving.server.processes.forwarded_call import ForwardedCall
from mindspore_serving.server.processes.forwarded_rpc import RpcApp
from mindspore_serving.server.processes.grpc_forwarding import MasterMethod
from mindspore_serving.server.processes.master_app import MasterCalls
from mindspore_serving.server.processes.messages import AsgiCall, BodyChunk, CancelRequest, ChunkAck
from tests.server.test_master_app import Both, until

SERVICE = "test.Service"
TRAILING: Metadata = (("x-text", "a"), ("x-text", "b"), ("x-bytes-bin", b"\0\xff"))
LARGE = bytes(range(256)) * 8192
running: set[str] = set()


async def repeat(_: object, context: Any) -> AsyncIterator[bytes]:
    while (message := await context.read()) is not None:
        yield message
        yield message
    context.set_trailing_metadata(TRAILING)


async def describe(_: object, context: Any) -> bytes:
    metadata = dict(context.invocation_metadata())
    return repr((context.peer(), metadata["x-bin"], context.time_remaining() > 5)).encode()


async def refuse(_: object, context: Any) -> bytes:
    await context.abort(Code.FAILED_PRECONDITION, "50 % of \u03c0\nis missing", TRAILING)
    return b""


async def fail(_: object, context: Any) -> bytes:
    raise ZeroDivisionError("a bug")


async def wait(_: object, context: Any) -> bytes:
    running.add("wait")
    context.add_done_callback(lambda call: running.discard("wait" if call.cancelled() else ""))
    await context.read()
    return b""


METHODS = {
    each.__name__: grpc.stream_unary_rpc_method_handler(each)
    for each in (describe, refuse, fail, wait)
}
METHODS["repeat"] = grpc.stream_stream_rpc_method_handler(repeat)


class Context:
    """The context of a call in a front end, whose client sends `messages`."""

    def __init__(self, *messages: Any) -> None:
        self._messages = list(messages)
        self.status, self.trailing = (Code.OK, ""), ()

    async def read(self) -> bytes | None:
        message = self._messages.pop(0) if self._messages else None
        if isinstance(message, asyncio.Future):
            await message
        if isinstance(message, Exception):
            raise message
        return message

    def invocation_metadata(self) -> Metadata:
        return (("x-bin", b"\1\2"),)

    def peer(self) -> str:
        return "ipv6:[::1]:5000"

    def time_remaining(self) -> float:
        return 60.0

    def set_trailing_metadata(self, trailing: Any) -> None:
        self.trailing = trailing

    async def abort(self, code: Code, details: str, trailing: Any = ()) -> None:
        self.status, self.trailing = (code, details), trailing
        raise grpc.aio.AbortError(details)


class Forwarding:
    """A front end and the master, which has METHODS."""

    def __init__(self) -> None:
        self.both = Both()
        self.calls = MasterCalls(self.both.front, count(1))
        self.both.on_event = self.calls.take
        self.task = asyncio.create_task(self._run_master())

    async def _run_master(self) -> None:
        """Do what a session does with the messages of a front end."""

        async def sync() -> None:
            raise AssertionError("a call that changes nothing waits for no front end")

        methods = GrpcMethods([grpc.method_handlers_generic_handler(SERVICE, METHODS)], 1 << 20)
        app, calls, tasks, position = RpcApp(methods, sync), {}, {}, 0
        while True:
            message = await until(lambda start=position: self.both.got[start : start + 1])
            position += 1
            if isinstance(message[0], AsgiCall):
                call = calls[message[0].id] = ForwardedCall(message[0], self.both.master, app, sync)
                tasks[message[0].id] = asyncio.create_task(call.run(None))
            elif isinstance(message[0], BodyChunk):
                calls[message[0].id].on_body(message[0])
            elif isinstance(message[0], ChunkAck):
                calls[message[0].id].on_ack()
            elif isinstance(message[0], CancelRequest):
                tasks[message[0].id].cancel()

    def call(self, name: str, context: Context) -> AsyncIterator[Any]:
        method = MasterMethod(self.calls, 0, f"/{SERVICE}/{name}", streams=True)
        return method.stream_stream(None, context)

    async def answers(self, name: str, context: Context) -> list[bytes]:
        received = []
        try:
            async for message in self.call(name, context):
                received.append(bytes(message))
        except grpc.aio.AbortError:
            pass
        return received

    async def close(self) -> None:
        self.task.cancel()
        await self.both.close()


async def test_messages_pass_in_order_both_ways_with_trailing_metadata() -> None:
    forwarding, context = Forwarding(), Context(b"a", b"", LARGE)
    received = await forwarding.answers("repeat", context)
    assert received == [b"a", b"a", b"", b"", LARGE, LARGE]
    assert (context.status, context.trailing) == ((Code.OK, ""), TRAILING)
    await forwarding.close()


async def test_the_master_sees_the_client_of_the_front_end() -> None:
    forwarding, context = Forwarding(), Context()
    received = await forwarding.answers("describe", context)
    assert received == [repr(("ipv6:[::1]:5000", b"\1\2", True)).encode()]
    await forwarding.close()


async def test_a_refusal_has_its_text_and_metadata() -> None:
    forwarding, context = Forwarding(), Context()
    assert await forwarding.answers("refuse", context) == []
    assert context.status == (Code.FAILED_PRECONDITION, "50 % of \u03c0\nis missing")
    assert context.trailing == TRAILING
    await forwarding.close()


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("fail", (Code.UNKNOWN, "the call failed")),
        ("nothing", (Code.UNIMPLEMENTED, f"Method not found: /{SERVICE}/nothing")),
    ],
)
async def test_a_call_that_fails_ends_with_a_status(name: str, status: tuple[Code, str]) -> None:
    forwarding, context = Forwarding(), Context(b"a")
    assert await forwarding.answers(name, context) == []
    assert context.status == status
    await forwarding.close()


async def test_a_message_that_cannot_be_read_ends_the_call_in_both_processes() -> None:
    forwarding = Forwarding()
    context = Context(CallFault(Code.INTERNAL, "a message cannot be decompressed"))
    with pytest.raises(CallFault):
        await forwarding.answers("wait", context)
    await until(lambda: not running)
    await forwarding.close()


async def test_a_call_that_its_client_cancels_is_cancelled_in_the_master() -> None:
    forwarding = Forwarding()
    context = Context(asyncio.get_running_loop().create_future())
    task = asyncio.create_task(forwarding.answers("wait", context))
    await until(lambda: running)
    task.cancel()
    await until(lambda: not running)
    await forwarding.close()
