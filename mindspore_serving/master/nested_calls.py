"""Calls that workers make while they run requests, and what ends them.

It sends nothing and has no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mindspore_serving.errors import StageFailed
from mindspore_serving.master.link import Link
from mindspore_serving.master.method import ServedMethod
from mindspore_serving.master.request import PendingRequest

Caller: TypeAlias = tuple[PendingRequest, ServedMethod]
"""Request for which a call is made, and its method."""


@dataclass(frozen=True, slots=True)
class _Call:
    link: Link  # of the worker that made it
    callers: Sequence[Caller]


class NestedCalls:
    """Calls in flight, and the requests for which they are made."""

    def __init__(self) -> None:
        self._calls: dict[PendingRequest, _Call] = {}
        self._calls_of: dict[PendingRequest, dict[PendingRequest, None]] = {}  # by caller

    def __bool__(self) -> bool:
        return bool(self._calls)

    def begin(
        self, request: PendingRequest, method: ServedMethod, link: Link, callers: Sequence[Caller]
    ) -> None:
        """Add the call `request` of `method`, made by the worker of `link`.

        Raises StageFailed if one of the callers is the method itself, or was called by it.
        """
        for caller in callers:
            if path := self._path(caller, method):
                names = " -> ".join(step.label for step in [*path, method])
                raise StageFailed(f"a method cannot call itself: {names}")
        self._calls[request] = _Call(link, callers)
        for waiting, _ in callers:
            self._calls_of.setdefault(waiting, {})[request] = None

    def end(self, request: PendingRequest) -> list[PendingRequest]:
        """Remove a request that has ended; return the calls that nobody waits for any more."""
        if (ended := self._calls.pop(request, None)) is not None:
            for caller, _ in ended.callers:
                calls = self._calls_of.get(caller)
                if calls is not None:
                    calls.pop(request, None)
                    if not calls:
                        del self._calls_of[caller]
        calls = self._calls_of.pop(request, {})
        return [
            call for call in calls if all(caller.is_done for caller, _ in self._calls[call].callers)
        ]

    def made_by(self, link: Link) -> list[PendingRequest]:
        """Return the calls that a worker has made."""
        return [request for request, call in self._calls.items() if call.link is link]

    def _path(self, caller: Caller, method: ServedMethod) -> list[ServedMethod]:
        """Return the methods from `method` to that of `caller`; none if it is not called by it."""
        request, its_method = caller
        if its_method is method:
            return [method]
        call = self._calls.get(request)
        for above in () if call is None else call.callers:
            if path := self._path(above, method):
                return [*path, its_method]
        return []
