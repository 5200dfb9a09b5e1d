"""The HTTP server of a front-end process: what it answers itself, and what it passes on.

Its own are calls of methods with one answer, and the most frequent requests to language models.
They cross as `Inference.submit`.  All else is the master's, an unknown path, too.
"""

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
from mindspore_serving.frontends.http.head import RequestHead
from mindspore_serving.frontends.http.predict import FastPath
from mindspore_serving.frontends.http.server import HttpServer
from mindspore_serving.frontends.http.unrouted import Unrouted
from mindspore_serving.frontends.keys import Keys
from mindspore_serving.frontends.mindspore.rest import MsRest
from mindspore_serving.frontends.origins import OriginPolicy
from mindspore_serving.frontends.routes import bind, to_app
from mindspore_serving.frontends.v2.fast_infer import FastInfer, Infer
from mindspore_serving.frontends.v2.shared_memory import RemoteRegionError
from mindspore_serving.server.processes.messages import ServeHttp
from mindspore_serving.server.processes.parts import OwnKeys, Parts, share_of

OWN_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages"})


def make_http_server(parts: Parts, message: ServeHttp, keys: OwnKeys) -> HttpServer:
    """Not started yet."""
    options = message.options
    where = addresses.parse(options.address, "RESTful server", allow_unix=False)
    rest = MsRest(options.max_message, options.use_status_codes)
    origins = OriginPolicy(where.host, options.allowed_hosts, options.allow_origins)
    v2 = parts.v2(options)
    rows = (*anthropic.ROUTES, *openai.ROUTES)
    routes = bind([row for row in rows if row.path in OWN_PATHS], v2.state)
    own = guarded(to_app(routes, Unrouted(routes)), keys.keys, origins)
    app = Divided(own, Noting(parts.app, origins), keys)
    own_v2 = FastInfer(v2, partial(OwnInfer, parts.app))
    path = OwnPath(parts.inference, rest, keys.keys, origins, own_v2, own_keys=keys)
    limits = share_of(options, message.num_processes)
    pool = BodyPool(parts.take_memory)
    return HttpServer(where, app, path, limits, parts.responses, tracer=parts.tracer, pool=pool)


class OwnInfer(Infer):
    """A call of protocol v2, which the application `master` answers if it names shared memory."""

    __slots__ = ("_head", "_master")

    def __init__(
        self, master: ASGIApp, path: FastPath, head: RequestHead, output: ExchangeOutput
    ) -> None:
        Infer.__init__(self, path, head, output)
        self._master = master
        self._head = head

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, RemoteRegionError):
            self._pass_on(bytes(self._body))
        else:
            Infer._refuse(self, error)

    def _pass_on(self, body: bytes) -> None:
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
class OwnPath(FastPath):
    """The fast path for clients whose requests a front end answers."""

    own_keys: OwnKeys = OwnKeys(Keys(), is_open=True)

    def open(self, head: RequestHead, output: ExchangeOutput) -> Exchange | None:
        if not self.own_keys.accepts(head.fields):
            return None
        return FastPath.open(self, head, output)


class Noting:
    """The application `master`, which answers what `origins` do not know: afterwards they know the
    names by which clients rightly call the server.
    """

    def __init__(self, master: ASGIApp, origins: OriginPolicy) -> None:
        self._master = master
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Forbidden):  # the master says so
            self._origins.check(scope["method"], dict(scope["headers"]))
        await self._master(scope, receive, send)


class Divided:
    """The application `own` for its paths, and that of the `master` for others."""

    def __init__(self, own: ASGIApp, master: ASGIApp, keys: OwnKeys) -> None:
        self._own = own
        self._master = master
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_own = scope["path"] in OWN_PATHS and scope["method"] == "POST"
        if is_own and self._keys.accepts(dict(scope["headers"])):
            await self._own(scope, receive, send)
        else:
            await self._master(scope, receive, send)
