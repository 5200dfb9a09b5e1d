"""Usage of models by tenants, counted since the start of the server.  No I/O and no clock."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import NamedTuple

from mindspore_serving.metrics.exposition import Page

MAX_ROWS = 4096  # of tenants and models
MAX_NAMES = 512  # of tenants in metrics; the tenants of an identity provider are not limited
REST = "(other)"  # name of tenants and models beyond these limits


class UsageKey(NamedTuple):
    """Row of the table: the digest and the name of a tenant, and a servable."""

    owner: str
    name: str
    servable: str


@dataclass(slots=True)
class UsageCounts:
    """Counts of requests that have ended, and of their tokens and instances."""

    num_requests: int = 0
    num_failed: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_instances: int = 0

    def add(self, other: "UsageCounts") -> None:
        """Add the counts of `other`."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class UsageTable:
    """Usage of all tenants, of at most MAX_ROWS pairs of tenant and servable."""

    def __init__(self) -> None:
        self._rows: dict[UsageKey, UsageCounts] = {}
        self._unwritten: dict[UsageKey, UsageCounts] = {}

    def add(self, key: UsageKey, usage: UsageCounts) -> None:
        """Count a request that has ended."""
        for rows in (self._rows, self._unwritten):
            if key not in rows and len(rows) >= MAX_ROWS:
                key = UsageKey("", REST, REST)
            rows.setdefault(key, UsageCounts()).add(usage)

    def rows(self, owner: str | None = None) -> Iterator[tuple[UsageKey, UsageCounts]]:
        """Iterate over the usage of a tenant, or of all."""
        return ((key, row) for key, row in self._rows.items() if owner in (None, key.owner))

    def take_unwritten(self) -> list[tuple[UsageKey, UsageCounts]]:
        """Return what was counted since the last call, for a log of usage."""
        rows, self._unwritten = self._unwritten, {}
        return list(rows.items())

    def put_back(self, rows: Iterable[tuple[UsageKey, UsageCounts]]) -> None:
        """Return rows that could not be written."""
        for key, usage in rows:
            if key not in self._unwritten and len(self._unwritten) >= MAX_ROWS:
                key = UsageKey("", REST, REST)
            self._unwritten.setdefault(key, UsageCounts()).add(usage)

    def add_metrics(self, page: Page, refusals: Iterable[tuple[str, Mapping[str, int]]]) -> None:
        """Add the usage by names of tenants, of at most MAX_NAMES.

        `refusals` are the names of tenants with counts of refusals by limit.
        """
        names: set[str] = set()

        def shown(name: str) -> str:
            if name not in names and len(names) >= MAX_NAMES:
                return REST
            names.add(name)
            return name

        used: dict[tuple[str, str], UsageCounts] = {}
        for key, usage in self._rows.items():
            used.setdefault((shown(key.name), key.servable), UsageCounts()).add(usage)
        for labels, usage in used.items():
            requests, failed, prompt, generated, instances = astuple(usage)
            page.add("serving_key_requests_total", requests - failed, *labels, "ok")
            page.add("serving_key_requests_total", failed, *labels, "failed")
            page.add("serving_key_tokens_total", prompt, *labels, "prompt")
            page.add("serving_key_tokens_total", generated, *labels, "generated")
            page.add("serving_key_instances_total", instances, *labels)
        refused: Counter[tuple[str, str]] = Counter()
        for name, by_limit in refusals:
            for limit, count in by_limit.items():
                refused[shown(name), limit] += count
        for labels, count in refused.items():
            page.add("serving_key_refusals_total", count, *labels)
