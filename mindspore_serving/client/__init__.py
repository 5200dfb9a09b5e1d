"""Client library: gRPC for scripts and asyncio, HTTP for language models.  No server parts."""

import os
from typing import TYPE_CHECKING, Any

# gRPC's own log lines, which it reads this for when it is imported: a result has the error.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from mindspore_serving.client.caller import SSLConfig
from mindspore_serving.client.client import (
    AsyncClient,
    Client,
    ClientGrpcAsyncError,
    ClientGrpcAsyncResult,
)

if TYPE_CHECKING:
    from mindspore_serving.client.llm import MindsporeInferenceClient

__all__ = [
    "AsyncClient",
    "Client",
    "ClientGrpcAsyncError",
    "ClientGrpcAsyncResult",
    "MindsporeInferenceClient",
    "SSLConfig",
]


def __getattr__(name: str) -> Any:
    if name == "MindsporeInferenceClient":
        from mindspore_serving.client import llm

        return llm.MindsporeInferenceClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
