"""The standard health service of gRPC, grpc.health.v1.Health; it needs no key.

The name "" is the server, other names are servables.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2 as pb

from mindspore_serving.core.service import Control
from mindspore_serving.errors import InvalidInputs, NotFound, ServingError
from mindspore_serving.frontends.grpc.calls import OpenCalls, abort
from mindspore_serving.frontends.health import are_ready, versions_of
from mindspore_serving.frontends.memory import Quota
from mindspore_serving.frontends.message_reader import Context, MessageReader
from mindspore_serving.frontends.mindspore.grpc import SERVICE as MS_SERVICE

SERVICE = "grpc.health.v1.Health"
_READ_SECONDS = 5.0
_NUM_READING = 4  # requests read at the same time: without a key they must not use much memory
MAX_WATCHES = 256  # at once, of which no client has all
_PERIOD = 0.5  # seconds between two checks for Watch


class HealthService:
    """The health service, from `control.readiness()`."""

    def __init__(self, control: Control, max_message: int) -> None:
        """Create the service; `max_message` is in bytes."""
        self._control = control
        memory = Quota(_NUM_READING * max_message, largest=max_message)
        self._reader = MessageReader(memory, _READ_SECONDS)
        self._watches = OpenCalls(MAX_WATCHES)
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def handler(self) -> Any:
        """Return the handler of the service, to be added to a server."""
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def close(self) -> None:
        """Report NOT_SERVING from now on, and end calls of Watch."""
        if not self._closed.done():
            self._closed.set_result(None)

    async def _check(self, _: object, context: Context) -> bytes:
        name = await self._read_name(context)
        state = self._state(name)
        if state == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            await abort(context, NotFound(f"there is no servable {name!r}"))
        return _encode(state)

    async def _watch(self, _: object, context: Context) -> AsyncIterator[bytes]:
        name = await self._read_name(context)
        shown = None
        async with self._watches.holding(context):
            while shown is None or not self._closed.done():
                state = self._state(name)
                if state != shown:
                    yield _encode(state)
                    shown = state
                await asyncio.wait([self._closed], timeout=_PERIOD)
            if shown != pb.HealthCheckResponse.NOT_SERVING:
                yield _encode(pb.HealthCheckResponse.NOT_SERVING)

    async def _read_name(self, context: Context) -> str:
        """Read the request; return the name of its service."""
        try:
            peer, body = await self._reader.read(context)
            self._reader.give_back(peer, len(body))
            return str(pb.HealthCheckRequest.FromString(body).service)
        except DecodeError:
            await abort(context, InvalidInputs("the request is not a valid HealthCheckRequest"))
        except ServingError as error:
            await abort(context, error)

    def _state(self, name: str) -> "pb.HealthCheckResponse.ServingStatus.ValueType":
        states = pb.HealthCheckResponse
        if name in ("", MS_SERVICE):
            is_ready = self._control.is_ready
        else:
            versions = versions_of(self._control, name)
            if not versions:
                return states.SERVICE_UNKNOWN
            is_ready = are_ready(self._control, versions)
        return states.SERVING if is_ready and not self._closed.done() else states.NOT_SERVING


def _encode(state: "pb.HealthCheckResponse.ServingStatus.ValueType") -> bytes:
    return bytes(pb.HealthCheckResponse(status=state).SerializeToString())
