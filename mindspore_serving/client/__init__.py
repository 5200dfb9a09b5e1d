"""Client library: gRPC for scripts and asyncio, HTTP for language models.  No server parts."""

from typing import TYPE_CHECKING, Any

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
