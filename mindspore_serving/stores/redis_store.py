"""Store of values in a Valkey or Redis server, through redis-py."""

import errno
import os
from collections.abc import Sequence

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.stores.base import StoreOptions

PREFIX = "mindspore-serving:block:"
PASSWORD = "REDISCLI_AUTH"  # the variable of redis-cli and valkey-cli


def connect(option: str, url: str, timeout: float) -> tuple[redis.Redis, str]:
    """Connect to the server of `option`, and return the client and the name of the server.

    Raises StartError if the URL or the password is wrong, and only logs a server that is gone.
    """
    password = os.environ.get(PASSWORD)
    url = url.replace("valkey", "redis", 1) if url.startswith("valkey") else url
    try:
        client = redis.Redis.from_url(
            url,
            **({} if password is None else {"password": password}),
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            # A server closes connections that are idle, so the first error may mean no more.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            health_check_interval=0,
        )
    except (TypeError, ValueError):  # whose text may have a part of a password
        raise StartError(
            f"{option} is no URL of a server, expected one as rediss://HOST:6379/0, with "
            "special characters of a password as %XX"
        ) from None
    address = client.connection_pool.connection_kwargs
    name = f"the store {address.get('host', address.get('path'))}:{address.get('port', '')}"
    try:
        client.ping()
    except (redis.AuthenticationError, redis.ResponseError, TypeError, ValueError) as error:
        raise StartError(
            f"{option}: {name} refuses the connection: {error}; expected a URL as "
            f"rediss://USER@HOST:6379/0, and its password in {PASSWORD}"
        ) from None
    except (redis.RedisError, OSError) as error:
        log.warning("%s does not answer, and is not used until it does: %s", name, error)
    return client, name


class RedisStore:
    """Values of a server, which removes them `max_seconds` after their last use (0: never).

    The server's own limit (`maxmemory` with a policy that evicts) bounds the memory; without
    one, nothing is written once the server uses the `max_bytes` of `bounds`.
    """

    errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)

    def __init__(self, options: StoreOptions) -> None:
        """Connect.  Raises StartError if the URL or the password is wrong."""
        self._option, self._bounds = options.option, options.bounds
        self._max_ms = int(options.max_seconds * 1000)
        self._client, self._name = connect(options.option, options.url, options.timeout)

    def __str__(self) -> str:
        return self._name

    def get(self, name: str, max_bytes: int) -> bytes | None:
        """Return a value, its first `max_bytes` at most; None without it."""
        calls = self._client.pipeline(transaction=False)
        calls.getrange(PREFIX + name, 0, max_bytes - 1)
        if self._max_ms:
            calls.pexpire(PREFIX + name, self._max_ms)
        return calls.execute()[0] or None

    def has(self, name: str) -> bool:
        """Return whether there is a value."""
        return bool(self._client.exists(PREFIX + name))

    def touch(self, name: str, at: int | None = None) -> None:
        """Begin the time to live of a value anew."""
        if self._max_ms:
            self._client.pexpire(PREFIX + name, self._max_ms)

    def put(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Write a value.  Raises OSError if the server is full."""
        if self._bounds.is_due:
            self._check_room()
        value = b"".join(parts)
        self._client.set(PREFIX + name, value, px=self._max_ms or None)
        self._bounds.budget -= len(value)

    def remove(self, name: str) -> None:
        """Remove a value."""
        self._client.delete(PREFIX + name)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _check_room(self) -> None:
        memory = self._client.info("memory")
        evicts = memory.get("maxmemory") and memory.get("maxmemory_policy") != "noeviction"
        if not self._bounds.has_room(int(memory["used_memory"])) and not evicts:
            self._bounds.budget = 0
            raise OSError(
                errno.ENOSPC,
                f"the server uses {memory['used_memory']} bytes of the {self._bounds.max_bytes} "
                f"of {self._option}_size, and evicts none (maxmemory-policy)",
            )
