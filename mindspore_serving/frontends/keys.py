"""API keys: whose requests may come in, and how many.  Knows no routes and no protocols."""

import base64
import binascii
import hashlib
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field

from mindspore_serving.errors import Overloaded, Unauthorized

HOLDER = "api_key_holder"  # where routes find the KeyHolder in their scope, if there are keys
TEXT = "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, and what its holder may do.

    `name` is for people.  `max_requests` is of those under way at once; None is no limit.
    `priority` is added to that of requests to language models: lower runs first.
    """

    secret: str = field(repr=False)
    name: str = ""
    max_requests: int | None = None
    requests_per_minute: int | None = None
    priority: int = 0


class KeyHolder:
    """The requests that come with one key.  `admit` each, and `release` it at its end."""

    __slots__ = ("__weakref__", "_num_running", "_room", "_seen", "key")

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self._num_running = 0
        self._room = float(key.requests_per_minute or 0)  # requests that may come at once
        self._seen = time.monotonic()  # when that was so

    def admit(self) -> "KeyHolder":
        """Raises Overloaded."""
        key = self.key
        if key.max_requests is not None and self._num_running >= key.max_requests:
            raise Overloaded(
                f"the API key {key.name!r} has {self._num_running} requests under way, which is "
                "its limit; wait for their answers"
            )
        if key.requests_per_minute is not None:
            self._spend(key.requests_per_minute)
        self._num_running += 1
        return self

    def release(self) -> None:
        self._num_running -= 1

    def _spend(self, per_minute: int) -> None:
        now = time.monotonic()
        self._room = min(per_minute, self._room + (now - self._seen) * per_minute / 60)
        self._seen = now
        if self._room < 1:
            text = f"the API key {self.key.name!r} may send {per_minute} requests per minute"
            raise Overloaded(text, (1 - self._room) * 60 / per_minute)
        self._room -= 1


class Keys:
    """The keys that are accepted; none at all accepts everything."""

    def __init__(
        self,
        keys: Iterable[ApiKey | str] = (),
        holders: MutableMapping[ApiKey, KeyHolder] | None = None,
    ) -> None:
        """`holders` are shared by servers whose keys have their limits in common."""
        self._shared = {} if holders is None else holders
        self.holders: dict[bytes, KeyHolder] = {}
        self.replace(ApiKey(one) if isinstance(one, str) else one for one in keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Accept these from now on.  Requests under way count for a key that stays, by its new
        limits.
        """
        before, self.holders = self.holders, {}
        for key in keys:
            digest = _digest(key.secret.encode())
            holder = before.get(digest) or self._shared.setdefault(key, KeyHolder(key))
            holder.key = key
            self.holders[digest] = holder

    def __bool__(self) -> bool:
        return bool(self.holders)

    def find(self, authorization: bytes | None, api_key: bytes | None = None) -> KeyHolder:
        """Whose key an Authorization header has: as a bearer token, or as the password of basic
        authentication, for which browsers show a dialogue.  Or an X-Api-Key header, as Anthropic's
        clients send it.  Raises Unauthorized.
        """
        # The time that a look-up takes tells something of the digest, and nothing of the key.
        holder = self.holders.get(_digest(_key_of(authorization or b"")))
        if holder is None and api_key is not None:
            holder = self.holders.get(_digest(api_key.strip()))
        if holder is None:
            raise Unauthorized(TEXT)
        return holder


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _key_of(authorization: bytes) -> bytes:
    scheme, _, rest = authorization.strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
