"""The span of a request in a front end, from its first byte to the end of its answer."""

import time
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Protocol

from mindspore_serving.tracing.span import Attribute, Span, SpanContext, SpanRecorder


class RequestSpan:
    """A span that has begun; `end` it once.  `attributes` may be added to until then."""

    __slots__ = (
        "_begin",
        "_error",
        "has_failed",
        "_parent_id",
        "attributes",
        "context",
        "name",
        "recorder",
    )

    def __init__(
        self,
        recorder: SpanRecorder,
        name: str,
        context: SpanContext,
        parent_id: int,
    ) -> None:
        self.recorder = recorder
        self.name = name
        self.context = context
        self.attributes: dict[str, Attribute] = {}
        self._parent_id = parent_id
        self._error = ""
        self.has_failed = False
        self._begin = time.time_ns()

    def fail(self, error: str, *, is_failed: bool) -> None:
        """An error of the kind `error`; `is_failed` if the server is to blame."""
        self._error = error
        self.has_failed = is_failed

    def end(self) -> None:
        if self.context.is_sampled:
            self.recorder.record(
                Span(
                    self.name,
                    self.context,
                    self._parent_id,
                    self._begin,
                    time.time_ns(),
                    self.attributes,
                    self._error,
                    self.has_failed,
                    is_server=True,
                )
            )


class Tracer(SpanRecorder, Protocol):
    """Begins the spans of requests, and takes all that end."""

    def begin(
        self,
        name: str,
        headers: "Iterable[tuple[bytes, bytes]] | Iterable[tuple[str, str | bytes]]",
    ) -> RequestSpan:
        """The span of a request that came with `headers`, which may name its parent."""
        ...


current: ContextVar[RequestSpan | None] = ContextVar("request_span", default=None)
"""Of the request that this task serves."""
