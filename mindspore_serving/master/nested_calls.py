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
from mindspore_serving.tracing.span import SERVABLE, VERSION

Caller: TypeAlias = tuple[PendingRequest, ServedMethod]
"""Request for which a call is made, and its method."""


Version: TypeAlias = tuple[object, ...]  # a servable and its version, whose methods share workers
Edge: TypeAlias = tuple[Version, Version, bool]  # caller, called, and whether the caller waits


@dataclass(frozen=True, slots=True)
class _Call:
    link: Link  # of the worker that made it
    callers: Sequence[Caller]
    target: Version
    waits: bool
    id: int


class NestedCalls:
    """Calls in flight, and the requests for which they are made."""

    def __init__(self) -> None:
        self._calls: dict[PendingRequest, _Call] = {}
        self._calls_of: dict[PendingRequest, dict[PendingRequest, None]] = {}  # by caller
        self._edges: dict[Edge, int] = {}  # with the number of calls
        self._num_waiting = 0  # of edges whose callers wait

    def __bool__(self) -> bool:
        return bool(self._calls)

    def begin(
        self,
        request: PendingRequest,
        method: ServedMethod,
        link: Link,
        callers: Sequence[Caller],
        *,
        waits: bool = False,
        call_id: int = 0,
    ) -> None:
        """Add the call `request` of `method`, made by the worker of `link`, which may wait for it.

        Raises StageFailed if one of the callers is the method itself, or was called by it, and if
        workers of two servables would wait for each other.
        """
        for caller in callers:
            if path := self._path(caller, method):
                names = " -> ".join(step.label for step in [*path, method])
                raise StageFailed(f"a method cannot call itself: {names}")
        target = _version_of(method)
        if waits or self._num_waiting:
            for _, its_method in callers:
                self._check_waits(_version_of(its_method), target, waits=waits)
        call = _Call(link, callers, target, waits, call_id)
        self._calls[request] = call
        for edge in _edges(call):
            self._edges[edge] = self._edges.get(edge, 0) + 1
            self._num_waiting += waits
        for waiting, _ in callers:
            self._calls_of.setdefault(waiting, {})[request] = None

    def _check_waits(self, source: Version, target: Version, *, waits: bool) -> None:
        """Raise StageFailed if `target` calls `source`, maybe over others, and one of them waits.

        A worker that waits runs nothing, so that two of them could wait for each other for ever.
        """
        if source == target:  # a model of the same servable, on another worker
            return
        todo, known = [(target, waits)], set()
        while todo:
            version, has_wait = todo.pop()
            if version == source and has_wait:
                raise StageFailed(
                    f"servable {source[0]} calls {target[0]} while {target[0]} waits for a call to "
                    f"{source[0]}, or the other way round: use add_stage in place of call, which "
                    "does not occupy a worker"
                )
            if (version, has_wait) not in known:
                known.add((version, has_wait))
                todo += [(to, has_wait or w) for start, to, w in self._edges if start == version]

    def end(self, request: PendingRequest) -> list[PendingRequest]:
        """Remove a request that has ended; return the calls that nobody waits for any more."""
        if (ended := self._calls.pop(request, None)) is not None:
            for edge in _edges(ended):
                self._num_waiting -= ended.waits
                self._edges[edge] -= 1
                if not self._edges[edge]:
                    del self._edges[edge]
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

    def made_by(self, link: Link, call_id: int | None = None) -> list[PendingRequest]:
        """Return the calls that a worker has made, or only that with an id."""
        return [
            request
            for request, call in self._calls.items()
            if call.link is link and call_id in (None, call.id)
        ]

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


def _version_of(method: ServedMethod) -> Version:
    return method.attributes[SERVABLE], method.attributes[VERSION]


def _edges(call: _Call) -> list[Edge]:
    """Return the servables that a call connects; none for models of the same servable."""
    sources = {_version_of(method) for _, method in call.callers} - {call.target}
    return [(source, call.target, call.waits) for source in sources]
