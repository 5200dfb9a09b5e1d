"""The HTTP server of a front-end process: it answers frequent requests and forwards the rest.

It answers inference calls with one reply, and the most frequent requests to language models, by
`Inference.submit`.  All other requests are forwarded to the master, also those of unknown paths.
"""

from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from mindspore_serving.errors import Forbidden
from mindspore_serving.frontends import address as addresses
from mindspore_serving.frontends import anthropic, openai
from mindspore_serving.frontends.http.app import guarded
from mindspore_serving.frontends.http.asgi import Application
from mindspore_serving.frontends.http.body_pool import BodyPool
from mindspore_serving.frontends.http.exchange import Exchange, ExchangeOutput
from mindspore_serving.frontends.http.head import UPGRADE, RequestHead
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.server import HttpServer
from mindspore_serving.frontends.http.unrouted import Unrouted
from mindspore_serving.frontends.keys import Keys, fields_of
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.frontends.openai.realtime import REALTIME
from mindspore_serving.frontends.origins import OriginPolicy
from mindspore_serving.frontends.routes import bind, to_app
from mindspore_serving.frontends.v2.fast_infer import FastInfer, Infer
from mindspore_serving.frontends.v2.shared_memory import RemoteRegionError
from mindspore_serving.server.processes.messages import Serve
from mindspore_serving.server.processes.resources import FrontEndResources, LocalKeys, share_of
from mindspore_serving.server.processes.serving_grpc import make_front_end_methods

LOCAL_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", REALTIME}
)


def make_http_server(
    resources: FrontEndResources, message: Serve, keys: LocalKeys, server: int
) -> HttpServer:
    """Create the HTTP server `server`, without starting it."""
    options = message.options
    where = addresses.parse(options.address, "RESTful server", allow_unix=False)
    rest = MsRest(options.max_message, options.use_status_codes)
    origins = OriginPolicy(where.host, options.allowed_hosts, options.allow_origins)
    v2, master = resources.v2(options), resources.master.app(server)
    rows = (*anthropic.ROUTES, *openai.ROUTES)
    # Only the master has connections to MCP servers.
    paths = LOCAL_PATHS - {"/v1/messages"} if options.mcp_config else LOCAL_PATHS
    routes = bind([row for row in rows if row.path in paths], v2.state)
    local = guarded(to_app(routes, Unrouted(routes)), keys.keys, origins)
    app = PathRouter(local, HostRecorder(master, origins), keys, paths)
    fast_v2 = FastInfer(v2, partial(LocalInfer, master))
    path = LocalFastPath(resources.inference, rest, keys.keys, origins, fast_v2, local_keys=keys)
    limits = share_of(options, message.num_processes)
    pool, tracer = BodyPool(resources.take_memory), resources.tracer
    calls = make_front_end_methods(resources, message, keys, server)
    responses = resources.responses
    return HttpServer(where, app, path, limits, responses, tracer=tracer, pool=pool, calls=calls)


class LocalInfer(Infer):
    """A call of protocol v2, forwarded to the application `master` if it uses shared memory."""

    __slots__ = ("_head", "_master")

    def __init__(
        self, master: ASGIApp, path: FastPath, head: RequestHead, output: ExchangeOutput
    ) -> None:
        Infer.__init__(self, path, head, output)
        self._master = master
        self._head = head

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, RemoteRegionError):
            self._forward(bytes(self._body))
        else:
            Infer._refuse(self, error)

    def _forward(self, body: bytes) -> None:
        other = Application(self._master, self._head, self.output)
        other.request_id, other.keep_alive = self.request_id, self.keep_alive
        other.entry, other.span = self.entry, self.span
        self._is_over = True
        self._release()
        self.output.replace(self, other)
        other.start()
        other.feed(body)
        other.end()


@dataclass(frozen=True, slots=True)
class LocalFastPath(FastPath):
    """The fast path for requests that a front end answers itself."""

    local_keys: LocalKeys = LocalKeys(Keys(), is_open=True)

    def open(self, head: RequestHead, output: ExchangeOutput) -> Exchange | None:
        if not self.local_keys.accepts(head.fields):
            return None
        return FastPath.open(self, head, output)


class HostRecorder:
    """An ASGI application that checks a request against `origins`, then calls `master`.

    By the check `origins` learns the host names of valid requests; the master refuses others.
    """

    def __init__(self, master: ASGIApp, origins: OriginPolicy) -> None:
        self._master = master
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Forbidden):  # the master refuses it
            self._origins.check(scope["method"], dict(scope["headers"]))
        await self._master(scope, receive, send)


class PathRouter:
    """An ASGI application that calls `local` for some `paths`, and `master` for others."""

    def __init__(
        self, local: ASGIApp, master: ASGIApp, keys: LocalKeys, paths: Container[str]
    ) -> None:
        self._local = local
        self._master = master
        self._keys = keys
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_call = scope["method"] == "POST" or UPGRADE in scope.get("extensions", ())
        is_local = scope["path"] in self._paths and is_call
        if is_local and self._keys.accepts(fields_of(scope)):
            await self._local(scope, receive, send)
        else:
            await self._master(scope, receive, send)
