"""Client library: gRPC for scripts and asyncio, HTTP for language models.  No server parts."""

import os
from typing import TYPE_CHECKING, Any

# No log lines of gRPC itself, which reads this when it is imported: a result has the error.  It is
# the value of servers, as processes that this one starts inherit it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

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
