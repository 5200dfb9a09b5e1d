"""The asyncio client of the gRPC server."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from mindspore_serving.client.caller import OPTIONS, Caller
from mindspore_serving.client.messages import Result, from_reply, from_rpc_error, to_piece


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
        try:
            return from_reply(await self._send(self.stub.Predict, instances, timeout))
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)

    async def infer_stream(
        self, instance: dict[str, Any], timeout: float | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """As `Client.infer_stream`, but prints nothing."""
        call = self._send(self.stub.PredictStream, instance, timeout)
        try:
            async for reply in call:
                yield to_piece(from_reply(reply))
        except grpc.aio.AioRpcError as error:
            yield from_rpc_error(error)
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection; calls under way fail."""
        await self.channel.close(None)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
