"""The client library: `Client` for scripts, `AsyncClient` for asyncio.  Needs no server parts."""

from mindspore_serving.client.aio import AsyncClient
from mindspore_serving.client.client import (
    Client,
    ClientGrpcAsyncError,
    ClientGrpcAsyncResult,
)
from mindspore_serving.client.tls import SSLConfig

__all__ = ["AsyncClient", "Client", "ClientGrpcAsyncError", "ClientGrpcAsyncResult", "SSLConfig"]
