"""The seam between front ends and everything else: submit a request, get its replies.

A front end knows `Inference` and nothing of workers.  The request stays encoded: the front end
says which codec its body is in, the worker decodes, runs and encodes, and the reply's instances
come back ready to be put into an answer of the same protocol.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.signature import ServableSignature
from mindspore_serving.errors import ServingError, Temporary
from mindspore_serving.tracing.request_span import RequestSpan


@dataclass(slots=True, eq=False)
class Request:
    """One call of a method with one or several instances.

    `body` is encoded by `codec` (see `wire.splitting`): bytes, or tensors that were found in them.
    `timeout` is in seconds, None for no limit.  With `is_stream` a streaming method replies piece
    by piece, else once.  `prefix` is the prompt of a language model from its beginning, texts or
    token ids: read at most once, and only where it matters which worker has seen what.  `id` names
    it in logs; "" for that of the task that submits it (`log.request_id`).  `span` is that of the
    front end, if the request is traced; None for that of the task.
    """

    servable: str
    method: str
    version: int
    codec: str
    body: Any
    timeout: float | None = None
    is_stream: bool = False
    prefix: Iterable[str | Sequence[int]] = ()
    id: str = ""
    span: RequestSpan | None = None


@dataclass(slots=True)
class Reply:
    """An answer: one encoded instance each, or why there is none.  Views are of memory that is lent
    (`core.lending`): whoever has them lets go of them once they are written.

    `faults` is None if every instance is well; `failure` is set if the request failed as a whole.
    A streaming method sends several, the last with `is_last`; one without `has_output` only says
    that the request was accepted.
    """

    instances: Sequence[bytes | memoryview] = ()
    faults: Sequence[ServingError | None] | None = None
    failure: ServingError | None = None
    is_last: bool = True
    has_output: bool = True

    def raise_failure(self) -> None:
        """Raise `failure`, and let go of it: its traceback will refer to all that the caller holds,
        which together with the reply would be freed by the garbage collector only.
        """
        failure, self.failure = self.failure, None
        assert failure is not None
        try:
            raise failure
        finally:
            del failure

    def failures(self) -> list[tuple[int, str] | None] | None:
        """`faults` as codes and texts, for the wire."""
        if self.faults is None:
            return None
        return [None if fault is None else (fault.code, str(fault)) for fault in self.faults]


class Call(Protocol):
    """A request under way."""

    def cancel(self) -> None:
        """Nobody waits any more: drop what is queued.  No reply follows; harmless if answered."""
        ...


class Inference(Protocol):
    """All that a front end may know about serving.  Used on the event loop's thread only.

    `is_refusing` if requests were refused of late for want of room: then ask for the `refusal` of a
    request before it is read.
    """

    is_refusing: bool

    def refusal(
        self, servable: str, version: int, method: str, timeout: float | None
    ) -> Temporary | None:
        """Why a request would be refused now, whatever its body; None if it would be taken, or if
        that is not known here.
        """
        ...

    def submit(self, request: Request, on_reply: Callable[[Reply], None]) -> Call:
        """Start `request`; `on_reply` is called later on the event loop, once or more.

        Never raises for anything about the request: refusals are replies too.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServableReadiness:
    """Whether a servable version takes requests now.  `reason` says why not, for clients to read;
    "" if it is ready.  `loaded` is the share that is loaded, of one that is started for the first
    time; None of others.
    """

    name: str
    version: int  # 0 while the newest is not known yet
    is_ready: bool
    reason: str = ""
    loaded: float | None = None


@dataclass(frozen=True, slots=True)
class MethodCounts:
    """What became of the requests to a method.  `last_ms` is when the last was answered, in
    milliseconds since 1970, 0 if none was.  `waited_ns` is how long those that a worker got waited
    for it, and `worker_ns` how long those that succeeded were with their workers.
    """

    num_succeeded: int = 0
    succeeded_ns: int = 0
    num_failed: int = 0
    failed_ns: int = 0
    num_instances: int = 0  # of those that succeeded
    last_ms: int = 0
    num_waited: int = 0
    waited_ns: int = 0
    worker_ns: int = 0


class Control(Protocol):
    """What front ends show of the server as a whole."""

    def describe(self) -> list[dict[str, Any]]:
        """Each servable version: name, version, methods, number of workers."""
        ...

    def observe(self) -> list[dict[str, Any]]:
        """As `describe`, and how busy each is: requests, latencies, a language model's engine."""
        ...

    def history(self) -> Callable[[], dict[str, Any]]:
        """Gives, on any thread and in some milliseconds, the numbers of `observe` over the last
        hour, for JSON: rows of each servable version.
        """
        ...

    def language_models(self) -> list[tuple[str, int, ModelCard]]:
        """The servables that are language models: name, version, card; the newest version that
        runs of each, in the order of their start.
        """
        ...

    @property
    def has_language_models(self) -> bool:
        """Whether there is a language model, also one whose workers are gone for now."""
        ...

    def streams(self, servable: str, version: int, method: str) -> bool | None:
        """Whether a method can answer in pieces; None if there is no such method now."""
        ...

    def signature(self, servable: str, version: int = 0) -> ServableSignature | None:
        """What the methods of a servable version (0: the newest) take and give; None if there is no
        such version.
        """
        ...

    def counts(self, servable: str, version: int, method: str) -> MethodCounts:
        """Of a method; zeros if there is no such one."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether everything that was deployed can be called.  What is loaded beside it later
        counts when it has been loaded.
        """
        ...

    @property
    def is_starting(self) -> bool:
        """Whether what is to be served first is not all loaded, or nothing was deployed yet."""
        ...

    def readiness(self) -> Sequence[ServableReadiness]:
        """Each servable version that was deployed, also one that is loading or has failed; all are
        unready while the server stops.  The server is alive if this is answered at all.
        """
        ...


Changes: TypeAlias = Mapping[str, Any]
"""Fields of a `core.deployment.Deployment`, in place of what the operator gave."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """A servable version that can be served.  `reason` says why it is not, "" if it is ready."""

    name: str
    version: int  # 0 while the newest is not known yet
    is_loaded: bool  # or loads now; else it was unloaded, or could not be loaded
    is_ready: bool
    reason: str = ""
    is_loading: bool = False


class AdapterControl(Protocol):
    """LoRA adapters that come and go while the server runs."""

    async def load(
        self, name: str, path: str, model: str = "", *, in_place: bool = False
    ) -> None:  # fmt: skip
        """Have all workers of the language model `model` ("" if there is one) load the adapter in
        the directory `path`; one of that name is replaced if `in_place`.  Raises InvalidField with
        the name of an argument, InvalidInputs, Overloaded, NotFound, or Forbidden if the operator
        has not allowed it; then nothing has changed.
        """
        ...

    async def unload(self, name: str) -> None:
        """Refuse new requests to it.  Raises NotFound or Forbidden."""
        ...


class ModelControl(Protocol):
    """Models that come and go while the server runs.  `is_allowed` if clients may load and unload
    them.
    """

    is_allowed: bool

    async def index(self) -> Sequence[ModelState]:
        """All that is served or can be loaded by name."""
        ...

    async def load(
        self, name: str, *, is_forced: bool = False, changes: Changes | None = None
    ) -> None:
        """Serve the versions of `name` that there are now, each anew if it has changed or if
        `is_forced`, with `changes` until it is loaded again.  Raises NotFound, StartError, or
        Forbidden if the operator has not allowed it.
        """
        ...

    async def unload(self, name: str) -> None:
        """Serve `name` no more.  Raises NotFound or Forbidden."""
        ...
