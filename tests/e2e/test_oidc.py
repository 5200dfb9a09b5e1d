"""Tokens of an identity provider in place of keys, by REST and gRPC."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from mindspore_serving.proto import ms_service_pb2 as ms
from tests.e2e.harness import Calls, config, serving, write_servable
from tests.frontends.tenants.issuing import Provider
from tests.waiting import PATIENCE

SOURCE = """
@method("y")
def double(x):
    return x * 2
"""
BODY = {"instances": [{"x": 21}]}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    started = Provider()
    yield started
    started.close()


@pytest.fixture(scope="module", params=[1, 2], ids=["one_process", "front_ends"])
def calls(provider: Provider, tmp_path_factory: Any, request: Any) -> Iterator[Calls]:
    place: Path = tmp_path_factory.mktemp("oidc")
    write_servable(place, "toy", SOURCE)
    path = place / "keys.yaml"
    path.write_text(
        f"issuers: [{{issuer: '{provider.name}', audience: serving, jwks_url: '{provider.url}', "
        "algorithms: [ES256], models_claim: models, requests_per_minute: 3}]"
    )
    path.chmod(0o600)
    options = {"front_ends": request.param, "use_status_codes": True}
    with serving(place, config(place, "toy"), api_keys=path, **options) as served:
        yield served


def post(calls: Calls, token: str, path: str = "/model/toy:double") -> httpx.Response:
    url, headers = f"http://127.0.0.1:{calls.http}{path}", {"authorization": f"Bearer {token}"}
    return httpx.post(url, json=BODY, headers=headers, timeout=PATIENCE)


def test_tokens_are_accepted_and_refused_by_rest_and_grpc(calls, provider, request):
    name = request.node.name
    good = provider.sign(name, models=["toy"])
    assert post(calls, good).json() == {"instances": [{"y": 42}]}
    refused = post(calls, provider.sign(aud="other", models=["toy"]))
    assert (refused.status_code, refused.headers["www-authenticate"] != "") == (401, True)
    assert "Audience" in refused.json()["error_msg"]
    chat = post(calls, provider.sign(exp=1), "/v1/chat/completions")
    assert (chat.status_code, chat.json()["error"]["code"]) == (401, "invalid_api_key")
    assert post(calls, "no.such.token").status_code == 401
    assert (
        httpx.post(f"http://127.0.0.1:{calls.http}/model/toy:double", json=BODY).status_code == 401
    )
    assert post(calls, provider.sign("other", models=["none"])).status_code == 403
    with grpc.insecure_channel(calls.grpc) as channel:
        predict = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")

        def call(token: str) -> ms.PredictReply:
            metadata = [("authorization", f"Bearer {token}")]
            return ms.PredictReply.FromString(predict(b"", metadata=metadata, timeout=PATIENCE))

        assert call(good).error_msg
        with pytest.raises(grpc.RpcError) as caught:
            call(provider.sign(iss="https://other.example.org"))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call(good)
        with pytest.raises(grpc.RpcError) as caught:
            call(good)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert provider.num_fetches in (1, 2)
