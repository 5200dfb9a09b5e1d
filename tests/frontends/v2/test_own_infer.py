"""Requests of protocol v2 in a front end whose clients may name shared memory, which is the
master's: it answers those, and no others."""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.core.signature import InstanceSignature
from mindspore_serving.frontends.v2.fast_infer import FastInfer
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.models import V2Model
from mindspore_serving.frontends.v2.shared_memory import RemoteSharedMemory
from mindspore_serving.server.processes.serving_http import LocalInfer
from mindspore_serving.wire.v2 import outputs
from tests.frontends.http_serving import Web, post

PATH = b"/v2/models/toy/infer"
REGION = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
IN_MEMORY = {**X, "parameters": REGION}
del IN_MEMORY["data"]
INPUT_IN_MEMORY = {"inputs": [IN_MEMORY]}
OUTPUT_IN_MEMORY = {"inputs": [X], "outputs": [{"name": "y", "parameters": REGION}]}


class Models:
    def find(self, name: str, version: int = 0) -> V2Model:
        return V2Model(name, name, 1, "predict", InstanceSignature((), ()), (1,))


async def master(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was asked, and its id."""
    request = Request(scope, receive)
    text = f"{request.url.path} {(await request.body()).decode()}"
    await PlainTextResponse(text)(scope, receive, send)


@pytest.fixture
def web(background: Any) -> Iterator[Web]:
    models: Any = Models()
    v2 = V2(None, models, RemoteSharedMemory(), ServerLimits())  # type: ignore[arg-type]
    made = Web(background, max_body=1 << 20, open_other=FastInfer(v2, partial(LocalInfer, master)))
    made.inference.holds = True
    yield made
    made.close()


def test_requests_without_regions_are_answered_by_the_front_end(web: Web) -> None:
    client = web.connect().send(post(json.dumps({"inputs": [X]}).encode(), PATH))
    instance = outputs.encode_json({"y": np.float32([3, 4])})
    web.inference.answer(web.inference.wait_for(1), Reply([bytes(instance)]))
    assert client.read_json()["outputs"][0]["data"] == [3, 4]


@pytest.mark.parametrize("padding", [0, 300_000])
@pytest.mark.parametrize("body", [INPUT_IN_MEMORY, OUTPUT_IN_MEMORY], ids=["input", "output"])
def test_requests_with_regions_are_answered_by_the_master(
    web: Web, body: dict[str, Any], padding: int
) -> None:
    text = json.dumps(body) + " " * padding
    client = web.connect()
    for name in (b"first", b"second"):
        asked = post(text.encode(), PATH, headers=[b"X-Request-Id: " + name])
        status, headers, answer = client.send(asked).read()
        assert (status, headers["x-request-id"]) == (200, name.decode())
        assert answer.decode() == f"{PATH.decode()} {text}"
    assert not web.inference.asked
    assert web.held == 0


def test_invalid_requests_are_refused_by_the_front_end(web: Web) -> None:
    status, _, answer = web.connect().send(post(b"{}", PATH)).read()
    assert (status, b"inputs" in answer) == (400, True)
