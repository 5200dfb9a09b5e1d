"""The messages between the master and a front-end process: tagged frozen structs, by direction.

Two interfaces are forwarded: `Inference.submit`, and the ASGI application of the master for
requests that only the master can answer.  Ids of requests, calls and connections are unique per
front-end process; servers are numbered from 0 as they started.  An ASGI call:

    front end                    master
    AsgiCall                 ->
                             <-  BodyRequest, as often as the application receives
    BodyChunk                ->
                             <-  ResponseChunk (the first one has status and headers)
    ChunkAck, for each       ->
                             <-  AsgiCallEnd

A gRPC call is one too, whose chunks are whole messages: `has_left` is the end of the client's, and
the last `ResponseChunk` has its status and trailing metadata as headers.
"""

from typing import TypeAlias

import msgspec

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sequences import SequenceStep
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
    """Notice that the payloads at these offsets of the arena were read; in both directions."""

    offsets: list[int]


RPC = "rpc"  # the type of the scope of a gRPC call


# --- front end to master ----------------------------------------------------------------------


class Submit(Message, frozen=True, tag=11):
    """A `core.service.Request`, with the body packed by `wire.splitting.pack`."""

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
    sequence: SequenceStep | None = None
    tenant: str = ""
    priority: int = 0
    sticky: str = ""  # value of the header that the version is chosen by


class CancelRequest(Message, frozen=True, tag=12):
    """A command to cancel a `Submit` or an `AsgiCall`."""

    id: int


class Scope(msgspec.Struct, frozen=True):
    """The scope of an ASGI call of `type` "http" or RPC; the latter has a `timeout` in seconds.

    A client may go on with a WebSocket if there is `upgrade_memory` for its messages, in bytes.
    """

    http_version: str
    scheme: str
    server: tuple[str, int] | None
    client: tuple[str, int] | None
    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: list[tuple[bytes, bytes]]
    type: str = "http"
    timeout: float | None = None
    upgrade_memory: int = 0


class AsgiCall(Message, frozen=True, tag=13):
    """A call of the master's application of a server."""

    id: int
    server: int
    scope: Scope
    request_id: str
    traceparent: str = ""
    tracestate: str = ""


class BodyChunk(Message, frozen=True, tag=14):
    """The answer to `BodyRequest`: a chunk of the body, the last one unless `more`.

    `has_left` says that the client has disconnected instead, `stop` why the exchange is to end.
    """

    id: int
    body: Payload = b""
    more: bool = False
    stop: str = ""
    has_left: bool = False


class ChunkAck(Message, frozen=True, tag=15):
    """Acknowledgement that a `ResponseChunk` was sent; the master may send the next one."""

    id: int


class Closed(Message, frozen=True, tag=16):
    """A connection that the master has accepted has ended."""

    connection: int


class Synced(Message, frozen=True, tag=17):
    """The answer to a `ServedState`, which is in use now.

    `responses` are the numbers of responses since the last `Synced`, by protocol and code.
    """

    serial: int
    responses: list[tuple[str, int | str, int]]


# --- master to front end ----------------------------------------------------------------------


class Admission(msgspec.Struct, frozen=True):
    """The API keys and the certificate of a server."""

    keys: list[ApiKey]
    pem: Pem | None


class Serve(Message, frozen=True, tag=20):
    """A command to serve connections of HTTP and gRPC, or of gRPC alone.

    The answer is `Ready` or `Failed`.  `num_processes` front ends share the limits of memory.
    """

    options: FrontEndOptions
    admission: Admission
    traces: TraceOptions | None
    num_processes: int
    has_http: bool


class Admit(Message, frozen=True, tag=29):
    """New API keys and certificate of a server."""

    server: int
    admission: Admission


class ControlAnswer(Message, frozen=True, tag=22):
    """A `core.service.Reply` to a `Submit`."""

    id: int
    instances: list[Payload] = []
    faults: list[Fault | None] | None = None
    failure: Fault | None = None
    is_last: bool = True
    has_output: bool = True
    cache: str = ""
    version: int = 0


class BodyRequest(Message, frozen=True, tag=23):
    """A request for the next chunk of the body, or for the end of the client's connection."""

    id: int


class ResponseChunk(Message, frozen=True, tag=24):
    """The status and headers of a response, or with `status` 0 a chunk of its body.

    A chunk is the last one unless `more`.  `route` is the declared path of the route, with status
    and headers only.
    """

    id: int
    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: Payload = b""
    more: bool = False
    route: str = ""


class AsgiCallEnd(Message, frozen=True, tag=25):
    """The end of an ASGI call; `entry` is the application's entry for the access log."""

    id: int
    has_failed: bool
    entry: Entry


class ServedState(Message, frozen=True, tag=26):
    """The state of the servables, with the data for a `core.service.Control`."""

    serial: int
    is_ready: bool
    is_starting: bool
    readiness: list[ServableReadiness]
    language_models: list[tuple[str, int, ModelCard]]
    signatures: list[ServableSignature]  # of each version; the newest of a name first
    streams: list[tuple[str, int, str]]  # servable, version and name of streaming methods
    log_level: str | None = None
    trace_ratio: float | None = None  # that replaces the operator's


ToMaster: TypeAlias = (
    Hello
    | Ready
    | Failed
    | Freed
    | Submit
    | CancelRequest
    | AsgiCall
    | BodyChunk
    | ChunkAck
    | Closed
    | Synced
)
ToFrontEnd: TypeAlias = (
    Freed
    | Serve
    | Admit
    | ControlAnswer
    | BodyRequest
    | ResponseChunk
    | AsgiCallEnd
    | ServedState
    | Exit
)
