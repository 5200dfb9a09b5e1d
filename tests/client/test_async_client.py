import asyncio
import threading

import grpc
import numpy as np
import pytest

from mindspore_serving.client import AsyncClient, SSLConfig
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.waiting import PATIENCE, until


async def test_infer_is_awaited(address):
    async with AsyncClient(address, "add", "add_cast") as client:
        first, second = await asyncio.gather(client.infer({"x": "a"}), client.infer({"x": 1}))
    assert first == [{"x": "a"}]
    np.testing.assert_array_equal(second[0]["x"], np.array([1]))


async def test_the_old_way_to_name_the_server(start):
    async with AsyncClient("127.0.0.1", start(), "add", "add_cast") as client:
        assert await client.infer({"x": "a"}) == [{"x": "a"}]


async def test_a_transport_failure_is_returned_and_not_printed(tmp_path, capsys):
    async with AsyncClient(f"unix:{tmp_path}/nobody", "add", "add_cast") as client:
        result = await client.infer({"x": 1})
    assert "Grpc Error, (14, 'unavailable'), " in result["error"]
    assert capsys.readouterr().out == ""


async def test_a_deadline_and_a_cancellation(address, service):
    go = threading.Event()
    left = threading.Event()

    def answer(request, context):
        context.add_callback(left.set)
        go.wait(PATIENCE)
        return pb.PredictReply()

    service.answer = answer
    try:
        async with AsyncClient(address, "add", "add_cast", timeout=0.05) as client:
            assert "(4, 'deadline exceeded')" in (await client.infer({"x": 1}))["error"]
            left.clear()
            call = asyncio.ensure_future(client.infer({"second": 1}, timeout=PATIENCE))
            await until(lambda: any("second" in one.instances[0].items for one in service.requests))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(left.wait, PATIENCE)
    finally:
        go.set()


async def test_tls(start, certificates):
    key, chain = ((certificates / f"server.{end}").read_bytes() for end in ("key", "crt"))
    port = start(grpc.ssl_server_credentials([(key, chain)]))
    config = SSLConfig(custom_ca=str(certificates / "ca.crt"))
    async with AsyncClient(f"127.0.0.1:{port}", "add", "add_cast", ssl_config=config) as client:
        assert await client.infer({"x": "a"}) == [{"x": "a"}]
