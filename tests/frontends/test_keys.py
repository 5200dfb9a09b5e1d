"""API keys: what is accepted as one, and that calls of every form want one."""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from mindspore_serving.errors import Unauthorized
from mindspore_serving.frontends.keys import Keys
from tests.e2e.harness import Calls, config, serving
from tests.llm import chatty
from tests.waiting import PATIENCE

KEY = "a-key-that-is-long-enough"
OPTIONS = {"dtype": "f32", "kv_cache_memory": 8 << 20}
BODY = json.dumps({"instances": [{"prompt": "x", "max_tokens": 1}]})


def test_without_keys_everything_is_accepted():
    assert not Keys()


def test_any_of_several_keys_is_accepted():
    keys = Keys(["first-of-all-keys", "second-of-all-keys"])
    for key in (b"first-of-all-keys", b"second-of-all-keys"):
        assert keys.find(b"Bearer " + key).key.secret == key.decode()
        assert keys.find(b"Basic " + base64.b64encode(b"me:" + key)).key.secret == key.decode()
    for wrong in (b"Bearer first-of-all-keyssecond-of-all-keys", b"", None):
        with pytest.raises(Unauthorized, match="missing or wrong"):
            keys.find(wrong)


def test_a_key_can_be_in_the_header_of_anthropics_clients():
    keys = Keys(["first-of-all-keys", "second-of-all-keys"])
    assert keys.find(None, b"first-of-all-keys").key.secret == "first-of-all-keys"
    assert keys.find(b"Bearer second-of-all-keys", b"").key.secret == "second-of-all-keys"
    with pytest.raises(Unauthorized):
        keys.find(b"Bearer wrong", b"Bearer first-of-all-keys")


def test_a_password_may_have_a_colon():
    keys = Keys(["with:colon:in:it"])
    assert keys.find(b"Basic " + base64.b64encode(b"me:with:colon:in:it"))


def test_keys_are_looked_up_by_their_digests_and_not_shown():
    keys = Keys([KEY])
    assert list(keys.tenants) == [hashlib.sha256(KEY.encode()).digest()]
    (tenant,) = keys.tenants.values()
    assert KEY not in f"{tenant.key!r} {tenant.name} {vars(keys)!r}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    chatty.build(directory)
    return directory


@pytest.fixture(scope="module")
def locked(place: Path) -> Iterator[Calls]:
    """A server that wants KEY."""
    with serving(place, config(place, "chatty", llm_options=OPTIONS), api_keys=[KEY]) as found:
        yield found


OTHERS = [
    ("POST", "/model/chatty/version/1:generate"),
    ("POST", "/model/chatty:generate_stream"),
    ("POST", "/model/chatty:no_such"),
    ("OPTIONS", "/v1/models"),
]


def test_calls_of_every_form_want_a_key(locked):
    for verb, path in OTHERS:
        status, _ = locked.http_call(verb, path, b"{}" if verb == "POST" else None)
        assert status == 401, (verb, path, status)
    assert locked.http_call("GET", "/health") == (200, b"ready")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer   {KEY} ", 200),
        ("Basic " + base64.b64encode(f"who:{KEY}".encode()).decode(), 200),
        ("Basic " + base64.b64encode(f":{KEY}".encode()).decode(), 200),
        ("Basic " + base64.b64encode(KEY.encode()).decode(), 401),
        ("Basic " + base64.b64encode(f"{KEY}:who".encode()).decode(), 401),
        (f"Basic {KEY}", 401),
        (f"Digest {KEY}", 401),
        (KEY, 401),
        (f"Bearer {KEY}, Bearer {KEY}", 401),
        (f"Bearer {KEY * 100}", 401),
        ("Bearer \xff\xfe", 401),
    ],
)
def test_keys_come_as_bearer_or_as_password(locked, header, expected):
    headers = {"Authorization": header}
    assert locked.http_call("GET", "/v1/models", headers=headers)[0] == expected
    assert locked.http_call("POST", "/model/chatty:generate", BODY, headers)[0] == expected
    assert locked.http_call("POST", "/model/chatty:generate_stream", BODY, headers)[0] == expected


@pytest.mark.parametrize("given", [None, "", "wrong", KEY[:-1], KEY + "x"])
def test_grpc_wants_a_key_too(locked, given):
    metadata = [] if given is None else [("authorization", f"Bearer {given}")]
    with grpc.insecure_channel(locked.grpc) as channel:
        one = channel.unary_unary("/mindspore.serving.proto.MSService/Predict")
        many = channel.unary_stream("/mindspore.serving.proto.MSService/PredictStream")
        with pytest.raises(grpc.RpcError) as refused:
            one(b"", metadata=metadata, timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as refused:
            list(many(b"", metadata=metadata, timeout=PATIENCE))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        good = [("authorization", f"Bearer {KEY}")]
        assert one(b"", metadata=good, timeout=PATIENCE)


def test_a_key_is_not_written_anywhere(locked, place):
    headers = {"Authorization": f"Bearer {KEY}"}
    for path in ("/servables", "/metrics", "/v1/models", "/info", "/"):
        assert KEY.encode() not in locked.http_call("GET", path, headers=headers)[1]
    locked.http_call("POST", "/v1/completions", b"[", headers)
    written = [
        file for file in place.rglob("*") if file.is_file() and file.stat().st_size < 1 << 20
    ]
    assert any("serving_logs" in str(file) for file in written)
    assert not any(KEY.encode() in file.read_bytes() for file in written)
