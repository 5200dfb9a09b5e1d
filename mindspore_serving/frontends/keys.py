"""API keys, and the limits of the tenants that have them.  Knows no routes and no protocols."""

import base64
import binascii
import hashlib
import time
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving.errors import Overloaded, Unauthorized

TENANT = "api_key_holder"  # key of the Tenant in the scope of a request, if there are keys
KEY_HEADERS = (b"x-api-key", b"x-goog-api-key")
"""Headers in which clients of Anthropic and Google send a key alone."""
TEXT = "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key and its limits; None is no limit.

    `name` is shown in errors.  `max_requests` limits the requests in flight.  `priority` is added
    to that of requests to language models: lower runs first.
    """

    secret: str = field(repr=False)
    name: str = ""
    max_requests: int | None = None
    requests_per_minute: int | None = None
    priority: int = 0
    stored_owner: str = field(default="", repr=False)  # of a request that the server sends itself

    @property
    def owner(self) -> str:
        """Name of the tenant in stored state: a digest, as a secret must not be stored."""
        return self.stored_owner or (self.secret and _digest(self.secret.encode()).hex())


class Tenant:
    """The user of a key, whose requests are counted: `admit` each, `release` it at its end."""

    __slots__ = ("__weakref__", "_num_running", "_tokens", "_updated", "key", "owner")

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.owner = key.owner
        self._num_running = 0
        self._tokens = float(key.requests_per_minute or 0)  # token bucket: requests allowed at once
        self._updated = time.monotonic()  # time of `_tokens`

    def admit(self) -> "Tenant":
        """Count a request.  Raises Overloaded if a limit of the key is reached."""
        key = self.key
        if key.max_requests is not None and self._num_running >= key.max_requests:
            requests = f"{self._num_running} request{'s' * (self._num_running != 1)}"
            raise Overloaded(
                f"the API key {key.name!r} has {requests} in flight, which is its limit; wait for "
                "an answer"
            )
        if key.requests_per_minute is not None:
            self._spend(key.requests_per_minute)
        self._num_running += 1
        return self

    def release(self) -> None:
        self._num_running -= 1

    def _spend(self, per_minute: int) -> None:
        now = time.monotonic()
        self._tokens = min(per_minute, self._tokens + (now - self._updated) * per_minute / 60)
        self._updated = now
        if self._tokens < 1:
            text = f"the API key {self.key.name!r} may send {per_minute} requests per minute"
            raise Overloaded(text, (1 - self._tokens) * 60 / per_minute)
        self._tokens -= 1


class Keys:
    """Accepted keys; without any, every request is accepted."""

    def __init__(
        self,
        keys: Iterable[ApiKey | str] = (),
        tenants: MutableMapping[ApiKey, Tenant] | None = None,
    ) -> None:
        """Accept `keys`; servers that count the requests of a key together share `tenants`."""
        self._shared = {} if tenants is None else tenants
        self.tenants: dict[bytes, Tenant] = {}
        self.replace(ApiKey(key) if isinstance(key, str) else key for key in keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Accept `keys` from now on.

        Requests in flight still count for a key that remains, by its new limits.
        """
        before, self.tenants = self.tenants, {}
        for key in keys:
            digest = _digest(key.secret.encode())
            tenant = before.get(digest) or self._shared.setdefault(key, Tenant(key))
            tenant.key = key
            self.tenants[digest] = tenant

    def __bool__(self) -> bool:
        return bool(self.tenants)

    def find_in(self, fields: Mapping[bytes, bytes]) -> Tenant:
        """Return the tenant of the key in the headers of a request.  Raises Unauthorized."""
        return self.find(fields.get(b"authorization"), *map(fields.get, KEY_HEADERS))

    def find(self, authorization: bytes | None, *api_keys: bytes | None) -> Tenant:
        """Return the tenant of a key.  Raises Unauthorized.

        The Authorization header has the key as bearer token, or as password of basic
        authentication, for which browsers show a dialogue; `api_keys` are those of other headers.
        """
        # The time of a look-up depends on the digest, which reveals nothing of the key.
        sent = (_key_of(authorization or b""), *(key.strip() for key in api_keys if key))
        tenants = (self.tenants.get(_digest(key)) for key in sent)
        tenant = next(filter(None, tenants), None)
        if tenant is None:
            raise Unauthorized(TEXT)
        return tenant


def owner_of(scope: Mapping[str, Any]) -> str:
    """Return whose stored state a request may see; "" for requests without a key."""
    tenant = scope.get(TENANT)
    return "" if tenant is None else str(tenant.key.owner)


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
