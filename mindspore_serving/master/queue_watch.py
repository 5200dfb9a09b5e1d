"""Refusal of requests that have been queued for over `max_queue_seconds`."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import cast

from mindspore_serving.errors import Overloaded
from mindspore_serving.master.link import Link
from mindspore_serving.master.registry import Method
from mindspore_serving.master.request import SENT, PendingRequest

CHECK_SECONDS = 0.05  # between two checks


class QueueWatch:
    """Checks of the queues of methods, over all `requests` in flight."""

    def __init__(self, requests: Mapping[PendingRequest, Method | None]) -> None:
        self._requests = requests
        self._loop = asyncio.get_running_loop()

    def begin(self, method: Method, now: float) -> None:
        """Check the queue of `method` until it has no requests that could be overdue."""
        method.is_watched = True
        self._loop.call_later(method.max_queue_seconds, self._check, method, now)

    def _check(self, method: Method, checked: float, late: Sequence[PendingRequest] = ()) -> None:
        """Refuse requests to `method` that have been queued for over `max_queue_seconds`.

        `late` are requests that seemed overdue at the last check, at time `checked`.  They are
        refused only if they still wait: a worker between two steps seems to run nothing for a
        moment.
        """
        now, limit = time.monotonic(), method.max_queue_seconds
        states = [(request, _is_waiting(request)) for request in late if not request.is_done]
        for request, is_waiting in states:
            if is_waiting:
                text = (
                    f"{method.label}: the request waited for over {limit:g} s (max_queue_seconds)"
                )
                request.fail(Overloaded(text, retry_after=limit))
        of_method = [request for request, other in self._requests.items() if other is method]
        due = [request for request in of_method if checked < request.started + limit <= now]
        late = [request for request, is_waiting in states if is_waiting is None]  # check again
        late += [request for request in due if _is_waiting(request) is not False]
        due_in = (request.started + limit - now for request in of_method)
        first = next((seconds for seconds in due_in if seconds > 0), 0.0)
        method.is_watched = bool(late or first)
        if method.is_watched:
            seconds = CHECK_SECONDS if late else max(CHECK_SECONDS, first)
            self._loop.call_later(seconds, self._check, method, now, late)


def _is_waiting(request: PendingRequest) -> bool | None:
    """Return whether no part of the request runs or has run; None if that is unknown now."""
    is_waiting: bool | None = True
    for part in request.parts:
        was_sent = part.state is SENT
        if part.has_replied or (was_sent and part.link is None):
            return False
        for running in cast("Link", part.link).running() if was_sent else ():
            if running.ids is None:
                is_waiting = None
            elif part.id in running.ids:
                return False
    return is_waiting
