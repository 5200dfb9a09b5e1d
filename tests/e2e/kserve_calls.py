"""Calls a server with kserve's clients, by v1, v2 and gRPC: URL of HTTP, address of gRPC, model.

Runs in an environment of its own, see scripts/kserve-client.
"""

import asyncio
import sys
from typing import Any

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)

X = np.array([[1, 2], [3, 4]], np.float32)


def request(model: str, *, is_binary: bool) -> Any:
    given = InferInput("x", list(X.shape), "FP32")
    given.set_data_from_numpy(X, binary_data=is_binary)
    return InferRequest(model, [given])


async def by_v1(url: str, model: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v1", timeout=60))
    assert await client.is_model_ready(url, model)
    found = await client.infer(url, {"instances": [{"x": [1, 2]}]}, model_name=model)
    assert found == {"predictions": [[2, 4]]}, found
    await client.close()


async def by_v2(url: str, model: str) -> None:
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, model)
    for is_binary in (False, True):
        found = await client.infer(url, request(model, is_binary=is_binary), model_name=model)
        np.testing.assert_array_equal(found.outputs[0].as_numpy(), 2 * X)
    await client.close()


async def by_grpc(address: str, model: str) -> None:
    client = InferenceGRPCClient(address, timeout=60)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready(model)
    found = await client.infer(request(model, is_binary=True))
    np.testing.assert_array_equal(found.outputs[0].as_numpy(), 2 * X)
    await client.close()


async def main(url: str, address: str, model: str) -> None:
    await by_v1(url, model)
    await by_v2(url, model)
    await by_grpc(address, model)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
