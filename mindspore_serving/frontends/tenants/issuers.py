"""Tokens of identity providers (OpenID Connect): who sends a request, by a signed JWT.

An issuer's public keys are fetched when a token needs one, and again when it names a key that is
not among them, but not more often than each FETCH_INTERVAL seconds, whatever clients send.  The
algorithms are those of the configuration, all with public keys; a token does not choose.
"""

import asyncio
import hashlib
import json
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mindspore_serving import log
from mindspore_serving.aio import on_thread, within
from mindspore_serving.errors import ServableUnavailable, StartError, Unauthorized
from mindspore_serving.frontends.keys import ApiKey, Tenant, TenantTable
from mindspore_serving.frontends.tenants.limits import Limits

ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
MAX_TOKEN = 8192  # bytes
MAX_JWKS = 1 << 20  # bytes of an issuer's keys
MAX_CACHED = 4096  # tokens, and tenants of an issuer
FETCH_INTERVAL = 30.0  # seconds between two fetches at least
MAX_AGE = 600.0  # seconds after which keys are fetched again
FETCH_TIMEOUT = 5.0  # seconds
TRUST_SECONDS = 300.0  # in which a token is not verified again
LEEWAY = 30.0  # seconds that clocks may differ
_MALFORMED = "it is no JWT of a configured issuer"


@dataclass(frozen=True, slots=True)
class Issuer:
    """An identity provider, and how claims of its tokens become limits.

    `limits` are those of each subject; a claim `limits_claim`, an object, has others, and
    `models_claim` is a list of the servables that a subject may use.
    """

    issuer: str
    audience: str
    jwks_url: str
    algorithms: tuple[str, ...] = ("RS256",)
    name_claim: str = "sub"
    models_claim: str = ""
    limits_claim: str = ""
    limits: Limits = Limits()
    models: tuple[str, ...] = ()
    weights: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True)
class _Jwks:
    """Public keys of an issuer, by their ids."""

    keys: dict[str, Any] = field(default_factory=dict)
    fetched: float = float("-inf")
    tried: float = float("-inf")
    fetching: "asyncio.Task[None] | None" = None


class TokenVerifier:
    """Verifier of the tokens of several issuers; `clock` is in seconds since 1970."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        tenants: TenantTable,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a verifier.  Raises StartError if the library is not installed."""
        try:
            import jwt
        except ModuleNotFoundError as error:
            from mindspore_serving import extras

            text = extras.missing(error, "a file of API keys with issuers")
            raise StartError(f"Serving Error: {text}") from None
        self._jwt: Any = jwt
        self.issuers = tuple(issuers)
        self._by_name = {issuer.issuer: issuer for issuer in issuers}
        self._jwks = {issuer.issuer: _Jwks() for issuer in issuers}
        self._shared = tenants
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()  # by owner
        self._verified: OrderedDict[bytes, tuple[Tenant, float]] = OrderedDict()  # by digest
        self._clock = clock

    def find(self, token: bytes) -> Tenant:
        """Return the tenant of a token.

        Raises Unauthorized, and ServableUnavailable while keys of its issuer are fetched.
        """
        now, digest = self._clock(), hashlib.sha256(token).digest()
        tenant, until = self._verified.get(digest, (None, 0.0))
        if tenant is not None and now < until:
            return tenant
        issuer, key_id = self._read(token)
        jwks = self._jwks[issuer.issuer]
        if self._needs_keys(jwks, key_id, now):
            self._fetch(issuer)
        if key_id not in jwks.keys:
            if jwks.fetching is None:
                raise _refused("its key is not among those of the issuer")
            text = "the keys of the issuer are being fetched; try again"
            raise ServableUnavailable(text, retry_after=1)
        claims = self._verify(token, issuer, jwks.keys[key_id])
        tenant = self._tenant_of(issuer, claims)
        until = min(now + TRUST_SECONDS, float(claims["exp"]) + LEEWAY)
        self._verified[digest] = tenant, until
        if len(self._verified) > MAX_CACHED:
            self._verified.popitem(last=False)
        return tenant

    async def prepare(self, token: bytes) -> None:
        """Wait until the keys of the issuer of `token` are there, if they are being fetched."""
        try:
            self.find(token)
        except ServableUnavailable:
            tasks = [jwks.fetching for jwks in self._jwks.values() if jwks.fetching is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=FETCH_TIMEOUT)
        except Unauthorized:
            return

    def _read(self, token: bytes) -> tuple[Issuer, str]:
        """Return issuer and key id of a token that is not verified yet.  Raises Unauthorized."""
        if len(token) > MAX_TOKEN:
            raise _refused(f"it has {len(token)} bytes, at most {MAX_TOKEN} are accepted")
        try:
            head = self._jwt.get_unverified_header(token)
            claims = self._jwt.decode(token, options={"verify_signature": False})
        except (self._jwt.PyJWTError, ValueError, RecursionError):
            raise _refused(_MALFORMED) from None
        issuer, key_id = self._by_name.get(str(claims.get("iss"))), head.get("kid", "")
        if issuer is None or not isinstance(key_id, str):
            raise _refused(_MALFORMED)
        if head.get("alg") not in issuer.algorithms:
            accepted = ", ".join(issuer.algorithms)
            raise _refused(f"its algorithm is not accepted; accepted: {accepted}")
        return issuer, key_id

    def _verify(self, token: bytes, issuer: Issuer, key: Any) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = self._jwt.decode(
                token,
                key,
                algorithms=list(issuer.algorithms),
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except self._jwt.PyJWTError as error:
            raise _refused(str(error)[:200]) from None
        except (ValueError, TypeError):  # of claims and keys that the library does not check
            raise _refused(_MALFORMED) from None
        return claims

    def _tenant_of(self, issuer: Issuer, claims: Mapping[str, Any]) -> Tenant:
        subject = f"{issuer.issuer}\0{claims['sub']}".encode()
        key = ApiKey(
            "",
            str(claims.get(issuer.name_claim) or claims["sub"])[:100],
            _limits_of(issuer, claims),
            digest=hashlib.sha256(b"jwt\0" + subject).digest(),
            models=_models_of(issuer, claims),
            weights=issuer.weights,
        )
        tenant = self._shared.setdefault(key.owner, Tenant(key))
        tenant.key = key
        self._tenants[key.owner] = tenant
        self._tenants.move_to_end(key.owner)
        if len(self._tenants) > MAX_CACHED:
            self._tenants.popitem(last=False)
        return tenant

    def _needs_keys(self, jwks: _Jwks, key_id: str, now: float) -> bool:
        is_old = now - jwks.fetched > MAX_AGE
        may_fetch = jwks.fetching is None and abs(now - jwks.tried) >= FETCH_INTERVAL
        return may_fetch and (is_old or key_id not in jwks.keys)

    def _fetch(self, issuer: Issuer) -> None:
        jwks = self._jwks[issuer.issuer]
        jwks.tried = self._clock()
        jwks.fetching = asyncio.get_running_loop().create_task(self._update(issuer, jwks))

    async def _update(self, issuer: Issuer, jwks: _Jwks) -> None:
        """Fetch the keys of an issuer; the old ones stay if that fails."""
        try:
            read = on_thread("jwks", _read_url, issuer.jwks_url)
            keys = self._to_keys(await within(2 * FETCH_TIMEOUT, read))
        except Exception as error:  # of the network, of JSON, of keys
            log.error("the keys of %s cannot be read: %s", issuer.jwks_url, error)
        else:
            if keys.keys() != jwks.keys.keys():
                self._verified.clear()  # tokens of a withdrawn key are not trusted any longer
            jwks.keys, jwks.fetched = keys, self._clock()
        finally:
            jwks.fetching = None

    def _to_keys(self, content: bytes) -> dict[str, Any]:
        keys = {}
        for row in json.loads(content)["keys"]:
            is_public = row.get("kty") in ("RSA", "EC", "OKP") and "d" not in row
            if is_public and row.get("use", "sig") == "sig":
                with suppress(self._jwt.PyJWTError):  # of a kind that this server does not know
                    keys[str(row.get("kid", ""))] = self._jwt.PyJWK(row, row.get("alg"))
        return keys


def _refused(reason: str) -> Unauthorized:
    return Unauthorized(f"The token is refused: {reason}")


def _read_url(url: str) -> bytes:
    """Return at most MAX_JWKS bytes from `url`.  Raises OSError or ValueError."""
    request = urllib.request.Request(url, headers={"accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=FETCH_TIMEOUT) as response:
            content: bytes = response.read(MAX_JWKS + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    if len(content) > MAX_JWKS:
        raise ValueError(f"it has over {MAX_JWKS} bytes")
    return content


def _limits_of(issuer: Issuer, claims: Mapping[str, Any]) -> Limits:
    """Return the limits of the claims; a claim that is no limit leaves the issuer's."""
    claim = claims.get(issuer.limits_claim) if issuer.limits_claim else None
    sent = claim if isinstance(claim, Mapping) else {}
    names = Limits.__slots__
    values = {name: sent.get(name) for name in names}
    limits = {
        name: value
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**53
        else getattr(issuer.limits, name)
        for name, value in values.items()
    }
    return Limits(**limits)


def _models_of(issuer: Issuer, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the servables of a subject; without a valid claim, a subject may use none of them."""
    if not issuer.models_claim:
        return issuer.models
    claim = claims.get(issuer.models_claim)
    models = claim if isinstance(claim, list) else str(claim or "").split()
    return tuple(name for name in models if isinstance(name, str)) or ("",)
