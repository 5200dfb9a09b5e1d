"""Counts that each of several servers has, in a Valkey or Redis server.

A server writes only what is its own, as a whole: writing it twice changes nothing, so a call whose
answer was lost is repeated, and a store that has lost its memory gets the counts back.
"""

import secrets
from collections.abc import Mapping, Sequence

from mindspore_serving.stores.redis_store import connect

PREFIX = "mindspore-serving:count:"
KEPT_SECONDS = 2 * 86_400  # after the last exchange of a count


class SharedCounts:
    """Counts by name; those of this process are of a random holder."""

    def __init__(self, option: str, url: str, timeout: float) -> None:
        """Connect.  Raises StartError if the URL or the password is wrong."""
        self._holder = secrets.token_hex(8).encode()
        self._client, self._name = connect(option, url, timeout)

    def __str__(self) -> str:
        return self._name

    def exchange(self, rows: Mapping[str, bytes]) -> dict[str, Sequence[bytes]]:
        """Write the counts of this process but empty ones; return those of other processes.

        Raises redis.RedisError or OSError.
        """
        calls = self._client.pipeline(transaction=False)
        for name, text in rows.items():
            if text:
                calls.hset(PREFIX + name, self._holder, text)
                calls.expire(PREFIX + name, KEPT_SECONDS)
            calls.hgetall(PREFIX + name)
        tables = [answer for answer in calls.execute() if isinstance(answer, dict)]
        return {
            name: [text for holder, text in table.items() if holder != self._holder]
            for name, table in zip(rows, tables, strict=True)
        }

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
