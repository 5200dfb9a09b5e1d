"""Limits of a tenant: requests and tokens per minute, requests in flight, tokens per day.

Decisions only: `now`, in seconds since 1970, is an argument.  Tokens are known when an answer has
ended, so a request is admitted while some are left, and its tokens may put the tenant into debt,
which later requests wait for.

Servers that count together tell each other what each has counted on a day (`local_use`, `learn`).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from time import gmtime, strftime
from typing import TypeAlias

from mindspore_serving.errors import Overloaded

DAY = 86_400
Headers: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a tenant; None is no limit.

    `max_requests` limits the requests in flight.  Tokens of prompts and answers count alike, times
    the weight of their model.  A day ends at midnight UTC.
    """

    max_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None

    @property
    def are_over_time(self) -> bool:
        """True if there are limits besides that of requests in flight."""
        return bool(self.requests_per_minute or self.tokens_per_minute or self.tokens_per_day)

    def __bool__(self) -> bool:
        return any(limit is not None for limit in map(self.__getattribute__, self.__slots__))


@dataclass(frozen=True, slots=True)
class LimitLeft:
    """Remainder of a limit of `kind`, which is whole again after `reset` seconds."""

    kind: str
    limit: int
    remaining: int
    reset: float


@dataclass(frozen=True, slots=True)
class DayUse:
    """Use of a tenant since midnight UTC: requests, and tokens times their weights."""

    requests: float = 0.0
    tokens: float = 0.0


class LimitReached(Overloaded):
    """Request over a limit of its tenant; `limit` is its name, `allowances` those of all limits."""

    def __init__(
        self, text: str, retry_after: float | None, limit: str, allowances: tuple[LimitLeft, ...]
    ) -> None:
        super().__init__(text, retry_after)
        self.limit = limit
        self.allowances = allowances

    @property
    def headers(self) -> Headers:
        """The headers of the limits, or trailing metadata of gRPC."""
        return to_headers(self.allowances)


class Bucket:
    """Token bucket, which holds what a minute allows, and may be in debt."""

    __slots__ = ("_level", "_updated")

    def __init__(self) -> None:
        self._level: float | None = None  # full
        self._updated = 0.0

    def level(self, per_minute: float, now: float) -> float:
        """Return what is left; it is less than 0 in debt."""
        if self._level is None:
            self._level = per_minute
        elapsed = max(0.0, now - self._updated)  # the clock may have been set back
        self._level = min(per_minute, self._level + elapsed * per_minute / 60)
        self._updated = now
        return self._level

    def spend(self, amount: float, per_minute: float, now: float) -> None:
        """Take `amount` out."""
        self._level = self.level(per_minute, now) - amount


@dataclass(slots=True)
class LimitState:
    """Counts of one tenant, by which its requests are admitted."""

    name: str
    num_running: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # by limit
    _requests: Bucket = field(default_factory=Bucket)
    _tokens: Bucket = field(default_factory=Bucket)
    _day: int = 0
    _requests_of_day: float = 0.0  # here
    _tokens_of_day: float = 0.0
    _other: DayUse | None = None  # on all other servers; None if that is not known
    _is_joined: bool = False  # whether it was known at any time

    def admit(self, limits: Limits, now: float) -> None:
        """Count a request, until `num_running` is decreased.  Raises LimitReached."""
        running, per_minute = limits.max_requests, limits.requests_per_minute
        if running is not None and self.num_running >= running:
            requests = f"{self.num_running} request{'s' * (self.num_running != 1)}"
            text = f"has {requests} in flight, which is its limit; wait for an answer"
            raise self._reached("max_requests", text, None, limits, now)
        if per_minute is not None:
            level = self._requests.level(per_minute, now)
            if level < 1:
                text = f"may send {per_minute} requests per minute"
                wait = (1 - level) * 60 / per_minute
                raise self._reached("requests_per_minute", text, wait, limits, now)
            self._requests.spend(1, per_minute, now)
        self._begin_day(now)
        self._requests_of_day += 1
        self.num_running += 1

    def check_tokens(self, limits: Limits, now: float) -> None:
        """Raise LimitReached if no tokens are left to a request."""
        per_minute, per_day = limits.tokens_per_minute, limits.tokens_per_day
        if per_day is not None and self._used(now) >= per_day:
            text = f"may use {per_day} tokens per day (UTC)"
            raise self._reached("tokens_per_day", text, DAY - now % DAY, limits, now)
        if per_minute is not None:
            level = self._tokens.level(per_minute, now)
            if level < 1:
                text = f"may use {per_minute} tokens per minute"
                wait = (1 - level) * 60 / per_minute
                raise self._reached("tokens_per_minute", text, wait, limits, now)

    def charge(self, limits: Limits, tokens: float, now: float) -> None:
        """Count tokens of an answer, times the weight of its model."""
        self._begin_day(now)
        self._tokens_of_day += tokens
        if limits.tokens_per_minute is not None:
            self._tokens.spend(tokens, limits.tokens_per_minute, now)

    def local_use(self, now: float) -> DayUse:
        """Return what was counted here on this day."""
        self._begin_day(now)
        return DayUse(self._requests_of_day, self._tokens_of_day)

    def learn(self, other: DayUse, limits: Limits, now: float) -> None:
        """Count what was used on all other servers on this day.

        What was used there since the last call is taken out of the buckets of a minute.
        """
        self._begin_day(now)
        known = self._other or DayUse()
        if self._is_joined:
            new = max(0.0, other.requests - known.requests), max(0.0, other.tokens - known.tokens)
            per_minute = limits.requests_per_minute, limits.tokens_per_minute
            for bucket, amount, limit in zip(self._buckets, new, per_minute, strict=True):
                if limit is not None:
                    bucket.spend(amount, limit, now)
        self._other, self._is_joined = other, True

    def allowances(self, limits: Limits, now: float) -> tuple[LimitLeft, ...]:
        """Return what is left of each limit over time."""
        return tuple(self._allowances(limits, now))

    def _allowances(self, limits: Limits, now: float) -> Iterator[LimitLeft]:
        per_minute = limits.requests_per_minute, limits.tokens_per_minute
        buckets = zip(("requests", "tokens"), self._buckets, per_minute, strict=True)
        for kind, bucket, limit in buckets:
            if limit is not None:
                level = bucket.level(limit, now)
                yield LimitLeft(kind, limit, max(0, int(level)), (limit - level) * 60 / limit)
        if limits.tokens_per_day is not None:
            left = max(0, int(limits.tokens_per_day - self._used(now)))
            yield LimitLeft("tokens-day", limits.tokens_per_day, left, DAY - now % DAY)

    @property
    def _buckets(self) -> tuple[Bucket, Bucket]:
        return self._requests, self._tokens

    def _used(self, now: float) -> float:
        """Return the tokens of this day, of all servers."""
        self._begin_day(now)
        return self._tokens_of_day + (self._other.tokens if self._other else 0.0)

    def _begin_day(self, now: float) -> None:
        day = int(now // DAY)
        if day != self._day:
            self._day, self._requests_of_day, self._tokens_of_day = day, 0.0, 0.0
            self._other = None

    def _reached(
        self, limit: str, text: str, wait: float | None, limits: Limits, now: float
    ) -> LimitReached:
        self.refusals[limit] += 1
        text = f"the API key {self.name!r} {text}"
        return LimitReached(text, wait, limit, self.allowances(limits, now))


def to_headers(allowances: tuple[LimitLeft, ...]) -> Headers:
    """Return headers of limits by the names of OpenAI's API."""
    values = (
        (row.kind, (("limit", row.limit), ("remaining", row.remaining), ("reset", _span(row))))
        for row in allowances
    )
    return tuple(
        (f"x-ratelimit-{name}-{kind}", str(value)) for kind, row in values for name, value in row
    )


def to_anthropic_headers(allowances: tuple[LimitLeft, ...], now: float) -> Headers:
    """Return headers of limits by the names of Anthropic's API."""
    headers = []
    for row in allowances:
        reset = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(ceil(now + row.reset)))
        values = (("limit", row.limit), ("remaining", row.remaining), ("reset", reset))
        headers += [(f"anthropic-ratelimit-{row.kind}-{name}", str(v)) for name, v in values]
    return tuple(headers)


def _span(row: LimitLeft) -> str:
    return f"{ceil(row.reset)}s"
