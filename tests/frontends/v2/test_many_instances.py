"""Answers of protocol v2 with many instances: others are answered while they are put together."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mindspore_serving.aio import on_thread_to_the_end
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.frontends.disconnect import while_connected
from mindspore_serving.frontends.v2.fast_infer import FastInfer
from mindspore_serving.frontends.v2.inference import V2
from mindspore_serving.frontends.v2.shared_memory import RemoteSharedMemory
from mindspore_serving.wire.v2 import outputs
from tests.frontends.http_serving import GET, Web, post
from tests.frontends.v2.test_own_infer import PATH, Models
from tests.waiting import PATIENCE, eventually

COUNT = outputs.MANY + 1
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [COUNT], "data": [1] * COUNT}]}
).encode()
REPLY = Reply([bytes(outputs.encode_json({"y": np.array(i)})) for i in range(COUNT)])


@pytest.fixture
def web(background: Any) -> Iterator[Web]:
    models: Any = Models()
    v2 = V2(None, models, RemoteSharedMemory(), ServerLimits())  # type: ignore[arg-type]
    made = Web(background, max_body=1 << 20, open_other=FastInfer(v2))
    made.inference.holds = True
    yield made
    made.close()


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Set when an answer is being put together, and to be set when that may go on."""
    begun, may_end = threading.Event(), threading.Event()
    join = outputs.join

    def slow_join(*arguments: Any, **options: Any) -> Any:
        begun.set()
        assert may_end.wait(PATIENCE)
        return join(*arguments, **options)

    monkeypatch.setattr(outputs, "join", slow_join)
    yield begun, may_end
    may_end.set()


def ask(web: Web) -> Any:
    """A client whose request has been answered by the worker."""
    client = web.connect().send(post(BODY, PATH))
    asked = web.inference.wait_for(1)
    web.inference.answer(asked, REPLY)
    return client


def test_another_client_is_answered_meanwhile(web: Web, joining: Any) -> None:
    begun, may_end = joining
    client = ask(web)
    assert begun.wait(PATIENCE)
    assert web.connect().send(GET).read()[0] == 200
    may_end.set()
    assert client.read_json()["outputs"][0]["data"] == list(range(COUNT))


def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(web: Web, joining: Any) -> None:
    begun, may_end = joining
    client = ask(web)
    assert begun.wait(PATIENCE)
    client.stream.close()
    web.turn()
    may_end.set()
    assert web.connect().send(GET).read()[0] == 200
    assert web.held == 0


def test_a_body_counts_after_a_disconnect_until_its_reader_ends(web: Web, joining: Any) -> None:
    begun, may_end = joining
    large = BODY + b" " * (1 << 19)
    client = web.connect().send(post(large, PATH))
    web.inference.answer(web.inference.wait_for(1), REPLY)
    assert begun.wait(PATIENCE)
    assert web.held == len(large)
    client.stream.close()
    eventually(lambda: not web.server.shared.connections)
    assert web.held == len(large)
    may_end.set()
    eventually(lambda: web.held == 0)


def test_a_body_read_on_a_thread_counts_until_the_reader_ends(background: Any) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def read(_: bytes) -> None:
        begun.set()
        assert may_end.wait(PATIENCE)

    async def answer(http: Request) -> Response:
        body = await http.body()
        await while_connected(http, on_thread_to_the_end("answers", read, body))
        return Response()

    routes = [Route("/read", answer, methods=["POST"])]
    web = Web(background, routes=routes, max_body=1 << 20)
    try:
        client = web.connect().send(post(b"x" * (1 << 19), b"/read"))
        assert begun.wait(PATIENCE)
        held = web.held
        assert held > 0
        client.stream.close()
        eventually(lambda: not web.server.shared.connections)
        assert web.held == held
        may_end.set()
        eventually(lambda: web.held == 0)
    finally:
        may_end.set()
        web.close()


def test_instances_that_cannot_be_joined_are_an_error(web: Web) -> None:
    client = web.connect().send(post(BODY, PATH))
    asked = web.inference.wait_for(1)
    wrong = bytes(outputs.encode_json({"z": np.array(1)}))
    web.inference.answer(asked, Reply([*REPLY.instances, wrong]))
    status, _, body = client.read()
    assert (status, b"outputs differ" in body) == (500, True)
