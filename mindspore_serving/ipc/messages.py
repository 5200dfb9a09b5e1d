"""What a worker and the master say beside `process.vocabulary`, grouped by direction.

Encoded with msgpack; nothing here can name a file, a function or a type to be loaded.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from mindspore_serving.core.deployment import GangOptions
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.signature import InstanceSignature
from mindspore_serving.errors import Code, ServingError, from_code, printable
from mindspore_serving.process.vocabulary import Exit, Failed, Hello, Leaving, Message, Ready
from mindspore_serving.tracing.options import TraceOptions


class Slice(Message, frozen=True, tag=1):
    """`length` bytes at `offset` of the sender's shared-memory arena."""

    offset: int
    length: int


Payload: TypeAlias = bytes | Slice


# --- what the messages are made of ------------------------------------------------------------


class RequestPart(Message, frozen=True):
    """A part of a request: instances still encoded by `codec`, one chunk each or one for all.

    `timeout` is the seconds left to answer, or None.  With `is_stream` a streaming method answers
    in several replies.  The part begins with instance `first` of the request, whose id in logs is
    `request_id`.  `traceparent` and `tracestate` say which span it belongs to, as W3C Trace Context
    writes it; "" if it is not traced.
    """

    id: int
    method: str
    codec: str
    chunks: list[Payload]
    timeout: float | None
    is_stream: bool = False
    first: int = 0
    request_id: str = ""
    traceparent: str = ""
    tracestate: str = ""


class Fault(Message, frozen=True):
    """Why an instance, or a whole part, has no answer: an `errors.Code`, its text, and in how many
    seconds it may be asked again.
    """

    code: int
    text: str
    retry_after: float | None = None

    def to_error(self) -> ServingError:
        return from_code(self.code, self.text, self.retry_after)


def to_fault(error: ServingError) -> Fault:
    text = printable(str(error)) or Code(error.code).name
    return Fault(error.code, text, getattr(error, "retry_after", None))


def to_faults(errors: Sequence[ServingError | None] | None) -> list[Fault | None] | None:
    if errors is None:
        return None
    return [None if error is None else to_fault(error) for error in errors]


class SpanReport(Message, frozen=True):
    """A span that ended in a worker, see `tracing.span.Span`: `code` is an `errors.Code`, `links`
    are written as traceparent is.
    """

    name: str
    id: int
    parent_id: int
    begin: int
    end: int
    attributes: dict[str, Any]
    code: int = 0
    links: list[str] = []


class PartReply(Message, frozen=True):
    """The answer to one `RequestPart`.

    Either `rejected` (the part is wrong as a whole), or one entry per instance in `instances`
    (empty bytes where it failed) and, if any failed, one in `faults`.  `is_last` is False while a
    streaming method has more to send, `has_output` if it has only accepted the request.  `spans`
    are those of a traced request.  `kept` are the offsets of chunks that stages have kept: they are
    freed by a later `Done`, the other chunks with the last reply.
    """

    id: int
    instances: list[Payload]
    faults: list[Fault | None] | None = None
    rejected: Fault | None = None
    is_last: bool = True
    has_output: bool = True
    spans: list[SpanReport] = []
    kept: list[int] = []


class MethodReport(Message, frozen=True):
    """A method that a worker can run, and what it knows of one instance's values.

    `batch_size` is the most instances one of its stages takes at once; `retry` whether it may be
    run again elsewhere if the worker dies.  A method that `streams` may have any number of requests
    in a worker at once: they do not wait for each other.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    batch_size: int
    retry: bool
    is_only_models: bool
    streams: bool = False
    signature: InstanceSignature = InstanceSignature()


class ModelReport(Message, frozen=True):
    """A loaded model: its batch size (0: any), and what an instance is for each of its graphs."""

    batch_size: int
    graphs: list[InstanceSignature]


class AgentPlace(Message, frozen=True):
    """Where a rank of a distributed servable runs: the address of its machine by the rank table,
    the device there, and the process.
    """

    rank: int
    node: str
    device: int
    pid: int


# --- master to worker -------------------------------------------------------------------------


class Setup(Message, frozen=True, tag=10):
    """The first message to a worker: what to load.  The key of encrypted models travels only
    here.
    """

    servable_directory: str
    servable_name: str
    version: int
    device_type: str
    device_id: int | None  # None: a Python-only worker beside those that own a device
    owns_models: bool
    dec_key: bytes | None
    dec_mode: str
    enable_lite: bool
    models: dict[str, ModelReport]  # what the device workers loaded, for one that does not
    llm_options: dict[str, Any] = {}  # of a language model without servable_config.py
    gang: GangOptions | None = None  # of a distributed servable
    allow_pickle: bool = False  # whether models may be pickles
    backend: str = ""  # of a model without servable_config.py
    name: str = ""  # what clients call the servable
    traces: TraceOptions | None = None  # where the spans of its own code are sent
    with_batch_dim: bool = True  # of a model without servable_config.py


class Work(Message, frozen=True, tag=11):
    """Instances to run, and what the worker sent that it may forget."""

    parts: list[RequestPart]
    freed: list[int] = []


class Cancel(Message, frozen=True, tag=12):
    """Nobody waits for these any more."""

    ids: list[int]


class CallReply(Message, frozen=True, tag=13):
    reply: PartReply


class AdapterSource(Message, frozen=True):
    """A LoRA adapter: its name, its directory, and how often it was loaded anew."""

    name: str
    path: str
    generation: int = 0


class SetAdapters(Message, frozen=True, tag=16):
    """The language model is to have these LoRA adapters, and no others."""

    serial: int
    adapters: list[AdapterSource]


class LogLevel(Message, frozen=True, tag=15):
    """Log from `level` on, see `log.set_level`."""

    level: str | None


# --- worker to master -------------------------------------------------------------------------


class WorkerReady(Ready, frozen=True, tag=20):
    """The servable is loaded and warm."""

    version: int
    methods: list[MethodReport]
    models: dict[str, ModelReport]
    card: ModelCard | None = None  # of its language model
    agents: list[AgentPlace] = []  # of a distributed servable


class Done(Message, frozen=True, tag=22):
    """Answers, and what the master sent that it may forget (a part's chunks go with its answer)."""

    replies: list[PartReply]
    freed: list[int] = []


class WorkerCall(Message, frozen=True, tag=23):
    """A worker calls a method of some servable: a model on another worker's device, say."""

    servable: str
    version: int
    part: RequestPart


class AdaptersSet(Message, frozen=True, tag=26):
    """The answer to a `SetAdapters`: why adapters could not be loaded, by name."""

    serial: int
    faults: dict[str, Fault]


class Numbers(Message, frozen=True, tag=25):
    """What the worker's language-model engine counts now: the fields of its `EngineStats`, answers
    by finish reason, and histograms by the names of their metrics: the sum, and the counts.
    `unready` says why it cannot compute now; "" if it can.
    """

    values: dict[str, int]
    answers: dict[str, int] = {}
    histograms: dict[str, tuple[float, list[int]]] = {}
    unready: str = ""


ToWorker: TypeAlias = Setup | Work | Cancel | CallReply | Exit | LogLevel | SetAdapters
ToMaster: TypeAlias = (
    Hello | WorkerReady | Failed | Done | WorkerCall | Leaving | Numbers | AdaptersSet
)
