"""Tokens of an identity provider, whose keys are fetched from a real HTTP server."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Iterator

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from mindspore_serving.errors import ServableUnavailable, Unauthorized
from mindspore_serving.frontends.keys import Keys, TenantTable
from mindspore_serving.frontends.tenants import issuers
from mindspore_serving.frontends.tenants.issuers import Issuer, TokenVerifier
from mindspore_serving.frontends.tenants.limits import Limits
from tests.frontends.tenants.issuing import AUDIENCE, Provider


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def provider() -> Iterator[Provider]:
    started = Provider()
    yield started
    started.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(provider: Provider, clock: Clock) -> TokenVerifier:
    issuer = Issuer(
        provider.name, AUDIENCE, provider.url, ("ES256", "RS256"), limits_claim="limits",
        models_claim="models", limits=Limits(tokens_per_day=100), weights=(("big", 2.0),),
    )  # fmt: skip
    return TokenVerifier([issuer], TenantTable(), clock)


async def find(verifier: TokenVerifier, token: str):
    await verifier.prepare(token.encode())
    return verifier.find(token.encode())


async def refusal(verifier: TokenVerifier, token: str) -> str:
    with pytest.raises(Unauthorized) as refused:
        await find(verifier, token)
    assert token not in str(refused.value)
    return str(refused.value)


async def test_claims_become_a_tenant_with_limits(verifier, provider):
    claims = {"limits": {"tokens_per_minute": 7, "max_requests": -1, "no": 1}, "models": ["big"]}
    tenant = await find(verifier, provider.sign(**claims))
    assert tenant.name == "anna"
    assert tenant.key.limits == Limits(tokens_per_minute=7, tokens_per_day=100)
    assert (tenant.key.models, tenant.key.weight_of("big")) == (("big",), 2.0)
    again = await find(verifier, provider.sign(models="big small"))
    assert again is tenant
    assert tenant.key.models == ("big", "small")
    assert await find(verifier, provider.sign("bert")) is not tenant


async def test_a_subject_without_the_claim_of_models_may_use_none(verifier, provider):
    tenant = await find(verifier, provider.sign())
    assert tenant.key.models == ("",)


async def test_tokens_with_wrong_claims_are_refused(verifier, provider):
    assert "expired" in await refusal(verifier, provider.sign(exp=int(time.time()) - 3600))
    assert "Audience" in await refusal(verifier, provider.sign(aud="other"))
    assert "no JWT of a configured issuer" in await refusal(verifier, provider.sign(iss="other"))
    for missing in ("exp", "aud", "sub"):
        assert missing in await refusal(verifier, provider.sign(**{missing: None}))
    assert "not yet valid" in await refusal(verifier, provider.sign(nbf=int(time.time()) + 3600))


async def test_tokens_of_other_keys_and_algorithms_are_refused(verifier, provider):
    good = provider.sign()
    head, body, _ = good.split(".")
    none = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "key-1"}).encode())
    unsigned = f"{none.rstrip(b'=').decode()}.{body}."
    assert "algorithm is not accepted" in await refusal(verifier, unsigned)
    public = provider.key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    claims = jwt.decode(good, options={"verify_signature": False})
    unsigned = jwt.encode(claims, "x" * 32, "HS256", {"kid": "key-1"}).rpartition(".")[0]
    mac = hmac.digest(public, unsigned.encode(), "sha256")
    symmetric = f"{unsigned}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert "algorithm is not accepted" in await refusal(verifier, symmetric)
    assert "ignature" in await refusal(verifier, f"{head}.{body}.{'A' * 86}")
    provider.rotate("RS256")
    forged = jwt.encode(claims, provider.key, "RS256", {"kid": "key-1"})
    assert await refusal(verifier, forged)


@pytest.mark.parametrize(
    "token",
    [
        "ey.ey.ey",
        "eyJ.eyJ.",
        "..",
        "e" * 9000 + "..",
        "eyJhbGciOiJFUzI1NiJ9.W10.x",
    ],
)
async def test_texts_that_are_no_tokens_are_refused(verifier, token, provider):
    await refusal(verifier, token)
    assert provider.num_fetches == 0


async def test_a_new_key_of_the_issuer_is_fetched_and_the_old_is_not_trusted(
    verifier, provider, clock
):
    old = provider.sign()
    await find(verifier, old)
    provider.rotate("RS256")
    assert "not among those" in await refusal(verifier, provider.sign())
    clock.now += issuers.FETCH_INTERVAL
    assert (await find(verifier, provider.sign())).name == "anna"
    assert "not among those" in await refusal(verifier, old)
    assert provider.num_fetches == 2


async def test_unknown_keys_do_not_make_many_fetches(verifier, provider, clock):
    await find(verifier, provider.sign())
    real, good = provider.key_id, provider.sign()
    for number in range(200):
        provider.key_id = f"unknown-{number}"
        await refusal(verifier, provider.sign())
    clock.now += issuers.FETCH_INTERVAL
    for number in range(200):
        provider.key_id = f"unknown-{number}"
        await refusal(verifier, provider.sign())
    provider.key_id = real
    assert (await find(verifier, good)).name == "anna"
    assert provider.num_fetches == 2


async def test_keys_stay_while_their_issuer_is_down(verifier, provider, clock):
    with pytest.raises(ServableUnavailable, match="being fetched"):
        verifier.find(provider.sign().encode())
    await find(verifier, provider.sign())
    provider.is_down = True
    clock.now += issuers.MAX_AGE + 1
    fresh = provider.sign("bert", exp=int(clock.now) + 900)
    assert (await find(verifier, fresh)).name == "bert"
    task = verifier._jwks[provider.name].fetching
    if task is not None:
        await asyncio.wait([task])
    assert (await find(verifier, provider.sign("carl"))).name == "carl"


async def test_a_token_is_not_trusted_after_its_end(verifier, provider, clock, monkeypatch):
    token = provider.sign(exp=int(clock.now) - 10)  # clocks may differ
    assert (await find(verifier, token)).name == "anna"
    monkeypatch.setattr(issuers, "LEEWAY", 0.0)
    assert (await find(verifier, token)).name == "anna"
    clock.now += 25
    assert "expired" in await refusal(verifier, token)


async def test_keys_and_tokens_are_accepted_beside_each_other(verifier, provider):
    keys = Keys(["first-of-all-keys"])
    keys.tokens = verifier
    token = provider.sign().encode()
    assert keys.token_in({b"authorization": b"Bearer first-of-all-keys"}) == b""
    assert keys.token_in({b"authorization": b"Bearer " + token}) == token
    await keys.prepare(token)
    assert keys.find(b"Bearer " + token).name == "anna"
    assert keys.find(b"Bearer first-of-all-keys").key.secret == "first-of-all-keys"
    with pytest.raises(Unauthorized, match="missing or wrong"):
        keys.find(b"Bearer other")
