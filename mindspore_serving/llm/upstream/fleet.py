"""Upstreams of one model: their connections, health checks and discovery.

`balancing` decides; one upstream that is fixed is always chosen, whatever its state.
"""

import asyncio
import ssl
from collections.abc import Callable, Collection
from time import monotonic

from mindspore_serving import log
from mindspore_serving.core.upstream_report import UpstreamReport
from mindspore_serving.errors import (
    InvalidInputs,
    Overloaded,
    ServableUnavailable,
    ServingError,
    UpstreamLate,
)
from mindspore_serving.llm.upstream.balancing import (
    Balancer,
    Demand,
    FleetMember,
    Ticket,
    unready_reason,
)
from mindspore_serving.llm.upstream.circuit import CircuitBreaker
from mindspore_serving.llm.upstream.connection import Server
from mindspore_serving.llm.upstream.discovery import discover
from mindspore_serving.llm.upstream.exchange import list_models
from mindspore_serving.llm.upstream.options import UpstreamOptions, make_context, read_key
from mindspore_serving.llm.upstream.targets import UpstreamTarget

MAX_SILENT = 2  # health checks in a row without an answer, after which an upstream is unready
_REPORT_SECONDS = 0.1  # after which a request is in the report
_BUSY_SECONDS = 1.0  # without Retry-After
_NOT_PROBED = "the upstream was not probed yet"
_MAX_LISTED = 8  # names in an error


class Upstream:
    """Upstream: its server, its model and the state by which it is chosen."""

    def __init__(
        self, target: UpstreamTarget, server: Server, model: str, member: FleetMember
    ) -> None:
        self.target, self.server, self.member = target, server, member
        self.configured = self.model = model  # the second is "" until the server has listed it
        self.length = 0  # of its context, in tokens; 0 while unknown
        self.num_silent = 0  # health checks in a row without an answer
        self.waiting: set[Callable[[str], None]] = set()  # called when it is lost
        self.task: asyncio.Task[None] | None = None


class Fleet:
    """The upstreams of a model, used on one event loop; `changed` is called after each change.

    `reports` are their states and counters, replaced as a whole, so any thread can read them.
    """

    def __init__(self, options: UpstreamOptions, changed: Callable[[], None]) -> None:
        self._options, self._changed = options, changed
        self._context: ssl.SSLContext | None = None
        self._balancer = Balancer(options.slow_start)
        self._upstreams: dict[str, Upstream] = {}
        self._sources: dict[UpstreamTarget, list[UpstreamTarget]] = {}
        self._faults: dict[UpstreamTarget, str] = {}  # of sources
        self._fixed = [target for target in options.targets if not target.is_source]
        self._reporting: asyncio.TimerHandle | None = None
        self.reports: list[UpstreamReport] = []
        self.is_fleet = options.is_fleet
        for target in self._fixed:
            self._add(target, is_new=False)

    @property
    def length(self) -> int:
        """Context length of all upstreams, 0 while unknown."""
        lengths = (upstream.length for upstream in list(self._upstreams.values()))
        return min((length for length in lengths if length), default=0)

    @property
    def summary(self) -> str:
        """Text about the model and where it is."""
        upstreams = list(self._upstreams.values())
        model = next((upstream.model for upstream in upstreams if upstream.model), "a model")
        if self.is_fleet:
            return f"{model} of {', '.join(target.url for target in self._options.targets)}"
        return f"{model} of {upstreams[0].server.origin}"

    @property
    def unready(self) -> str:
        """Reason why no requests can be sent, "" if they can."""
        if not self._upstreams:
            return "; ".join(self._faults.values()) or "no upstream is known"
        return unready_reason(self._balancer.members.values())

    def _report(self) -> None:
        """Take the state of all upstreams for `reports`."""
        now = monotonic()
        self.reports = [
            UpstreamReport(
                member.name,
                self._balancer.state(member, now),
                member.weight,
                member.num_open,
                member.outstanding,
                member.num_requests,
                member.num_errors,
            )
            for member in self._balancer.members.values()
        ]
        self._reporting = None
        self._changed()

    async def watch(self, probed: Callable[[], None]) -> None:
        """Probe and discover until cancelled; `probed` is called after the first round."""
        try:
            await self._discover_all(is_first=True)
            await asyncio.gather(*(self._probe(each) for each in self._upstreams.values()))
            self._report()
            probed()
            for upstream in list(self._upstreams.values()):
                upstream.task = asyncio.ensure_future(self._watch_health(upstream))
            while True:
                await asyncio.sleep(self._options.discovery_interval)
                await self._discover_all()
        finally:
            for upstream in self._upstreams.values():
                if upstream.task is not None:
                    upstream.task.cancel()

    # --- requests -----------------------------------------------------------------------------

    def choose(self, demand: Demand, tried: Collection[str]) -> Upstream:
        """Return the upstream for a request.  Raises ServingError if there is none."""
        if not self.is_fleet:
            (upstream,) = self._upstreams.values()
            if not upstream.model:
                raise ServableUnavailable(upstream.member.problem)
            return upstream
        member = self._balancer.choose(demand, monotonic(), tried)
        if member is None:
            raise self._balancer.refusal(monotonic())
        return self._upstreams[member.name]

    def has_other(self, demand: Demand, tried: Collection[str]) -> bool:
        """Return whether a request can be sent to an upstream that is not in `tried`."""
        member = self._balancer.choose(demand, monotonic(), tried) if self.is_fleet else None
        return member is not None and member.name not in tried

    def begin(self, upstream: Upstream, demand: Demand) -> Ticket:
        """Record that a request is sent."""
        self._report_soon()
        return self._balancer.begin(upstream.member, demand, monotonic())

    def succeed(self, ticket: Ticket) -> None:
        """Record that an answer has begun."""
        self._balancer.succeed(ticket, monotonic())

    def fail(self, upstream: Upstream, ticket: Ticket, error: ServingError) -> None:
        """Record that a request has failed, and how."""
        if isinstance(error, InvalidInputs):  # the client's mistake
            self.succeed(ticket)
            return
        ticket.member.num_errors += 1
        if isinstance(error, ServableUnavailable):
            self._set_problem(upstream, str(error))
        elif isinstance(error, Overloaded):
            ticket.member.rest(error.retry_after or _BUSY_SECONDS, monotonic())
        else:
            self._balancer.fail(ticket, monotonic())

    def end(self, ticket: Ticket) -> None:
        """Record that a request has ended."""
        self._report_soon()
        self._balancer.end(ticket)
        if ticket.member.is_leaving and not ticket.member.num_open:
            self._remove(ticket.member.name)

    # --- health -------------------------------------------------------------------------------

    async def _watch_health(self, upstream: Upstream) -> None:
        """Probe an upstream every `health_interval` seconds until the end."""
        while True:
            await asyncio.sleep(self._options.health_interval)
            await self._probe(upstream)

    async def _probe(self, upstream: Upstream) -> None:
        problem, is_silent = await self._check(upstream)
        upstream.num_silent = upstream.num_silent + 1 if is_silent else 0
        if is_silent and self.is_fleet and upstream.member.problem != _NOT_PROBED:
            problem = problem if upstream.num_silent >= MAX_SILENT else upstream.member.problem
        self._set_problem(upstream, problem)

    async def _check(self, upstream: Upstream) -> tuple[str, bool]:
        """Return the reason why it cannot be used, "" if it can, and whether it gave no answer."""
        server = upstream.server
        try:
            models = await list_models(server, self._options.connect_timeout)
        except ServingError as error:
            return str(error), isinstance(error, UpstreamLate)
        except Exception as error:  # requests go on, whatever the server sent
            log.error("the upstream's models cannot be listed", exc_info=True)
            return f"the models of the upstream {server.origin} cannot be listed: {error!r}", False
        lengths = dict(models)
        if not upstream.configured and len(lengths) != 1:
            listed = ", ".join(list(lengths)[:_MAX_LISTED]) or "no models"
            text = f"the upstream {server.origin} lists {listed}: name one by the engine option"
            return f"{text} 'model'", False
        upstream.model = upstream.configured or next(iter(lengths))
        upstream.length = lengths.get(upstream.model, 0)
        return "", False

    def _report_soon(self) -> None:
        if self._reporting is None:
            loop = asyncio.get_running_loop()
            self._reporting = loop.call_later(_REPORT_SECONDS, self._report)

    def _set_problem(self, upstream: Upstream, problem: str) -> None:
        member = upstream.member
        if problem != member.problem:
            if self.is_fleet:
                self._log(member, problem)
            if not problem and member.problem != _NOT_PROBED:
                member.start_slowly(monotonic())
            member.problem = problem
            if problem and self.is_fleet:
                for lost in list(upstream.waiting):
                    lost(problem)
        self._report()

    def _log(self, member: FleetMember, problem: str) -> None:
        if problem:
            log.warning("upstream %s is unready: %s", member.name, problem)
        elif member.problem != _NOT_PROBED:
            log.info("upstream %s is ready", member.name)

    # --- discovery ----------------------------------------------------------------------------

    async def _discover_all(self, *, is_first: bool = False) -> None:
        sources = [target for target in self._options.targets if target.is_source]
        for source in sources:
            try:
                self._sources[source] = await discover(source, self._options.connect_timeout)
                self._faults.pop(source, None)
            except ServingError as error:
                if self._faults.get(source) != str(error):
                    log.warning("upstreams are not discovered: %s", error)
                self._faults[source] = str(error)
        if sources:
            self._apply(is_first=is_first)

    def _apply(self, *, is_first: bool) -> None:
        """Add upstreams that sources name now, drain those that they do not name any more."""
        discovered = [target for targets in self._sources.values() for target in targets]
        targets = {target.origin: target for target in (*discovered, *self._fixed)}
        for name, target in targets.items():
            upstream = self._upstreams.get(name)
            if upstream is None:
                try:
                    upstream = self._add(target, is_new=not is_first)
                except ServingError as error:
                    log.error("upstream %s cannot be used: %s", name, error)
                    continue
                if not is_first:
                    upstream.task = asyncio.ensure_future(self._begin_watching(upstream))
            upstream.member.weight = target.weight
            upstream.member.is_leaving = target.is_leaving
        for name in self._upstreams.keys() - targets.keys():
            member = self._upstreams[name].member
            member.is_leaving = True
            if not member.num_open:
                self._remove(name)
        self._report()

    async def _begin_watching(self, upstream: Upstream) -> None:
        await self._probe(upstream)
        await self._watch_health(upstream)

    def _add(self, target: UpstreamTarget, *, is_new: bool) -> Upstream:
        """Add an upstream.  Raises StartError for its key or its TLS options."""
        options = self._options
        context = None
        if target.url.startswith("https://"):
            context = self._context = self._context or make_context(options)
        key = read_key(target.key_variable or options.key_variable)
        server = Server(target, context, key, options.connect_timeout)
        failures = options.circuit_failures if self.is_fleet else 0
        circuit = CircuitBreaker(failures, options.circuit_timeout)
        member = FleetMember(target.origin, target.weight, circuit, problem=_NOT_PROBED)
        if is_new:
            log.info("upstream %s is new", member.name)
            member.start_slowly(monotonic())
        self._balancer.add(member)
        upstream = Upstream(target, server, target.model or options.model, member)
        self._upstreams[member.name] = upstream
        return upstream

    def _remove(self, name: str) -> None:
        upstream = self._upstreams.pop(name, None)
        if upstream is not None:
            log.info("upstream %s is gone", name)
            self._balancer.remove(upstream.member)
            if upstream.task is not None:
                upstream.task.cancel()
