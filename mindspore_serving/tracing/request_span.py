"""Span of a request in a front end, from its first byte to the end of its answer."""

import time
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Protocol

from mindspore_serving.tracing.span import Attribute, Span, SpanContext, SpanRecorder


class RequestSpan:
    """Span that has started; call `end` once.  `attributes` can be extended until then."""

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
        """Set the kind of an error; `is_failed` if the server caused it."""
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
    """Source of spans of requests, and recorder of all that end."""

    def begin(
        self,
        name: str,
        headers: "Iterable[tuple[bytes, bytes]] | Iterable[tuple[str, str | bytes]]",
    ) -> RequestSpan:
        """Start the span of a request with `headers`, which may name its parent."""
        ...


current: ContextVar[RequestSpan | None] = ContextVar("request_span", default=None)
"""Span of the request that this task serves."""
