"""Messages between master and worker, grouped by direction; beside those of `process.vocabulary`.

Encoded with msgpack.  No message can name a file, a function or a type to be loaded.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from mindspore_serving.core.deployment import GangOptions
from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.network import NetworkCode
from mindspore_serving.core.placement import LinkSettings, RankPlacement
from mindspore_serving.core.sequences import ControlInput
from mindspore_serving.core.signature import InstanceSignature
from mindspore_serving.core.upstream_report import UpstreamReport
from mindspore_serving.errors import Code, ServingError, from_code, printable
from mindspore_serving.process.vocabulary import Exit, Failed, Hello, Leaving, Message, Ready
from mindspore_serving.tracing.options import TraceOptions


class Slice(Message, frozen=True, tag=1):
    """`length` bytes at `offset` of the sender's shared-memory arena."""

    offset: int
    length: int


Payload: TypeAlias = bytes | Slice


# --- what the messages are made of ------------------------------------------------------------
# --- parts of messages ------------------------------------------------------------------------


class RequestPart(Message, frozen=True):
    """Part of a request: instances encoded by `codec`, in one chunk each or one chunk for all.

    `timeout` is the number of seconds left to answer, or None.  With `is_stream` a streaming method
    answers in several replies.  `first` is the index of the part's first instance in the request,
    whose id in logs is `request_id`.  `traceparent` and `tracestate` are those of the parent span,
    in the form of W3C Trace Context; "" if the request is not traced.
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
    sequence: "SequencePart | None" = None


class SequencePart(Message, frozen=True):
    """Sequence of a part of a request, whose `number` the master has chosen.

    A start begins with the initial state, and an end drops the state afterwards.  With `is_kept`
    the reply has the new state; `state` is one of another worker, with which this one continues.
    `id` is that of the client, which models may get as an input.
    """

    number: int
    is_start: bool = False
    is_end: bool = False
    is_kept: bool = False
    state: bytes | None = None
    id: int | str = 0


class Fault(Message, frozen=True):
    """Error of an instance or of a whole part: an `errors.Code` and its text.

    `retry_after` is the number of seconds after which a client can retry.
    """

    code: int
    text: str
    retry_after: float | None = None

    def to_error(self) -> ServingError:
        return from_code(self.code, self.text, self.retry_after)


def to_fault(error: ServingError) -> Fault:
    """Convert an error to the message that carries it."""
    text = printable(str(error)) or Code(error.code).name
    return Fault(error.code, text, getattr(error, "retry_after", None))


def to_faults(errors: Sequence[ServingError | None] | None) -> list[Fault | None] | None:
    """Convert the errors of a part's instances, where None stands for no error."""
    if errors is None:
        return None
    return [None if error is None else to_fault(error) for error in errors]


class SpanReport(Message, frozen=True):
    """Span that ended in a worker, see `tracing.span.Span`.

    `code` is an `errors.Code`; `links` have the form of traceparent.
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
    """Reply to one `RequestPart`.

    Either `rejected` (no instance of the part was run) is set, or `instances` has an entry for each
    instance (empty bytes if it failed) and `faults` one each if any failed.  `is_last` is False
    while a streaming method has more to send; `has_output` is False if the request has only been
    accepted. `spans` are those of a traced request.  `kept` are the offsets of chunks that stages
    still hold: a later `Done` frees them, the last reply frees the other chunks.  `state` is the
    new state of its sequence, if it is to be kept.
    """

    id: int
    instances: list[Payload]
    faults: list[Fault | None] | None = None
    rejected: Fault | None = None
    is_last: bool = True
    has_output: bool = True
    spans: list[SpanReport] = []
    kept: list[int] = []
    state: Payload | None = None


class MethodReport(Message, frozen=True):
    """Method that a worker can run, and the signature of one instance.

    `batch_size` is the largest number of instances that one of its stages runs at once.  `retry`
    says whether a part can be run again elsewhere if the worker dies.  A worker can have any number
    of requests of a method that `streams`: they do not wait for each other.  Those of a method that
    `calls` other servables wait for them.  `cache` says whether its answers may be cached; None if
    they may where a part may be run again.  `state_bytes` is the size of the states of a sequence,
    None without any; a request of a method that `needs_sequence` has to be in one.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    batch_size: int
    retry: bool
    is_only_models: bool
    streams: bool = False
    calls: bool = False
    signature: InstanceSignature = InstanceSignature()
    cache: bool | None = None
    state_bytes: int | None = None
    needs_sequence: bool = False


class StateReport(Message, frozen=True):
    """State of a model: an input, the output that is its next value, and its first value.

    `initial` are the bytes of an array of the input's dtype and shape; empty for zeros.
    """

    input: str
    output: str
    initial: bytes = b""


class ModelReport(Message, frozen=True):
    """Loaded model: its batch size (0 for any), and the signature of an instance for each graph.

    `states` are those of the first graph.  If they are inside the model (`is_inside`), requests
    without a sequence run it, too, each with the initial state.  `controls` are inputs of the first
    graph that the server fills.
    """

    batch_size: int
    graphs: list[InstanceSignature]
    states: list[StateReport] = []
    is_inside: bool = False
    controls: tuple[ControlInput, ...] = ()


class AgentAddress(Message, frozen=True):
    """Location of one rank of a distributed servable.

    The address of its machine in the rank table, the device there, and the process id.
    """

    rank: int
    node: str
    device: int
    pid: int


# --- master to worker -------------------------------------------------------------------------


class Setup(Message, frozen=True, tag=10):
    """First message to a worker: the servable to load.

    The key of encrypted models is in no other message.
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
    with_batch_dim: bool | None = None  # of a model without servable_config.py
    batch_axis: dict[str, int] = {}  # of one, too
    network: NetworkCode | None = None  # of a Python file that the operator named
    cores: str = ""  # sets of cores, see `core.core_sets`
    number: int = 0  # of the worker in its servable, from 0
    states: dict[str, str] = {}  # of a model without servable_config.py
    run_options: dict[str, Any] = {}  # of its models' runtime, in place of those declared
    placement: RankPlacement | None = None  # of ranks on several machines
    role: str = ""  # of the worker, see `core.roles`
    link: LinkSettings | None = None  # of a worker with a role, if machines may have joined


class Work(Message, frozen=True, tag=11):
    """Parts to run, and offsets of the worker's arena that the master has finished reading."""

    parts: list[RequestPart]
    freed: list[int] = []


class Cancel(Message, frozen=True, tag=12):
    """Parts whose results are no longer needed."""

    ids: list[int]


class EndSequences(Message, frozen=True, tag=18):
    """Sequences of a method that have ended, whose states are to be dropped."""

    method: str
    numbers: list[int]


class CallReply(Message, frozen=True, tag=13):
    """Reply to a `WorkerCall`, one of several if it is a stream.

    `failed_at` has for each instance the step of a chain that its fault is of.
    """

    reply: PartReply
    failed_at: list[int] = []


class AdapterSource(Message, frozen=True):
    """LoRA adapter: its name, its directory, and how often it was reloaded."""

    name: str
    path: str
    generation: int = 0


class SetAdapters(Message, frozen=True, tag=16):
    """Complete set of LoRA adapters that the language model is to have."""

    serial: int
    adapters: list[AdapterSource]


class ShareMemory(Message, frozen=True, tag=17):
    """Number of workers on this machine whose caches share the memory; sent when it changes."""

    count: int


class LogLevel(Message, frozen=True, tag=15):
    """Level from which on the worker logs, see `log.set_level`."""

    level: str | None


# --- worker to master -------------------------------------------------------------------------


class WorkerReady(Ready, frozen=True, tag=20):
    """Report that the servable is loaded and warm."""

    version: int
    methods: list[MethodReport]
    models: dict[str, ModelReport]
    card: ModelCard | None = None  # of its language model
    agents: list[AgentAddress] = []  # of a distributed servable


class Done(Message, frozen=True, tag=22):
    """Replies and offsets of the master's arena that the worker has finished reading.

    A part's chunks are freed by its reply.
    """

    replies: list[PartReply]
    freed: list[int] = []


class CallStep(Message, frozen=True):
    """Call of a chain, whose values are numbered: those of the caller, then the steps' outputs."""

    servable: str
    version: int
    method: str
    inputs: list[int]
    num_outputs: int


class WorkerCall(Message, frozen=True, tag=23):
    """Call of a worker to a method of any servable, such as a model on another worker's device.

    `parents` are the ids of the parts for which it is made: it has their deadline, and ends when
    all of their requests have ended.  With `part.is_stream` it gets several replies.  If it
    `waits`, the worker runs nothing else until the reply comes.  With `steps` it is a chain: the
    master calls one after the other, the first of which the other fields name, and replies with the
    values `returns`.
    """

    servable: str
    version: int
    part: RequestPart
    parents: list[int] = []
    waits: bool = False
    steps: list[CallStep] = []
    returns: list[int] = []


class DropCall(Message, frozen=True, tag=27):
    """Call of this worker whose further replies it does not need."""

    id: int


class AdaptersSet(Message, frozen=True, tag=26):
    """Reply to `SetAdapters`: the errors of adapters that could not be loaded, by name."""

    serial: int
    faults: dict[str, Fault]


class EngineMetrics(Message, frozen=True, tag=25):
    """Current metrics of the worker's language-model engine.

    `values` are the fields of its `EngineStats`, `answers` counts answers by finish reason, and
    `histograms` has the sum and the bucket counts by names of metrics.  `unready` says why the
    engine cannot compute now; "" if it can.  `decision` says which of its runtimes computes which
    steps; "" if there is only one.  `upstreams` are those of a model of other servers.
    """

    values: dict[str, int]
    answers: dict[str, int] = {}
    histograms: dict[str, tuple[float, list[int]]] = {}
    unready: str = ""
    decision: str = ""
    upstreams: tuple[UpstreamReport, ...] = ()


ToWorker: TypeAlias = (
    Setup | Work | Cancel | CallReply | Exit | LogLevel | SetAdapters | ShareMemory | EndSequences
)
ToMaster: TypeAlias = (
    Hello
    | WorkerReady
    | Failed
    | Done
    | WorkerCall
    | DropCall
    | Leaving
    | EngineMetrics
    | AdaptersSet
)
