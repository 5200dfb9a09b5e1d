"""API keys, and the limits of the tenants that have them.  Knows no routes and no protocols."""

import base64
import binascii
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

from mindspore_serving.errors import Forbidden, Unauthorized
from mindspore_serving.frontends.http.head import UPGRADE, subprotocols_of
from mindspore_serving.frontends.tenants.limits import DayUse, LimitLeft, Limits, LimitState

TENANT = "api_key_holder"  # key of the Tenant in the scope of a request, if there are keys
KEY_HEADERS = (b"x-api-key", b"x-goog-api-key")
"""Headers in which clients of Anthropic and Google send a key alone."""
_SUBPROTOCOL = b"openai-insecure-api-key."  # of a WebSocket, before a key
TEXT = "The API key is missing or wrong: send it as 'Authorization: Bearer KEY'"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, its limits, and the models that it may use: all if there are none.

    `digest` stands for a `secret` that the server does not know.  `name` is shown in errors.
    `priority` is added to that of requests to language models: lower runs first.  `weights` are
    factors of the tokens of models.  An operator sees the usage of all keys.
    """

    secret: str = field(repr=False)
    name: str = ""
    limits: Limits = Limits()
    priority: int = 0
    stored_owner: str = field(default="", repr=False)  # of a request that the server sends itself
    digest: bytes = field(default=b"", repr=False)
    models: tuple[str, ...] = ()
    weights: tuple[tuple[str, float], ...] = ()
    is_operator: bool = False

    @property
    def owner(self) -> str:
        """Name of the tenant in stored state: a digest, as a secret must not be stored."""
        return self.stored_owner or self.sha256.hex()

    @property
    def sha256(self) -> bytes:
        """Digest by which the key is found; empty for a key that no client can send."""
        return self.digest or (digest_of(self.secret.encode()) if self.secret else b"")

    def weight_of(self, servable: str) -> float | None:
        """Return the factor of the tokens of a servable; None if it has none."""
        return next((weight for name, weight in self.weights if name == servable), None)


class Tenant:
    """The user of a key, whose requests are counted: `admit` each, `release` it at its end."""

    __slots__ = ("__weakref__", "_clock", "_state", "key", "owner")

    def __init__(self, key: ApiKey, clock: Callable[[], float] = time.time) -> None:
        self.key = key
        self.owner = key.owner
        self._clock = clock
        self._state = LimitState(self.name)

    @property
    def name(self) -> str:
        """Name of the key, or the beginning of its digest."""
        return self.key.name or f"key {self.owner[:8]}"

    @property
    def num_running(self) -> int:
        """Number of requests in flight."""
        return self._state.num_running

    @property
    def refusals(self) -> Mapping[str, int]:
        """Numbers of refusals by limit."""
        return self._state.refusals

    def admit(self) -> "Tenant":
        """Count a request.  Raises LimitReached if a limit of the key is reached."""
        self._state.name = self.name
        self._state.admit(self.key.limits, self._clock())
        return self

    def release(self) -> None:
        self._state.num_running -= 1

    def check_model(self, servable: str) -> None:
        """Raise Forbidden if the key may not use a servable."""
        models = self.key.models
        if models and servable not in models:
            raise Forbidden(
                f"the API key {self.name!r} may not use {servable!r}; it may use "
                f"{', '.join(models)}"
            )

    def check_tokens(self) -> None:
        """Raise LimitReached if the key has no tokens left."""
        self._state.check_tokens(self.key.limits, self._clock())

    def charge(self, tokens: float) -> None:
        """Count tokens of a model, times its weight."""
        self._state.charge(self.key.limits, tokens, self._clock())

    def local_use(self, now: float) -> DayUse:
        """Return what this server has counted since midnight UTC."""
        return self._state.local_use(now)

    def learn(self, other: DayUse, now: float) -> None:
        """Count what the key has used on other servers since midnight UTC."""
        self._state.learn(other, self.key.limits, now)

    def allowances(self) -> tuple[LimitLeft, ...]:
        """Return what is left of each limit of the key."""
        return self._state.allowances(self.key.limits, self._clock())


class TokenFinder(Protocol):
    """Verifier of tokens of identity providers, see `tenants.issuers`."""

    def find(self, token: bytes) -> Tenant:
        """Return the tenant of a token.

        Raises Unauthorized, and ServableUnavailable while keys of its issuer are fetched.
        """
        ...

    async def prepare(self, token: bytes) -> None:
        """Wait for keys that `find` needs, for some seconds at most."""
        ...


TenantTable: TypeAlias = WeakValueDictionary[str, Tenant]
"""Tenants by `owner`, of all listeners: they count the requests of a key together."""


class Keys:
    """Accepted keys; without any, every request is accepted."""

    def __init__(
        self,
        keys: Iterable[ApiKey | str] = (),
        tenants: TenantTable | None = None,
    ) -> None:
        """Accept `keys`; servers that count the requests of a key together share `tenants`."""
        self._shared = TenantTable() if tenants is None else tenants
        self.tenants: dict[bytes, Tenant] = {}
        self.tokens: TokenFinder | None = None
        self.replace(ApiKey(key) if isinstance(key, str) else key for key in keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Accept `keys` from now on.

        Requests in flight still count for a key that remains, by its new limits.
        """
        tenants = {}
        for key in keys:
            tenant = self._shared.setdefault(key.owner, Tenant(key))
            tenant.key = key
            tenants[key.sha256] = tenant
        self.tenants = tenants

    def __bool__(self) -> bool:
        return bool(self.tenants) or self.tokens is not None

    def token_in(self, fields: Mapping[bytes, bytes]) -> bytes:
        """Return the token of a request that keys may have to be fetched for; "" if none."""
        sent = _key_of(fields.get(b"authorization") or b"") if self.tokens is not None else b""
        return sent if _is_token(sent) else b""

    async def prepare(self, token: bytes) -> None:
        """Wait until `find` can decide about a token."""
        if self.tokens is not None and token:
            await self.tokens.prepare(token)

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
        tenants = (self.tenants.get(digest_of(key)) for key in sent)
        tenant = next(filter(None, tenants), None)
        if tenant is None and self.tokens is not None:
            tenant = next(map(self.tokens.find, filter(_is_token, sent)), None)
        if tenant is None:
            raise Unauthorized(TEXT)
        return tenant


def fields_of(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the headers of a request by name.

    A browser sends no other header with a WebSocket than its subprotocols: a key among them, as
    OpenAI's clients send it, counts as bearer token.
    """
    fields: dict[bytes, bytes] = dict(scope["headers"])
    if UPGRADE in scope.get("extensions", ()) and b"authorization" not in fields:
        for subprotocol in subprotocols_of(scope):
            if subprotocol.startswith(_SUBPROTOCOL):
                fields[b"authorization"] = b"Bearer " + subprotocol.removeprefix(_SUBPROTOCOL)
    return fields


def owner_of(scope: Mapping[str, Any]) -> str:
    """Return whose stored state a request may see; "" for requests without a key."""
    tenant = scope.get(TENANT)
    return "" if tenant is None else str(tenant.key.owner)


def digest_of(key: bytes) -> bytes:
    """Return the digest of a key, by which the server knows it."""
    return hashlib.sha256(key).digest()


def _is_token(sent: bytes) -> bool:
    """Return whether a client may have sent a JWT: three parts, in base64."""
    return sent.count(b".") == 2 and sent.startswith(b"ey")


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
