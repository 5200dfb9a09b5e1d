"""Server reflection, by which tools such as grpcurl find the services and messages of a server.

The service has two names, whose messages are the same on the wire.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from mindspore_serving.errors import ServingError
from mindspore_serving.frontends.grpc.calls import CallGate, OpenCalls, abort
from mindspore_serving.frontends.message_reader import Context
from mindspore_serving.proto import inference_pb2, ms_service_pb2

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
FILES = [
    module.DESCRIPTOR for module in (ms_service_pb2, inference_pb2, health_pb2, reflection_pb2)
]
MAX_CALLS = 64  # at once, of which no client has all


class ReflectionService:
    """Reflection of the services called `names`; it needs a key if the server has keys."""

    def __init__(self, names: Iterable[str], gate: CallGate) -> None:
        pool = DescriptorPool()
        for file in FILES:
            pool.AddSerializedFile(file.serialized_pb)
        self._servicer = ReflectionServicer([*names, *SERVICES], pool)
        self._gate = gate
        self._calls = OpenCalls(MAX_CALLS)

    def handlers(self) -> list[Any]:
        """Return a handler for each name of the service, to be added to a server."""
        method = grpc.stream_stream_rpc_method_handler(
            self._answer,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        methods = {"ServerReflectionInfo": method}
        return [grpc.method_handlers_generic_handler(name, methods) for name in SERVICES]

    async def _answer(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        try:
            tenant = await self._gate.admit_tenant(context, "reflection")
        except ServingError as error:
            await abort(context, error)
        try:
            async with self._calls.holding(context):
                async for response in self._servicer.ServerReflectionInfo(requests, context):
                    yield response
        finally:
            if tenant is not None:
                tenant.release()
