"""The messages between the master and a front-end process: tagged frozen structs, by direction.

Two seams cross: `Inference.submit`, and the ASGI application of the master for all that only the
master can answer.  Requests, calls and connections have numbers of the process.
"""

from typing import TypeAlias

import msgspec

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.service import ServableReadiness
from mindspore_serving.core.signature import ServableSignature
from mindspore_serving.frontends.access import Entry
from mindspore_serving.frontends.keys import ApiKey
from mindspore_serving.ipc.messages import Fault, Payload
from mindspore_serving.process.vocabulary import Exit, Failed, Hello, Message, Ready
from mindspore_serving.server.front_ends import FrontEndOptions
from mindspore_serving.tls import Pem
from mindspore_serving.tracing.options import TraceOptions


class Freed(Message, frozen=True, tag=10):
    """What was sent at these offsets of the shared memory was read.  Both ways."""

    offsets: list[int]


# --- front end to master ----------------------------------------------------------------------


class Submit(Message, frozen=True, tag=11):
    """A `core.service.Request`; `body` by `wire.splitting.pack`."""

    id: int
    servable: str
    method: str
    version: int
    codec: str
    body: list[Payload]
    timeout: float | None
    is_stream: bool
    prefix: list[str | list[int]]
    request_id: str
    traceparent: str = ""
    tracestate: str = ""


class Abandon(Message, frozen=True, tag=12):
    """Nobody waits for the answer to a `Submit` or an `Ask` any more."""

    id: int


class Scope(msgspec.Struct, frozen=True):
    """The scope of an ASGI call."""

    http_version: str
    scheme: str
    server: tuple[str, int] | None
    client: tuple[str, int] | None
    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: list[tuple[bytes, bytes]]


class Ask(Message, frozen=True, tag=13):
    """A call of the master's application."""

    id: int
    scope: Scope
    request_id: str
    traceparent: str = ""
    tracestate: str = ""


class Given(Message, frozen=True, tag=14):
    """The answer to `Wanted`: a piece of the body, the last unless there is `more`; or the client
    `has_left`.
    """

    id: int
    body: Payload = b""
    more: bool = False
    has_left: bool = False


class Taken(Message, frozen=True, tag=15):
    """There is room for what follows a `Sent`."""

    id: int


class Closed(Message, frozen=True, tag=16):
    """A connection that the master has accepted has ended."""

    connection: int


class Synced(Message, frozen=True, tag=17):
    """The answer to a `State`, which is in force; and the responses since the last one, by protocol
    and code.
    """

    serial: int
    responses: list[tuple[str, int | str, int]]


class Refresh(Message, frozen=True, tag=18):
    """All front ends are to know what is served now."""

    id: int


# --- master to front end ----------------------------------------------------------------------


class Admission(msgspec.Struct, frozen=True):
    """What connections and requests are let in by: the API keys, and the certificate."""

    keys: list[ApiKey]
    pem: Pem | None


class ServeHttp(Message, frozen=True, tag=20):
    """Serve the connections that come, and answer `Ready` or `Failed`.  Limits of memory and
    connections are shared by `num_processes`.
    """

    options: FrontEndOptions
    admission: Admission
    traces: TraceOptions | None
    num_processes: int


class ServeGrpc(Message, frozen=True, tag=21):
    """As `ServeHttp`, at an address that others have too; `upstream` is the master's own server."""

    options: FrontEndOptions
    admission: Admission
    traces: TraceOptions | None
    num_processes: int
    upstream: str


class Admit(Message, frozen=True, tag=29):
    """The admission to a server from now on: the first that was asked for is 0."""

    server: int
    admission: Admission


class ControlAnswer(Message, frozen=True, tag=22):
    """A `core.service.Reply`."""

    id: int
    instances: list[Payload] = []
    faults: list[Fault | None] | None = None
    failure: Fault | None = None
    is_last: bool = True
    has_output: bool = True


class Wanted(Message, frozen=True, tag=23):
    """The application wants more of the body, or to know when the client leaves."""

    id: int


class Sent(Message, frozen=True, tag=24):
    """The application has sent the head of its answer, or with `status` 0 a piece of the body, the
    last unless there is `more`.  `route` is that of the head, as it was declared.
    """

    id: int
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: Payload = b""
    more: bool = False
    route: str = ""


class Over(Message, frozen=True, tag=25):
    """The application is done; `entry` is what it noted for the access log."""

    id: int
    has_failed: bool
    entry: Entry


class State(Message, frozen=True, tag=26):
    """What is served now: what a `core.service.Control` says of it."""

    serial: int
    is_ready: bool
    is_starting: bool
    readiness: list[ServableReadiness]
    language_models: list[tuple[str, int, ModelCard]]
    signatures: list[ServableSignature]  # of each version; the newest of a name first
    streams: list[tuple[str, int, str]]  # the methods that do
    log_level: str | None = None


class Refreshed(Message, frozen=True, tag=28):
    id: int


ToMaster: TypeAlias = (
    Hello
    | Ready
    | Failed
    | Freed
    | Submit
    | Abandon
    | Ask
    | Given
    | Taken
    | Closed
    | Synced
    | Refresh
)
ToFrontEnd: TypeAlias = (
    Freed
    | ServeHttp
    | ServeGrpc
    | Admit
    | ControlAnswer
    | Wanted
    | Sent
    | Over
    | State
    | Refreshed
    | Exit
)
