"""The asyncio client of the gRPC server."""

import grpc

from mindspore_serving.client.caller import OPTIONS, Caller
from mindspore_serving.client.messages import Result, from_reply, from_rpc_error, to_request


class AsyncClient(Caller):
    """`Client` for asyncio; it takes the same arguments.

        async with AsyncClient("127.0.0.1:5500", "tensor_add", "add_common") as client:
            print(await client.infer({"x1": x1, "x2": x2}))

    To be made and used inside of one event loop.
    """

    def _connect(self, security: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        if security is None:
            return grpc.aio.insecure_channel(self.address, options=OPTIONS)
        return grpc.aio.secure_channel(self.address, security, options=OPTIONS)

    async def infer(self, instances: object, timeout: float | None = None) -> Result:
        """As `Client.infer`, but prints nothing.  Cancelling it cancels the request."""
        request = to_request(self.servable_name, self.method_name, self.version_number, instances)
        limit = self._limit(timeout)
        try:
            return from_reply(await self.stub.Predict(request, timeout=limit))
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)

    async def close(self) -> None:
        """Close the connection; calls under way fail."""
        await self.channel.close(None)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
