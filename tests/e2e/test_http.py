"""Bodies, paths and verbs that are wrong: every one gets a readable answer."""

import json
import os

import pytest

from tests.e2e import toys
from tests.e2e.harness import workers
from tests.e2e.toys import ANSWER, GOOD

SOURCE = toys.SOURCE


@pytest.fixture(autouse=True)
def still_well(calls):
    before = workers(os.getpid())
    yield
    assert calls.http_call("POST", "/model/toy:same", GOOD) == (200, ANSWER)
    assert workers(os.getpid()) == before


def error_of(calls, body, path="/model/toy:same") -> str:
    status, answer = calls.http_call("POST", path, body)
    assert status == 200
    assert list(json.loads(answer)) == ["error_msg"]
    return json.loads(answer)["error_msg"]


# --- bodies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "http message invalid"),
        (b"{", "Illegal JSON format"),
        (b"null", "key 'instances' expects to exist once, but actually 0 times"),
        (b"[]", "key 'instances' expects to exist once, but actually 0 times"),
        (b"{}", "key 'instances' expects to exist once, but actually 0 times"),
        (b'{"instances":[]}', "instances value is array type, but no value"),
        (b'{"instances":{}}', "json object, value is empty"),
        (b'{"instances":[{}]}', "json array, instance is object type, but no value"),
        (b'{"instances":1}', "instances no key mode is not supported"),
        (b'{"instances":[1]}', "instances no key mode is not supported"),
        (b'{"instances":[{"x":1},1]}', "json array, instance is not object type"),
        (b'{"instances":{"":1}}', "string key is empty"),
        (b'{"instances":{"x":null}}', "json value is null, it is not supported"),
        (b'{"instances":{"x":[]}}', "json array, shape is empty"),
        (b'{"instances":{"x":[[]]}}', "json array, data type is unknown"),
        (b'{"instances":{"x":[1,2.5]}}', "json array, elements type is not equal"),
        (b'{"instances":{"x":[[1,2],[3]]}}', "the dim 1 expected to be 2"),
        (b'{"instances":{"x":{"b64":"!!!!"}}}', "is illegal b64 encode string"),
        (b'{"instances":{"x":{"b64":"AAA"}}}', "is illegal b64 encode string"),
        (b'{"instances":{"x":{"b64":"AAAA","type":"what"}}}', "is illegal"),
        (b'{"instances":{"x":{"b64":"AAAA","type":"fp32","shape":[2]}}}', "size is not matched"),
        (
            b'{"instances":{"x":{"b64":"","type":"int8","shape":[4611686018427387904,4]}}}',
            "invalid shape value",
        ),
        (b'{"instances":{"x":{"b64":"","type":"int8","shape":[-1]}}}', "unsigned integer"),
        (b'{"instances":{"x":1e999}}', "Illegal JSON format"),
        (b'{"instances":{"x":nan}}', "Illegal JSON format"),
        (b'{"instances":{"x":-NaN}}', "Illegal JSON format"),
        (b'{"instances":{"x":99999999999999999999}}', "integer is out of the range of int32"),
        (b'{"instances":{"x":"\xff\xfe"}}', "Illegal JSON format"),
        (b'{"instances":{"x":"\\ud800"}}', "Illegal JSON format"),
        (b"\x00" * 100, "Illegal JSON format"),
        (b'{"instances":' + b"[" * 100_000, "nested too deeply"),
        (b'{"instances":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "nested too deeply"),
        (b'{"instances":' + b'{"x":' * 50_000 + b"1" + b"}" * 50_001, "nested too deeply"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_body_that_is_no_request_is_refused(calls, body, words):
    assert words in error_of(calls, body)


def test_other_keys_beside_instances_are_ignored(calls):
    body = b'{"more":[{"deep":{}}],"instances":{"x":1},"y":null}'
    assert calls.http_call("POST", "/model/toy:same", body) == (200, ANSWER)


# --- paths and verbs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/model/:same", "the keyword:[model] must contain"),
        ("/model/toy", "the keyword:[service method] must contain"),
        ("/model/toy:nothing", "method is not available"),
        ("/model/nobody:same", "servable is not available"),
        ("/model/toy/version/-1:same", "version number range failed"),
        ("/model/toy/version/99999999999999999999:same", "version"),
        ("/model/toy/version/x:same", "[version] value invalid"),
        ("/model/toy/version/7:same", "servable is not available"),
        ("/model/..%2f..%2fetc:same", "servable is not available"),
        ("/model/toy%00:same", "servable is not available"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(calls, path, words):
    assert words in error_of(calls, GOOD, path)


@pytest.mark.parametrize(
    ("path", "status"), [("/", 405), ("/nothing", 404), ("/v1/model/a:b", 404)]
)
def test_a_path_of_no_protocol_is_an_error_of_http(calls, path, status):
    assert calls.http_call("POST", path, GOOD)[0] == status


@pytest.mark.parametrize("verb", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
def test_only_post_is_served(calls, verb):
    status, body = calls.http_call(verb, "/model/toy:same", GOOD)
    if verb == "BREW":
        assert status == 400
    else:
        assert (status, json.loads(body)["error_msg"]) == (
            200,
            "http message only support POST right now",
        )
