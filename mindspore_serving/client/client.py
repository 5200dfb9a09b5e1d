"""Blocking and asyncio clients of the gRPC server."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import grpc

from mindspore_serving.client.caller import Caller
from mindspore_serving.client.messages import Result, from_reply, from_rpc_error, to_piece
from mindspore_serving.client.sequence import AsyncClientSequence, ClientSequence, Metadata


class ClientGrpcAsyncResult:
    """Pending reply of `Client.infer_async`."""

    def __init__(self, result_future: Any) -> None:
        self.result_future = result_future

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the reply, at most `timeout` seconds.

        Returns the result of `infer`. Raises grpc.RpcError if the request failed without a reply,
        and grpc.FutureTimeoutError if it has not arrived in time.
        """
        return from_reply(self.result_future.result(timeout=timeout))


class ClientGrpcAsyncError:
    """Result of `Client.infer_async` for a request that could not be sent."""

    def __init__(self, result_error: dict[str, str]) -> None:
        self.result_error = result_error

    def result(self, timeout: float | None = None) -> Result:
        """Return {"error": text}."""
        return self.result_error


class Client(Caller):
    """Client of one method of a servable.

        with Client("127.0.0.1:5500", "tensor_add", "add_common") as client:
            print(client.infer({"x1": x1, "x2": x2}))

    Args:
        address: "ip:port" or "unix:path".
        servable_name: name of the servable.
        method_name: name of the method.
        version_number: version of the servable; 0 is the newest that runs.
        ssl_config: TLS files, for a server with TLS.
        timeout: max seconds of a call that has no timeout of its own; None: no limit.
        api_key: API key, for a server that requires one.

    `Client(ip, port, servable_name, method_name, version_number)` of version 1.1 works too. Raises
    RuntimeError for a wrong argument. Connects on first use; thread-safe.
    """

    def infer(self, instances: object, timeout: float | None = None) -> Result:
        """Send one instance, or a list or tuple of instances, and wait for the outputs.

        An instance is a dict {input: value} of numpy arrays and numbers, bool, int, float, str or
        bytes. Returns a list with a dict {output: value} per instance, or {"error": text} for a
        failed instance. If all failed, or without a reply, returns {"error": text}; the latter is
        printed, too. Raises RuntimeError for a value that cannot be sent.
        """
        return self.infer_with(instances, timeout)

    def infer_with(
        self, instances: object, timeout: float | None = None, metadata: Metadata = ()
    ) -> Result:
        """Send instances as `infer` does, with further metadata of the call."""
        try:
            return from_reply(self._send(self.stub.Predict, instances, timeout, metadata))
        except grpc.RpcError as error:
            return _report(error)

    def sequence(self, sequence_id: int | str | None = None) -> ClientSequence:
        """Begin a sequence of requests that share a state, for a method that has one.

            with client.sequence() as sequence:
                for chunk in chunks:
                    print(sequence.infer({"chunk": chunk}))

        The id is a random text by default.  Requests of a sequence run in order.
        """
        return ClientSequence(self, sequence_id)

    def infer_async(
        self, instances: object, timeout: float | None = None
    ) -> ClientGrpcAsyncResult | ClientGrpcAsyncError:
        """Send instances as `infer` does, without waiting; `result()` of the return value waits."""
        try:
            return ClientGrpcAsyncResult(self._send(self.stub.Predict.future, instances, timeout))
        except grpc.RpcError as error:
            return ClientGrpcAsyncError(_report(error))

    def infer_stream(
        self, instance: dict[str, Any], timeout: float | None = None
    ) -> Iterator[dict[str, Any]]:
        """Send one instance to a method that streams, and iterate over the chunks of its answer.

        Each chunk is a dict {output: value}, the last one {"error": text} if the request failed.
        Leaving the loop early cancels the request. A method that does not stream returns one chunk.
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
        """Close the connection; calls in flight fail."""
        self.channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _report(error: grpc.RpcError) -> dict[str, str]:
    """Print an error, as the original does, and return it as a result."""
    result = from_rpc_error(error)
    print(result["error"])
    return result


class AsyncClient(Caller):
    """Asyncio client with the arguments of `Client`.

        async with AsyncClient("127.0.0.1:5500", "tensor_add", "add_common") as client:
            print(await client.infer({"x1": x1, "x2": x2}))

    It is created and used within one event loop.
    """

    _library: ClassVar[Any] = grpc.aio

    async def infer(self, instances: object, timeout: float | None = None) -> Result:
        """Send instances as `Client.infer` does, without printing.

        Cancelling it cancels the request.
        """
        return await self.infer_with(instances, timeout)

    async def infer_with(
        self, instances: object, timeout: float | None = None, metadata: Metadata = ()
    ) -> Result:
        """Send instances as `infer` does, with further metadata of the call."""
        try:
            return from_reply(await self._send(self.stub.Predict, instances, timeout, metadata))
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)

    def sequence(self, sequence_id: int | str | None = None) -> AsyncClientSequence:
        """Begin a sequence as `Client.sequence` does, for `async with`."""
        return AsyncClientSequence(self, sequence_id)

    async def infer_stream(
        self, instance: dict[str, Any], timeout: float | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the chunks of an answer as `Client.infer_stream` does, without printing."""
        call = self._send(self.stub.PredictStream, instance, timeout)
        try:
            async for reply in call:
                yield to_piece(from_reply(reply))
        except grpc.aio.AioRpcError as error:
            yield from_rpc_error(error)
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection; calls in flight fail."""
        await self.channel.close(None)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
