"""The `Inference` before the cache of answers: it chooses versions, and sends copies to shadows.

A request without a version gets one by the traffic rule of its servable.  Some are also sent to
shadow versions, whose answers are compared with the first and dropped.  A copy is sent after the
first request, counts in no limit, and is skipped while requests of clients wait for its version.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from mindspore_serving import log
from mindspore_serving.aio import on_thread
from mindspore_serving.core.service import (
    Call,
    Reply,
    Request,
    header_of_task,
    tenant_of_task,
)
from mindspore_serving.core.traffic import KEY, TrafficRule
from mindspore_serving.errors import Overloaded, ServingError
from mindspore_serving.master.caching import CachingInference
from mindspore_serving.master.dispatcher import Dispatcher
from mindspore_serving.master.routes import TrafficRoute
from mindspore_serving.wire import comparing, splitting

MAX_COPIES = 8  # in flight, of a version
MAX_SIZE = 1 << 20  # bytes of a request that is copied, and of an answer that is compared
MAX_SECONDS = 30.0  # within which a copy must be answered

OnReply = Callable[[Reply], None]
Instances: TypeAlias = "list[bytes]"
Answer: TypeAlias = "Instances | ServingError | None"
"""Instances, or an error; None if there is no answer, or if it is too large to be compared."""


class TrafficInference:
    """The `core.service.Inference` of a master."""

    def __init__(self, inner: CachingInference, dispatcher: Dispatcher) -> None:
        self._inner = inner
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._loop = asyncio.get_running_loop()
        self._comparisons: set[asyncio.Task[None]] = set()

    @property
    def is_refusing(self) -> bool:
        return self._inner.is_refusing

    def refusal(
        self, servable: str, version: int, method: str, timeout: float | None
    ) -> Overloaded | None:
        """Implement `core.service.Inference.refusal`; None if the version is not chosen yet."""
        if not version and servable in self._registry.routes:
            return None
        return self._inner.refusal(servable, version, method, timeout)

    def submit(self, request: Request, on_reply: OnReply) -> Call:
        """Implement `core.service.Inference.submit`."""
        route = self._registry.routes.get(request.servable)
        if route is None or request.version:
            return self._inner.submit(request, on_reply)
        version = request.version = self._version_of(request, route.rule)
        if version:
            on_reply = partial(_note_version, version, on_reply)
        shadows = route.choose_shadows(version) if self._can_copy(request) else ()
        if not shadows:
            return self._inner.submit(request, on_reply)
        copies = ShadowedCall(on_reply)
        body = request.body
        copies.first = self._inner.submit(request, copies.on_first)
        packed = splitting.unchanging(request.codec, body)
        if packed is None or sum(map(len, packed)) > MAX_SIZE:
            for shadow in shadows:
                route.counts_of(shadow).skipped += 1
            return copies
        packed = [bytes(part) for part in packed]
        body = splitting.unpack(request.codec, packed)
        for shadow in shadows:
            copy = replace(request, version=shadow, body=body, is_shadow=True, is_background=True)
            self._loop.call_soon(self._send_copy, route, copy, copies)
        return copies

    def _version_of(self, request: Request, rule: TrafficRule) -> int:
        """Return the version of a request; that of its sequence, if that has begun."""
        step = request.sequence
        if step is not None:
            owner = request.tenant or tenant_of_task.get()
            for service in self._registry.with_sequences(request.servable):
                method = service.methods.get(request.method)
                if method is not None and method.has_sequence((owner, step.id)):
                    return service.version
        key = ""
        if rule.sticky == KEY:
            key = request.tenant or tenant_of_task.get()
        elif rule.header:
            find_header = request.find_header or header_of_task.get()
            key = find_header(rule.header) if find_header is not None else ""
        return self._registry.choose_version(request.servable, key)

    def _can_copy(self, request: Request) -> bool:
        """Return whether a request may run twice, and its answers can be compared."""
        if request.is_stream or request.is_background or request.sequence is not None:
            return False
        try:
            method = self._registry.find(request.servable, request.version, request.method)
        except ServingError:
            return False  # the dispatcher reports the error
        report = method.report
        is_plain = report.retry and not report.streams and report.state_bytes is None
        return is_plain and request.codec in comparing.CODECS

    def _send_copy(self, route: TrafficRoute, copy: Request, copies: "ShadowedCall") -> None:
        """Send `copy` to its version, unless that has other work or the client has left."""
        counts, version = route.counts_of(copy.version), copy.version
        service = self._registry.versions_of(route.name).get(version)
        method = service.methods.get(copy.method) if service is not None else None
        if method is not None and service is not None:
            copy.priority = service.deployment.priority_levels
        num_running = route.num_shadows.get(version, 0)
        is_busy = method is not None and method.num_waiting > 0
        if copies.has_left or num_running >= MAX_COPIES or is_busy:
            counts.skipped += 1
            return
        copy.timeout = min(copy.timeout or MAX_SECONDS, MAX_SECONDS)
        copy.find_header = None
        route.num_shadows[version] = num_running + 1

        def on_end(second: Answer) -> None:
            route.num_shadows[version] -= 1
            if copies.has_left or copies.instances is None or second is None:
                counts.skipped += 1
            elif isinstance(second, list):
                self._compare(route, version, copy.codec, (copies.instances, second))
            else:
                counts.failed += 1

        copies.add(lambda on_reply: self._dispatcher.submit(copy, on_reply), on_end)

    def _compare(
        self, route: TrafficRoute, version: int, codec: str, answers: tuple[Instances, Instances]
    ) -> None:
        async def compare() -> None:
            counts, tolerance = route.counts_of(version), route.rule.tolerance
            equal = comparing.are_equal
            try:
                is_equal = await on_thread("shadow", equal, codec, *answers, tolerance)
            except Exception:
                text = "%s: answers of version %d cannot be compared"
                log.error(text, route.name, version, exc_info=True)
                counts.failed += 1
            else:
                counts.equal += is_equal
                counts.different += not is_equal

        task = self._loop.create_task(compare())
        self._comparisons.add(task)
        task.add_done_callback(self._comparisons.discard)


class ShadowedCall:
    """Call of a front end, of which copies are sent to shadow versions.

    A copy ends when it and the first are answered, and at once if the first is cancelled.
    """

    first: Call

    def __init__(self, on_reply: OnReply) -> None:
        self._on_reply = on_reply
        self._is_answered = False
        self.has_left = False  # the client
        self.instances: list[bytes] | None = None  # of the first answer, if it is to be compared
        self._copies: dict[Call, Callable[[Answer], None]] = {}  # in flight
        self._answered: list[Callable[[], None]] = []  # copies that wait for the first answer

    def cancel(self) -> None:
        """Implement `core.service.Call.cancel`."""
        self.has_left = True
        self.first.cancel()
        self._end_copies()

    def on_first(self, reply: Reply) -> None:
        """Pass on the answer to the first, and keep its instances."""
        kept = _keep(reply)
        self.instances = kept if isinstance(kept, list) else None
        self._is_answered = True
        self._on_reply(reply)
        if self.instances is None:
            self._end_copies()
        answered, self._answered = self._answered, []
        for end in answered:
            end()

    def add(self, submit: Callable[[OnReply], Call], on_end: Callable[[Answer], None]) -> None:
        """Send a copy by `submit`; `on_end` gets its answer, once the first is answered too."""
        if self._is_answered and self.instances is None:
            on_end(None)
            return

        def on_reply(second: Reply) -> None:
            del self._copies[call]
            if self._is_answered:
                on_end(_keep(second))
            else:
                self._answered.append(partial(on_end, _keep(second)))

        call = submit(on_reply)
        self._copies[call] = on_end

    def _end_copies(self) -> None:
        copies, self._copies = self._copies, {}
        for call, on_end in copies.items():
            call.cancel()
            on_end(None)
        if self.has_left:
            answered, self._answered = self._answered, []
            for end in answered:
                end()


def _note_version(version: int, on_reply: OnReply, reply: Reply) -> None:
    reply.version = version
    on_reply(reply)


def _keep(reply: Reply) -> Answer:
    """Return a copy of the instances of a reply, which are lent, or its error."""
    if reply.failure is not None:
        return reply.failure.with_traceback(None)
    if error := next(filter(None, reply.faults or ()), None):
        return error
    if sum(map(len, reply.instances)) > MAX_SIZE:
        return None
    return [bytes(instance) for instance in reply.instances]
