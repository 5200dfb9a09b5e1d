"""The blocking and the asyncio client of the gRPC server."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import grpc

from mindspore_serving.client.caller import Caller
from mindspore_serving.client.messages import Result, from_reply, from_rpc_error, to_piece


class ClientGrpcAsyncResult:
    """The reply to come of `Client.infer_async`."""

    def __init__(self, result_future: Any) -> None:
        self.result_future = result_future

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the reply, `timeout` seconds at most.

        Returns what `infer` returns.  Raises grpc.RpcError if the request failed without a reply,
        and grpc.FutureTimeoutError if it has not come in time.
        """
        return from_reply(self.result_future.result(timeout=timeout))


class ClientGrpcAsyncError:
    """In place of a ClientGrpcAsyncResult for a request that could not be sent."""

    def __init__(self, result_error: dict[str, str]) -> None:
        self.result_error = result_error

    def result(self, timeout: float | None = None) -> Result:
        """{"error": text}."""
        return self.result_error


class Client(Caller):
    """Calls one method of a servable.

        with Client("127.0.0.1:5500", "tensor_add", "add_common") as client:
            print(client.infer({"x1": x1, "x2": x2}))

    Args:
        address: "ip:port" or "unix:path".
        servable_name: the servable.
        method_name: the method.
        version_number: which version of the servable; 0 is the newest that runs.
        ssl_config: for a server with TLS.
        timeout: seconds that a call may take, unless it is given its own; None: no limit.
        api_key: for a server that wants one.

    `Client(ip, port, servable_name, method_name, version_number)` of version 1.1 works too.
    Raises RuntimeError for a wrong argument.  Connects on first use; safe to use from many threads.
    """

    def infer(self, instances: object, timeout: float | None = None) -> Result:
        """Send one instance, or a list or tuple of instances, and wait for the outputs.

        An instance is a dict {input: value} of numpy arrays and numbers, bool, int, float, str or
        bytes.  Returns a list with one dict {output: value} per instance, which is
        {"error": text} for a failed one; or {"error": text} if all failed or no reply came, the
        latter after printing why.  Raises RuntimeError for a value that cannot be sent.
        """
        try:
            return from_reply(self._send(self.stub.Predict, instances, timeout))
        except grpc.RpcError as error:
            return _report(error)

    def infer_async(
        self, instances: object, timeout: float | None = None
    ) -> ClientGrpcAsyncResult | ClientGrpcAsyncError:
        """As `infer`, but does not wait: the outputs are the `result()` of what it returns."""
        try:
            return ClientGrpcAsyncResult(self._send(self.stub.Predict.future, instances, timeout))
        except grpc.RpcError as error:
            return ClientGrpcAsyncError(_report(error))

    def infer_stream(
        self, instance: dict[str, Any], timeout: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Send one instance to a method that streams, and iterate over the pieces of its answer.

        Each piece is a dict {output: value}, the last one {"error": text} if the request failed.
        Leaving the loop early cancels the request.  A method that does not stream gives one piece.
        """
        call = self._send(self.stub.PredictStream, instance, timeout)
        try:
            for reply in call:
                yield to_piece(from_reply(reply))
        except grpc.RpcError as error:
            yield _report(error)
        finally:
            call.cancel()

    def close(self) -> None:
        """Close the connection; calls under way fail."""
        self.channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _report(error: grpc.RpcError) -> dict[str, str]:
    """Printed, too: scripts that never look at the result relied on that."""
    code: Any = error.code()
    print(error.details())
    print(code.name)
    print(code.value)
    return from_rpc_error(error)


class AsyncClient(Caller):
    """`Client` for asyncio; it takes the same arguments.

        async with AsyncClient("127.0.0.1:5500", "tensor_add", "add_common") as client:
            print(await client.infer({"x1": x1, "x2": x2}))

    To be made and used inside of one event loop.
    """

    _library: ClassVar[Any] = grpc.aio

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
