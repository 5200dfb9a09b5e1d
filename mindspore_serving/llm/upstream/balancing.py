"""Choice of the upstream for a request, and the state of upstreams that it depends on.

Knows no clock and no connection: the time, in seconds, is an argument.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.core.prefixes import PrefixMap, hashes, prompt_texts
from mindspore_serving.errors import Overloaded, ServableUnavailable, ServingError
from mindspore_serving.llm.upstream.circuit import CircuitBreaker

# An upstream is preferred for a prefix unless it has OVERLOADED times the outstanding tokens of the
# one with the fewest, and SPARE more.
OVERLOADED, SPARE = 2.0, 4096
UNLIMITED = 256  # tokens that count for an answer without a limit
_CHARACTERS = 4  # of a token
_MIN_SHARE = 0.1  # of its weight that an upstream has when it comes back
_MAX_REST = 60.0  # seconds
_MAX_LISTED = 8  # upstreams in an error


@dataclass(frozen=True, slots=True)
class Demand:
    """Estimated tokens of a request, its prompt's and its answers', and its prompt's hashes."""

    prompt: int
    answer: int
    hashes: Sequence[int] = ()

    @classmethod
    def of(cls, request: Generate) -> "Demand":
        """Return the demand of a request."""
        size = sum(
            len(text) if isinstance(text, str) else _CHARACTERS * len(text)
            for text in prompt_texts(request)
        )
        answer = request.params.n * (request.params.max_tokens or UNLIMITED)
        return cls(size // _CHARACTERS, answer, hashes(prompt_texts(request)))


@dataclass(slots=True)
class FleetMember:
    """State of one upstream of a fleet.

    `problem` says why it cannot be reached, "" if it can; it `is_leaving` once it is drained.
    """

    name: str
    weight: float
    circuit: CircuitBreaker
    problem: str = ""
    is_leaving: bool = False
    rests_until: float = 0.0
    returned: float | None = None  # when its slow start began
    num_open: int = 0
    num_requests: int = 0
    num_errors: int = 0
    outstanding: int = 0  # tokens
    served: float = 0.0  # tokens by weight; decides between upstreams with the same load

    @property
    def is_draining(self) -> bool:
        """True if it gets no new requests because its operator wants so."""
        return self.is_leaving or not self.weight

    def can_take(self, now: float) -> bool:
        """Return whether it may get a request."""
        is_away = bool(self.problem) or self.is_draining
        return not is_away and now >= self.rests_until and self.circuit.allows(now)

    def start_slowly(self, now: float) -> None:
        """Begin its slow start."""
        self.returned = now

    def rest(self, seconds: float, now: float) -> None:
        """Send it nothing for some seconds: it has said that it is busy, or that it stops."""
        self.rests_until = max(self.rests_until, now + min(seconds, _MAX_REST))


@dataclass(slots=True)
class Ticket:
    """Share of a request in the load of an upstream, until `Balancer.end`."""

    member: FleetMember
    is_trial: bool
    prompt: int
    answer: int
    has_ended: bool = False

    def advance(self, tokens: int) -> None:
        """Record that `tokens` of the answer have arrived, and that the prompt is computed."""
        taken = min(tokens, self.answer)
        self.member.outstanding -= self.prompt + taken
        self.prompt, self.answer = 0, self.answer - taken


class Balancer:
    """The members of a fleet and their loads; slow starts take `slow_start` seconds."""

    def __init__(self, slow_start: float) -> None:
        self.members: dict[str, FleetMember] = {}
        self._slow_start = slow_start
        self._served = (
            0.0  # of the member chosen last, before: virtual time of start-time fair queueing
        )
        self._prefixes: PrefixMap[str] = PrefixMap()

    def add(self, member: FleetMember) -> None:
        """Add a member, which is not to catch up on requests that others have served."""
        member.served = self._served
        self.members[member.name] = member

    def remove(self, member: FleetMember) -> None:
        """Remove a member."""
        self.members.pop(member.name, None)
        self._prefixes.remove(member.name)

    def choose(self, demand: Demand, now: float, tried: Collection[str] = ()) -> FleetMember | None:
        """Return the best member that can take a request, None if there is none.

        That is one that had the beginning of the prompt, else the one with the fewest outstanding
        tokens by weight. Those `tried` before are chosen only if there are no others.
        """
        usable = [member for member in self.members.values() if member.can_take(now)]
        candidates = [member for member in usable if member.name not in tried] or usable
        if not candidates:
            return None
        loads = {member.name: self._load(member, now) for member in candidates}
        best = min(candidates, key=lambda member: (loads[member.name], member.served))
        holders = self._prefixes.find(demand.hashes, loads) if demand.hashes else ()
        if not holders:
            return best
        name = min(holders, key=loads.__getitem__)
        is_overloaded = loads[name] > OVERLOADED * loads[best.name] + SPARE
        return best if is_overloaded else self.members[name]

    def begin(self, member: FleetMember, demand: Demand, now: float) -> Ticket:
        """Record that a request is sent to `member`."""
        tokens = demand.prompt + demand.answer
        member.num_open += 1
        member.num_requests += 1
        member.outstanding += tokens
        self._served = member.served = max(member.served, self._served)
        member.served += tokens / (self._share(member, now) * (member.weight or 1.0))
        self._prefixes.add(demand.hashes, member.name)
        return Ticket(member, member.circuit.begin(now), demand.prompt, demand.answer)

    def end(self, ticket: Ticket) -> None:
        """Record that the request of `ticket` has ended.  Does nothing the second time."""
        if not ticket.has_ended:
            ticket.has_ended = True
            ticket.advance(ticket.answer)
            ticket.member.num_open -= 1
            if ticket.is_trial:
                ticket.member.circuit.end_trial()

    def succeed(self, ticket: Ticket, now: float) -> None:
        """Record that an answer has begun."""
        if ticket.member.circuit.succeed(now):
            ticket.member.start_slowly(now)

    def fail(self, ticket: Ticket, now: float) -> None:
        """Record a failure of the upstream."""
        ticket.member.circuit.fail(now)

    def state(self, member: FleetMember, now: float) -> str:
        """Return the state of `member`, one of `upstream_report.STATES`."""
        if member.problem:
            return "unready"
        if member.is_draining:
            return "draining"
        circuit = member.circuit.state(now)
        if circuit != "closed":
            return circuit
        if now < member.rests_until:
            return "busy"
        return "ready" if self._share(member, now) == 1.0 else "slow start"

    def refusal(self, now: float) -> ServingError:
        """Return the error of a request for which there is no member, with the reason of each."""
        members = list(self.members.values())
        reasons = [_reason(member, self.state(member, now)) for member in members[:_MAX_LISTED]]
        text = f"no upstream can take requests: {'; '.join(reasons) or 'none is known'}"
        waits = [member.rests_until - now for member in members if member.rests_until > now]
        if waits:
            return Overloaded(text, max(1.0, min(waits)))
        opens = [member.circuit.remaining(now) for member in members if not member.problem]
        return ServableUnavailable(text, max(1.0, min(opens)) if opens else None)

    def _load(self, member: FleetMember, now: float) -> float:
        return member.outstanding / (member.weight * self._share(member, now))

    def _share(self, member: FleetMember, now: float) -> float:
        """Return the share of its weight that a member has, which grows while it starts slowly."""
        if member.returned is None or now >= member.returned + self._slow_start:
            return 1.0
        return max(_MIN_SHARE, (now - member.returned) / self._slow_start)


def unready_reason(members: Iterable[FleetMember]) -> str:
    """Return why no member can be used, "" if any can: circuits and busy members do not count."""
    known = list(members)
    if any(not member.problem and not member.is_draining for member in known):
        return ""
    reasons = [member.problem or _reason(member, "draining") for member in known[:_MAX_LISTED]]
    return "; ".join(reasons) or "no upstream is known"


def _reason(member: FleetMember, state: str) -> str:
    return member.problem or f"{member.name} is {state}"
