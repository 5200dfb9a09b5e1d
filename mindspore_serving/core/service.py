"""Interface between front ends and the rest: submit a request, get its replies.

A front end knows `Inference` and nothing of workers. The body stays encoded: the front end names
its codec, the worker decodes, runs and encodes, and the instances of the reply are encoded for an
answer of the same protocol.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from mindspore_serving.core.model_card import ModelCard
from mindspore_serving.core.sequences import SequenceStep
from mindspore_serving.core.signature import ServableSignature
from mindspore_serving.errors import ServingError, Temporary
from mindspore_serving.tracing.request_span import RequestSpan

HIT, HIT_STORE, MISS = "hit", "hit-store", "miss"
tenant_of_task: ContextVar[str] = ContextVar("tenant", default="")
"""Tenant of the request that this task serves; "" without API keys."""
FindHeader: TypeAlias = Callable[[str], str]
"""Returns a header of a request by its name in lower case; "" if there is none."""
header_of_task: ContextVar[FindHeader | None] = ContextVar("header", default=None)
"""Headers of the request that this task serves."""


@dataclass(slots=True, eq=False)
class Request:
    """Request to a method with one or several instances.

    `body` is encoded by `codec` (see `wire.splitting`): bytes, or tensors that are views of them.
    `timeout` is in seconds, None for no limit. With `is_stream` a streaming method sends several
    replies, else one. `prefix` iterates over the prompt of a language model from its beginning,
    texts or token ids; it is read at most once, and only to choose a worker. `id` names the request
    in logs; "" for that of the task that submits it (`log.request_id`). `span` is the front end's,
    if the request is traced; None for that of the task.  One `is_background` may wait as long as
    it takes, and others do not wait for it, so admission control does not count it.  `tenant` has
    the API key of the request, "" for that of the task (`tenant_of_task`).  `sequence` is the
    sequence that it belongs to, which methods without a state ignore.  `priority` is a level of
    the method's queue, from 1, which is first; 0 is the default level.  `version` 0 is chosen by
    the servable's traffic rule, if it has one, which may read headers by `find_header`; None for
    those of the task.  One `is_shadow` is a copy of another: it counts in no limit and no metric.
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
    is_background: bool = False
    sequence: SequenceStep | None = None
    tenant: str = ""
    priority: int = 0
    find_header: FindHeader | None = None
    is_shadow: bool = False


@dataclass(slots=True)
class Reply:
    """Reply to a request: an encoded instance each, or an error.

    Views are of lent memory (`core.lending`), so they are dropped as soon as they are written.

    `faults` is None if every instance succeeded; `failure` is set if the whole request failed. A
    streaming method sends several replies, the last with `is_last`; one without `has_output` only
    tells that the request was accepted.  If the method has a cache of answers, `cache` is HIT, MISS
    or HIT_STORE, of the store that servers share.  `version` is that of the servable if a traffic
    rule has chosen it, else 0.
    """

    instances: Sequence[bytes | memoryview] = ()
    faults: Sequence[ServingError | None] | None = None
    failure: ServingError | None = None
    is_last: bool = True
    has_output: bool = True
    cache: str = ""
    version: int = 0

    def raise_failure(self) -> None:
        """Raise `failure`, and drop it.

        Its traceback refers to all objects of the caller, which would form a cycle with the reply
        and be freed by the garbage collector only.
        """
        failure, self.failure = self.failure, None
        assert failure is not None
        try:
            raise failure
        finally:
            del failure

    def failures(self) -> list[tuple[int, str] | None] | None:
        """Return `faults` as codes and texts, for the wire."""
        if self.faults is None:
            return None
        return [None if fault is None else (fault.code, str(fault)) for fault in self.faults]


class Call(Protocol):
    """Request in flight."""

    def cancel(self) -> None:
        """Cancel the request and drop it from queues.

        No reply follows. Harmless if it has been answered.
        """
        ...


class Inference(Protocol):
    """Interface of the server to front ends, used on the event loop's thread only."""

    @property
    def is_refusing(self) -> bool:
        """True if requests were refused recently: call `refusal` before a body is read."""
        ...

    def refusal(
        self, servable: str, version: int, method: str, timeout: float | None
    ) -> Temporary | None:
        """Return the error with which a request would be refused now, whatever its body.

        None if it would be accepted, or if that is not known here.
        """
        ...

    def submit(self, request: Request, on_reply: Callable[[Reply], None]) -> Call:
        """Start `request`; `on_reply` is called later on the event loop, once or more.

        Never raises for an error of the request: that is a reply too.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServableReadiness:
    """Readiness of a servable version for requests.

    `reason` tells clients why it is not ready; "" if it is. `loaded` is the loaded share of a
    version that starts for the first time; else None.
    """

    name: str
    version: int  # 0 until the newest version is known
    is_ready: bool
    reason: str = ""
    loaded: float | None = None


@dataclass(frozen=True, slots=True)
class MethodCounts:
    """Counts of the requests to a method.

    `last_ms` is when the last one was answered, in milliseconds since 1970, 0 if none was.
    `waited_ns` is the queue time of requests that were sent to a worker, `worker_ns` the time that
    successful requests spent in workers.  `hit_ns` and `miss_ns` are the times in which the cache
    of answers was searched, and of a miss also that in which the answer was stored.
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
    num_hits: int = 0
    hit_ns: int = 0
    num_misses: int = 0  # also of those that waited for the answer to an equal request
    miss_ns: int = 0
    num_joined: int = 0  # of the misses


class Control(Protocol):
    """State of the server for front ends."""

    def describe(self) -> list[dict[str, Any]]:
        """Return each servable version: name, version, methods, number of workers."""
        ...

    def observe(self) -> list[dict[str, Any]]:
        """Return `describe` with the load: requests, latencies, a language model's engine."""
        ...

    def history(self) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the numbers of `observe` over the last hour as JSON rows.

        It can be called on any thread, and takes some milliseconds.
        """
        ...

    def language_models(self) -> list[tuple[str, int, ModelCard]]:
        """Return (name, version, card) of language models, in the order of their start.

        Of each, the newest version that runs.
        """
        ...

    @property
    def has_language_models(self) -> bool:
        """True if there is a language model, even if it has no workers now."""
        ...

    def streams(self, servable: str, version: int, method: str) -> bool | None:
        """Return whether a method can stream its answer; None if there is no such method now."""
        ...

    def signature(self, servable: str, version: int = 0) -> ServableSignature | None:
        """Return inputs and outputs of the methods of a servable version (0: the newest).

        None if there is no such version.
        """
        ...

    def counts(self, servable: str, version: int, method: str) -> MethodCounts:
        """Return the counts of a method; zeros if there is no such method."""
        ...

    @property
    def is_ready(self) -> bool:
        """True if all deployments can be called.

        Servables that are added later count when they have been loaded.
        """
        ...

    @property
    def is_starting(self) -> bool:
        """True until the first deployments are loaded."""
        ...

    def readiness(self) -> Sequence[ServableReadiness]:
        """Return the readiness of each deployed servable version, also if it loads or has failed.

        All are unready while the server stops. The server is alive if this returns at all.
        """
        ...


Changes: TypeAlias = Mapping[str, Any]
"""Fields of a `core.deployment.Deployment` that replace those of the operator."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """State of a servable version; `reason` tells why it is not ready, "" if it is."""

    name: str
    version: int  # 0 until the newest version is known
    is_loaded: bool  # or is loading; else it was unloaded, or failed to load
    is_ready: bool
    reason: str = ""
    is_loading: bool = False


class AdapterControl(Protocol):
    """Loading and unloading of LoRA adapters while the server runs."""

    async def load(
        self, name: str, path: str, model: str = "", *, in_place: bool = False
    ) -> None:  # fmt: skip
        """Load the adapter in the directory `path` into all workers of a language model.

        `model` may be "" if there is one. With `in_place` an adapter of that name is replaced.
        Raises InvalidField with the name of an argument, InvalidInputs, Overloaded, NotFound, or
        Forbidden if the operator has not allowed it; then nothing has changed.
        """
        ...

    async def unload(self, name: str) -> None:
        """Refuse new requests to the adapter.  Raises NotFound or Forbidden."""
        ...


class ModelControl(Protocol):
    """Loading and unloading of models while the server runs.

    `is_allowed` tells that clients may load and unload them.
    """

    is_allowed: bool

    async def index(self) -> Sequence[ModelState]:
        """Return all models that are served or can be loaded by name."""
        ...

    async def load(
        self, name: str, *, is_forced: bool = False, changes: Changes | None = None
    ) -> None:
        """Serve the versions of `name` that exist now.

        Each is loaded again if it has changed or if `is_forced`, with `changes` until the next
        load. Raises NotFound, StartError, or Forbidden if the operator has not allowed it.
        """
        ...

    async def unload(self, name: str) -> None:
        """Stop serving `name`.  Raises NotFound or Forbidden."""
        ...
