"""The service of gRPC's interoperation tests, and a server of it beside all other routes."""

import asyncio
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from mindspore_serving import tls
from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.frontends.access import ResponseCounter
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.grpc.calls import CallGate
from mindspore_serving.frontends.grpc.health import HealthService
from mindspore_serving.frontends.grpc.http2_server import GrpcMethods
from mindspore_serving.frontends.grpc.reflection import FILES
from mindspore_serving.frontends.http.app import make_app
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.server import HttpServer
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore import grpc as ms_grpc
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.proto import ms_service_pb2 as pb
from tests.e2e.authority import Authority
from tests.frontends.http_serving import Control, Inference, numbers

PROTO = Path(__file__).parent / "testing.proto"
SERVICE = "grpc.testing.TestService"
ECHOED, ECHOED_BIN = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
LARGEST = 1 << 20


@cache
def descriptors() -> bytes:
    """The descriptor set of PROTO, which clients without generated code read too."""
    with tempfile.TemporaryDirectory() as directory:
        out = f"{directory}/set"
        failed = protoc.main(["", f"-I{PROTO.parent}", f"--descriptor_set_out={out}", str(PROTO)])
        assert not failed
        return Path(out).read_bytes()


@cache
def pool():
    made = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        made.Add(file)
    return made


def kind(name):
    """The class of a message."""
    return GetMessageClass(pool().FindMessageTypeByName(f"grpc.testing.{name}"))


class TestService:
    """Methods as the descriptions of the interoperation tests demand them."""

    __test__ = False

    def __init__(self):
        self.num_calls = 0
        self.num_inputs = 0  # messages of StreamingInputCall
        self.num_cancelled = 0  # calls whose clients have left them

    async def empty_call(self, requests, context):
        await self._begin(context)
        return await context.read()

    async def unary_call(self, requests, context):
        await self._begin(context)
        request = await context.read()
        await self._abort_if_told(request, context)
        return self._response("SimpleResponse", request.response_size)

    async def streaming_input_call(self, requests, context):
        await self._begin(context)
        size = 0
        try:
            async for request in requests:
                size += len(request.payload.body)
                self.num_inputs += 1
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return kind("StreamingInputCallResponse")(aggregated_payload_size=size)

    async def full_duplex_call(self, requests, context):
        await self._begin(context)
        try:
            async for request in requests:
                await self._abort_if_told(request, context)
                for parameters in request.response_parameters:
                    await asyncio.sleep(parameters.interval_us / 1e6)
                    yield self._response("StreamingOutputCallResponse", parameters.size)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise

    async def _begin(self, context):
        self.num_calls += 1
        metadata = context.invocation_metadata()
        await context.send_initial_metadata([each for each in metadata if each[0] == ECHOED])
        context.set_trailing_metadata([each for each in metadata if each[0] == ECHOED_BIN])

    async def _abort_if_told(self, request, context):
        status = request.response_status
        if status.code:
            code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
            await context.abort(code, status.message)

    def _response(self, name, size):
        response = kind(name)()
        response.payload.body = bytes(size)
        return response

    def handler(self):
        """The handler of the service, to be added to a server."""

        def coders(request, response):
            return kind(request).FromString, kind(response).SerializeToString

        simple = coders("SimpleRequest", "SimpleResponse")
        output = coders("StreamingOutputCallRequest", "StreamingOutputCallResponse")
        streamed_in = coders("StreamingInputCallRequest", "StreamingInputCallResponse")
        unary, stream = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods = {
            "EmptyCall": unary(self.empty_call, *coders("Empty", "Empty")),
            "UnaryCall": unary(self.unary_call, *simple),
            "StreamingOutputCall": stream(self.full_duplex_call, *output),
            "StreamingInputCall": unary(self.streaming_input_call, *streamed_in),
            "FullDuplexCall": stream(self.full_duplex_call, *output),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)


@dataclass(frozen=True)
class Files:
    """TLS of a server without clients' certificates."""

    certificate: str
    private_key: str
    custom_ca: str | None = None
    verify_client: bool = False


def certificates_of(directory):
    """The path of an authority's certificate, and a server's certificates by it."""
    authority = Authority(directory, "authority")
    files = Files(*authority.issue("server"))
    return authority.ca, tls.Certificates(files, tls.read(files))


class Answering(Inference):
    """Answers every request with an instance, or keeps it for the test to answer."""

    def received(self, call):
        if not self.holds:
            is_json = call.request.codec == "ms_json"
            call.reply(Reply([b'{"y":1}' if is_json else pb.Instance().SerializeToString()]))


class Interop:
    """A running server: the service beside MSService, health, and the routes of HTTP."""

    def __init__(self, background, *, keys=(), origins=None, tls=None, largest=LARGEST, **limits):
        self.background, self.service = background, TestService()
        self.inference, self.responses = Answering(), ResponseCounter()
        bounds, known, control = ServerLimits(**limits), Keys(keys), Control()
        self.methods = background.run(self._make(bounds, known, control, largest))
        rest = MsRest(largest, False, bounds)
        app = make_app(self.inference, control, numbers, rest=rest, keys=known, origins=origins)
        path = FastPath(self.inference, rest, known, origins)
        where = Address("127.0.0.1:0", "127.0.0.1", 0)
        self.server = HttpServer(where, app, path, bounds, self.responses, calls=self.methods)
        background.run(self.server.start(tls))
        self.port = self.server.port
        self.address = f"127.0.0.1:{self.port}"

    async def _make(self, limits, keys, control, largest):
        gate = CallGate(keys, limits, largest)
        handlers = [
            self.service.handler(),
            ms_grpc.handler(self.inference, gate),
            HealthService(control, largest).handler(),
        ]
        files = [*FILES, pool().FindFileByName(PROTO.name)]
        return GrpcMethods(handlers, largest, [gate.close], files=files)

    def turn(self):
        """Let the server read what is there."""
        for _ in range(3):
            self.background.run(asyncio.sleep(0))

    @property
    def held(self):
        """Bytes of bodies that the server holds, as it counts them."""
        return self.server.shared.memory.used

    def close(self):
        self.background.run(self.server.stop(0.0))
