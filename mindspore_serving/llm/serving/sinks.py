"""Delivery of events to the sinks of requests."""

from collections.abc import Callable, Iterable, MutableMapping
from typing import Protocol, TypeAlias, TypeVar

from mindspore_serving.core.llm_messages import Event, to_refused
from mindspore_serving.errors import ServingError

Sink: TypeAlias = Callable[[list[Event] | ServingError, bool], None]
"""Takes the events of a request, or its error, and whether they are the last."""

Outcome: TypeAlias = tuple[str, list[Event] | ServingError, bool]
"""The id of a request, and what its sink takes."""


class HasSink(Protocol):
    """A request that is open."""

    @property
    def sink(self) -> Sink:
        """Return what takes its events."""
        ...


R = TypeVar("R", bound=HasSink)


def deliver(outcomes: Iterable[Outcome], open_requests: MutableMapping[str, R]) -> None:
    """Pass outcomes to the sinks of requests that are open, and remove those that have ended."""
    for request_id, outcome, is_last in outcomes:
        entry = open_requests.get(request_id)
        if entry is None:
            continue  # it was cancelled
        if is_last:
            open_requests.pop(request_id, None)
        refused = to_refused(outcome) if isinstance(outcome, ServingError) else None
        entry.sink(outcome if refused is None else [refused], is_last)
