"""Health over HTTP and by gRPC's standard service: of the server and of each servable."""

import json
from collections.abc import Iterator
from contextlib import closing

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from mindspore_serving.core.service import ServableReadiness
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.health import HealthService
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods, Http2GrpcServer
from tests.frontends.http_serving import Control, Web
from tests.frontends.raw_grpc import RawGrpc
from tests.ports import free_port
from tests.waiting import PATIENCE

ModelReady = ServableReadiness("add", 1, True)
DEAD = ServableReadiness("chat", 2, False, "its workers are being started")
OLD = ServableReadiness("chat", 1, True)
KEY = "a-key-that-is-long-enough"
MEGABYTE = 1 << 20


def get(web: Web, path: str):
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"
    return web.connect().send(request.encode()).read()


# --- HTTP ---------------------------------------------------------------------------------------


def test_a_server_is_alive_without_ready_servables(web):
    web.control.servables, web.control.is_ready = [DEAD], False
    assert get(web, "/livez")[0] == 200


def test_a_server_is_ready_if_all_its_servables_are(web):
    web.control.servables = [ModelReady, OLD]
    status, _, body = get(web, "/readyz")
    assert status == 200
    assert json.loads(body) == {
        "ready": True,
        "servables": [
            {"name": "add", "version": 1, "ready": True, "reason": ""},
            {"name": "chat", "version": 1, "ready": True, "reason": ""},
        ],
    }


def test_a_server_that_is_not_ready_says_which_servable_and_why(web):
    web.control.servables, web.control.is_ready = [ModelReady, DEAD], False
    status, headers, body = get(web, "/readyz")
    assert (status, headers["retry-after"]) == (503, "1")
    found = json.loads(body)
    assert not found["ready"]
    assert [one["reason"] for one in found["servables"]] == ["", "its workers are being started"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("servable=add", 200),
        ("servable=chat", 503),
        ("servable=add&servable=chat", 503),
        ("servable=nothing", 404),
        ("servable=", 404),
    ],
)
def test_servables_are_asked_for_by_name(web, query, status):
    web.control.servables, web.control.is_ready = [ModelReady, OLD, DEAD], False
    assert get(web, f"/readyz?{query}")[0] == status


@pytest.mark.parametrize(("path", "status"), [("add", 200), ("chat", 503), ("nothing", 404)])
def test_each_servable_has_a_path_of_its_own(web, path, status):
    web.control.servables, web.control.is_ready = [ModelReady, OLD, DEAD], False
    assert get(web, f"/readyz/{path}")[0] == status


def test_a_loading_server_reports_its_progress(web):
    loading = ServableReadiness("chat", 0, False, "still loading, 20 %", 0.2)
    web.control.servables, web.control.is_ready = [ModelReady, loading], False
    web.control.is_starting = True
    status, headers, body = get(web, "/health")
    assert (status, headers["retry-after"]) == (503, "1")
    assert body == b"not ready: the server is still loading, 60 %"
    status, headers, body = get(web, "/readyz/chat")
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body)["servables"][0]["reason"] == "still loading, 20 %"


def test_a_server_without_servables_is_not_ready(web):
    web.control.servables, web.control.is_ready, web.control.is_starting = [], False, True
    assert get(web, "/health")[::2] == (503, b"not ready")


def test_a_server_whose_workers_have_ended_is_not_loading(web):
    web.control.servables, web.control.is_ready = [ModelReady, DEAD], False
    assert get(web, "/health")[2] == b"not ready"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/readyz/add", "/readyz?servable=add"])
def test_health_needs_no_key(background, path):
    with closing(Web(background, api_keys=[KEY])) as web:
        web.control.servables = [ModelReady]
        assert get(web, path)[0] == 200
        assert get(web, "/health")[0] == 200


# --- gRPC ---------------------------------------------------------------------------------------


class Asking:
    """A server with the health service alone, and a client of it."""

    def __init__(self, background) -> None:
        self.background = background
        self.control = Control()
        self.port = free_port()
        address = Address(f"127.0.0.1:{self.port}", "127.0.0.1", self.port)
        self.service = background.run(self._make())
        methods = GrpcMethods([self.service.handler()], MEGABYTE, [self.service.close])
        self.server = Http2GrpcServer(address, methods)
        background.run(self.server.start(None))
        self.channel = grpc.insecure_channel(address.text)
        self.stub = health_pb2_grpc.HealthStub(self.channel)

    async def _make(self) -> HealthService:
        return HealthService(self.control, MEGABYTE)

    def check(self, service: str = "") -> str:
        reply = self.stub.Check(pb.HealthCheckRequest(service=service), timeout=PATIENCE)
        return pb.HealthCheckResponse.ServingStatus.Name(reply.status)

    def watch(self, service: str) -> Iterator[str]:
        for reply in self.stub.Watch(pb.HealthCheckRequest(service=service), timeout=PATIENCE):
            yield pb.HealthCheckResponse.ServingStatus.Name(reply.status)

    def close(self) -> None:
        self.channel.close()
        self.background.run(self.server.stop(0))


@pytest.fixture
def asking(background):
    made = Asking(background)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["", "mindspore.serving.proto.MSService"])
def test_the_server_serves_while_all_its_servables_do(asking, name):
    assert asking.check(name) == "SERVING"
    asking.control.is_ready = False
    assert asking.check(name) == "NOT_SERVING"


def test_a_servable_serves_while_all_its_versions_do(asking):
    asking.control.servables = [ModelReady, OLD]
    assert (asking.check("add"), asking.check("chat")) == ("SERVING", "SERVING")
    asking.control.servables = [ModelReady, OLD, DEAD]
    assert (asking.check("add"), asking.check("chat")) == ("SERVING", "NOT_SERVING")


def test_a_servable_that_does_not_exist_is_not_found(asking):
    with pytest.raises(grpc.RpcError) as refused:
        asking.check("nothing")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_who_watches_is_told_of_changes_and_of_the_end(asking):
    asking.control.servables = [ModelReady]
    seen = asking.watch("add")
    assert next(seen) == "SERVING"
    asking.control.servables = [ServableReadiness("add", 1, False, "its worker died")]
    assert next(seen) == "NOT_SERVING"
    asking.control.servables = [ModelReady]
    assert next(seen) == "SERVING"
    asking.background.run(asking.server.stop(5))
    assert list(seen) == ["NOT_SERVING"]


def test_watch_of_an_unknown_servable_reports_its_deployment(asking):
    seen = asking.watch("add")
    assert next(seen) == "SERVICE_UNKNOWN"
    asking.control.servables = [ModelReady]
    assert next(seen) == "SERVING"


def test_a_request_that_is_none_is_refused(asking):
    method = asking.channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError) as refused:
        method(b"\xff\xff", timeout=PATIENCE)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_many_slow_health_checks_keep_no_other_client_out(asking):
    client = RawGrpc(asking.port)
    with client.stream:
        for _ in range(64):
            client.begin(client.call("/grpc.health.v1.Health/Check"), MEGABYTE)
        for _ in range(8):
            assert asking.check() == "SERVING"
