"""What every gRPC method does before its work: admit the caller, then read the request.

Methods are declared as taking a stream of requests, which makes no difference to clients: a message
is then read when the code asks for it, and what a caller without a key sends is not read at all.
"""

import asyncio
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, Overloaded, ServingError
from mindspore_serving.frontends.keys import KeyHolder, Keys
from mindspore_serving.frontends.memory import NO_MEMORY, BodyMemory
from mindspore_serving.wire import status

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AdmittedCall:
    """A call whose message was read; `leave` at its end.  `timeout` is in seconds."""

    __slots__ = ("_holder", "_memory", "body", "timeout")

    def __init__(self, holder: KeyHolder | None, memory: BodyMemory) -> None:
        self._holder = holder
        self._memory = memory
        self.body = b""
        self.timeout = 0.0

    def leave(self) -> None:
        self._memory.give_back(len(self.body))
        if self._holder is not None:
            self._holder.release()


class CallGate:
    """Lets calls in that have one of `keys`, and reads their messages within `limits`."""

    def __init__(self, keys: Keys, limits: ServerLimits) -> None:
        self._keys = keys
        self._limits = limits
        self._memory = BodyMemory(limits.max_body_memory)

    async def admit(self, context: Context) -> AdmittedCall:
        """Ends the call if it may not come in."""
        holder = None
        try:
            if self._keys:
                holder = self._keys.find(_authorization(context)).admit()
        except ServingError as error:
            await abort(context, error)
        call = AdmittedCall(holder, self._memory)
        try:
            body = await read_message(context, self._limits.body_timeout)
            if not self._memory.take(len(body)):
                await abort(context, Overloaded(NO_MEMORY))
            call.body = body
            call.timeout = self._timeout(context)
        except BaseException:
            call.leave()
            raise
        return call

    def _timeout(self, context: Context) -> float:
        remaining, most = context.time_remaining(), self._limits.request_timeout
        return most if remaining is None else max(0.0, min(remaining, most))


async def read_message(context: Context, seconds: float) -> bytes:
    """The message of a call.  Ends the call if it does not come within `seconds`."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    is_late = False

    def expire() -> None:
        nonlocal is_late
        is_late = True
        if task is not None:
            task.cancel()

    timer = loop.call_later(seconds, expire)
    try:
        body: Any = await context.read()
    except asyncio.CancelledError:
        if not is_late:
            raise
        await abort(context, DeadlineExceeded("the request came too slowly"))
    finally:
        timer.cancel()
    if not isinstance(body, bytes):
        await abort(context, InvalidInputs("no request came"))
    return body


async def abort(context: Context, error: ServingError) -> NoReturn:
    """End the call with the status of `error`."""
    code = grpc.StatusCode[status.of(error.code).grpc]
    try:
        await context.abort(code, str(error), again(error))
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        raise asyncio.CancelledError from None  # the caller has left
    raise AssertionError("abort raises")


def again(error: ServingError | None) -> tuple[tuple[str, str], ...]:
    """The metadata that say when a request that failed with `error` may be sent again."""
    seconds = status.retry_after(error)
    return () if seconds is None else (("retry-after", seconds),)


def _authorization(context: Context) -> bytes | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, bytes) else value.encode()
    return None
