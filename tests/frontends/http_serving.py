"""A real HTTP server on a real socket over an inference that the test answers, and raw clients."""

import asyncio
import json
import socket

from mindspore_serving.core.server_limits import ServerLimits
from mindspore_serving.core.service import Reply
from mindspore_serving.frontends.address import Address
from mindspore_serving.frontends.http.app import make_app
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.server import HttpServer
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.metrics.exposition import Page
from tests.frontends.inference import FakeInference
from tests.waiting import PATIENCE

MAX_BODY = 1000
BODY = b'{"instances":[{"x":1}]}'


def post(body=BODY, path=b"/model/add:m", headers=(), version=b"1.1"):
    head = [
        b"POST %b HTTP/%b" % (path, version),
        b"Host: x",
        b"Content-Length: %d" % len(body),
        *headers,
    ]
    return b"\r\n".join([*head, b"", body])


GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def numbers() -> Page:
    """One metric."""
    page = Page()
    page.add("serving_requests_in_flight", 3)
    return page


class Inference(FakeInference):
    """Answers every request with its own body, or keeps it for the test to answer."""

    def __init__(self):
        super().__init__()
        self.holds = False

    @property
    def asked(self):
        return self.calls

    def received(self, call):
        if not self.holds:
            call.reply(Reply([bytes(call.request.body)]))

    def wait_for(self, count):
        """The last of `count` requests."""
        self.wait(lambda: len(self.calls) >= count)
        return self.calls[count - 1]

    def answer(self, asked, reply):
        asked.reply(reply)


class Control:
    is_ready = True
    is_starting = False

    def __init__(self):
        self.servables = []

    def readiness(self):
        return self.servables

    def observe(self):
        return [{"name": "add"}]

    def streams(self, servable, version, method):
        return False


class Web:
    """A running server and raw connections to it."""

    def __init__(
        self,
        background,
        *,
        use_status_codes=False,
        api_keys=(),
        routes=(),
        limits=None,
        max_body=MAX_BODY,
        origins=None,
        open_other=lambda *_: None,
        tls=None,
        responses=None,
    ):
        self.background = background
        rest = MsRest(max_body, use_status_codes, limits or ServerLimits())
        keys = Keys(api_keys)
        self.inference, self.control = Inference(), Control()
        app = make_app(
            self.inference,
            self.control,
            numbers,
            rest=rest,
            keys=keys,
            origins=origins,
            routes=routes,
        )
        address = Address("127.0.0.1:0", "127.0.0.1", 0)
        path = FastPath(self.inference, rest, keys, origins, open_other)
        self.server = HttpServer(address, app, path, limits, responses)
        background.run(self.server.start(tls))
        self.port = self.server.port
        self.clients = []

    def connect(self):
        self.clients.append(Client(self))
        return self.clients[-1]

    def turn(self):
        """Let the server read what is there."""
        for _ in range(3):
            self.background.run(asyncio.sleep(0))

    def sweep(self, *times):
        """Let the server look for late clients as if so many seconds had passed, in turn."""

        async def look():
            now = asyncio.get_running_loop().time()
            for seconds in times:
                self.server.end_late_connections(now + seconds)

        self.background.run(look())

    @property
    def held(self):
        """Bytes of bodies that the server holds, as it counts them."""
        return self.server.shared.memory.used

    def close(self):
        for client in self.clients:
            client.stream.close()
        self.background.run(self.server.stop(grace=0.0))
        self.turn()


class Client:
    """One connection; answers are parsed by hand."""

    def __init__(self, web):
        self.web = web
        self.stream = socket.create_connection(("127.0.0.1", web.port))
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream.settimeout(PATIENCE)
        self._rest = b""

    def send(self, *pieces):
        """Each piece in a packet of its own."""
        for piece in pieces:
            self.stream.sendall(piece)
            if len(pieces) > 1:
                self.web.turn()
        return self

    def flood(self, data, times):
        """Send `data` again and again, without reading."""
        for _ in range(times):
            self.stream.sendall(data)

    def _receive(self):
        data = self.stream.recv(1 << 16)
        assert data, f"the server closed the connection after {self._rest!r}"
        self._rest += data

    def read(self):
        """(status, headers, body) of the next answer."""
        while b"\r\n\r\n" not in self._rest:
            self._receive()
        head, self._rest = self._rest.split(b"\r\n\r\n", 1)
        line, *lines = head.decode().split("\r\n")
        headers = dict(field.lower().split(": ", 1) for field in lines)
        length = int(headers.get("content-length", 0))
        while len(self._rest) < length:
            self._receive()
        body, self._rest = self._rest[:length], self._rest[length:]
        return int(line.split()[1]), headers, body

    def read_bytes(self, count):
        """That many bytes, whatever they are."""
        while len(self._rest) < count:
            self._receive()
        read, self._rest = self._rest[:count], self._rest[count:]
        return read

    def read_json(self):
        """The body of the next answer, which has status 200 and says that it is JSON."""
        status, headers, body = self.read()
        assert (status, headers["content-type"]) == (200, "application/json")
        return json.loads(body)

    def is_closed(self):
        """Whether the server says no more."""
        assert not self._rest
        try:
            return self.stream.recv(1) == b""
        except ConnectionResetError:
            return True
