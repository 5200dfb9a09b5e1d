"""Cache of the answers to one method, by the content of requests.

It knows no clock, no event loop and no request: `caching` uses it.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.wire import splitting

MAX_BODY = 8 << 20  # bytes of a request: hashing them takes 4 ms, in which nothing else runs
MAX_SHARE = 0.25  # of the cache for one answer, so that it does not evict all others
ENTRY_SIZE, INSTANCE_SIZE = 512, 64  # bytes of an entry and of an instance, beside the encoded ones

Key: TypeAlias = tuple[str, bytes]  # the tenant, or "" if tenants share answers; and a digest


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """Encoded instances of an answer, which is valid until `expires`."""

    instances: Sequence[bytes]
    size: int
    expires: float


@dataclass(slots=True)
class CacheCounts:
    """Counts of requests: those that joined waited for the computation of an equal one.

    A `hit` is of the memory, a `hit_store` of the store that servers share.
    """

    hit: int = 0
    hit_store: int = 0
    miss: int = 0
    joined: int = 0
    skipped: int = 0  # the body is too large, or in memory that the client can change


class AnswerCache:
    """Answers of one method, at most `max_bytes`, each for `max_seconds`.

    The least recently used answer is evicted.  With `is_per_tenant` a tenant gets only answers to
    its requests, and answers of the tenant that has the largest part are evicted.
    """

    def __init__(self, max_bytes: int, max_seconds: float, *, is_per_tenant: bool = False) -> None:
        self.is_per_tenant = is_per_tenant
        self.counts = CacheCounts()
        self.hit_ns = self.miss_ns = 0  # in which it was searched, and answers were stored
        self.num_bytes = 0
        self.num_evicted = 0
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._answers: dict[str, OrderedDict[bytes, CachedAnswer]] = {}  # by tenant
        self._sizes: dict[str, int] = {}  # bytes of each tenant that has answers

    def __len__(self) -> int:
        return sum(map(len, self._answers.values()))

    def key_of(self, tenant: str, codec: str, body: Any) -> Key | None:
        """Return the key of a request; None if its answer cannot be cached.

        Two encodings of equal values have two keys.
        """
        buffers = splitting.unchanging(codec, body)
        if buffers is None or sum(map(len, buffers)) > MAX_BODY:
            return None
        digest = hashlib.sha256(codec.encode())  # clients must not be able to make two of one key
        for buffer in buffers:
            digest.update(b"%d:" % len(buffer))
            digest.update(buffer)
        return tenant if self.is_per_tenant else "", digest.digest()

    def get(self, key: Key, now: float) -> CachedAnswer | None:
        """Return the answer, which becomes the most recently used; None if there is none."""
        answers = self._answers.get(key[0])
        answer = None if answers is None else answers.get(key[1])
        if answers is None or answer is None:
            return None
        if answer.expires <= now:
            self._remove(key)
            return None
        answers.move_to_end(key[1])
        return answer

    def put(
        self, key: Key, instances: Sequence[bytes | memoryview], now: float, age: float = 0.0
    ) -> Sequence[bytes] | None:
        """Store a copy of an answer that is `age` seconds old, and return it.

        None if it is larger than MAX_SHARE of the cache.
        """
        size = ENTRY_SIZE + sum(INSTANCE_SIZE + len(instance) for instance in instances)
        self._remove(key)
        if size > MAX_SHARE * self._max_bytes:
            return None
        while self.num_bytes + size > self._max_bytes:
            self._evict()
        tenant, digest = key
        copies = tuple(map(bytes, instances))
        answers = self._answers.setdefault(tenant, OrderedDict())
        answers[digest] = CachedAnswer(copies, size, now + self._max_seconds - age)
        self._sizes[tenant] = self._sizes.get(tenant, 0) + size
        self.num_bytes += size
        return copies

    def _evict(self) -> None:
        tenant = max(self._sizes, key=self._sizes.__getitem__)
        self._remove((tenant, next(iter(self._answers[tenant]))))
        self.num_evicted += 1

    def _remove(self, key: Key) -> None:
        tenant, digest = key
        answer = self._answers.get(tenant, OrderedDict()).pop(digest, None)
        if answer is None:
            return
        self.num_bytes -= answer.size
        self._sizes[tenant] -= answer.size
        if not self._answers[tenant]:
            del self._answers[tenant], self._sizes[tenant]


NO_CACHE = AnswerCache(0, 0)


def cache_for(deployment: Deployment, *, is_cacheable: bool) -> AnswerCache | None:
    """Return the cache of a method; None if the operator wants none, or it is not cacheable."""
    if not deployment.cache_mb or not is_cacheable:
        return None
    return AnswerCache(
        int(deployment.cache_mb * (1 << 20)),
        deployment.cache_seconds,
        is_per_tenant=deployment.cache_per_key,
    )
