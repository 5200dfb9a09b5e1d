"""The classic RESTful protocol as functions."""

import json

import pytest

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import DeadlineExceeded, InvalidInputs, NotFound, StageFailed
from mindspore_serving.frontends.mindspore import rest as ms_rest


def test_a_route_is_servable_version_and_method():
    assert ms_rest.find_route(b"/model/add/version/2:add_cast") == ("add", 2, "add_cast")
    assert ms_rest.find_route(b"/model/add:add_cast") == ("add", 0, "add_cast")


def test_a_route_is_parsed_once():
    target = b"/model/once:only"
    assert ms_rest.find_route(target) is ms_rest.find_route(target)


def test_many_different_routes_take_bounded_memory():
    for number in range(10_000):
        ms_rest.find_route(b"/model/add:m%d" % number)
    assert len(ms_rest._routes) <= 4096


def test_a_request_without_a_body_is_invalid():
    route = ms_rest.find_route(b"/model/add:m")
    with pytest.raises(InvalidInputs, match="^http message invalid: the body is empty"):
        ms_rest.to_request(route, b"", None)


@pytest.mark.parametrize(
    ("header", "seconds"), [(b"1", 1.0), (b"0.25", 0.25), (b"1e6", 1e6), (b" 2 ", 2.0)]
)
def test_a_timeout_is_in_seconds(header, seconds):
    assert ms_rest.to_timeout(header) == seconds


@pytest.mark.parametrize("header", [b"", b"soon", b"0", b"-1", b"nan", b"inf", b"1000001", b"5s"])
def test_invalid_timeouts_are_refused_with_their_value(header):
    with pytest.raises(InvalidInputs) as caught:
        ms_rest.to_timeout(header)
    assert repr(header.decode()) in str(caught.value)
    assert "expected seconds, over 0 and at most 1e6" in str(caught.value)


def test_a_very_long_timeout_header_is_not_repeated():
    with pytest.raises(InvalidInputs) as caught:
        ms_rest.to_timeout(b"x" * 10_000)
    assert len(str(caught.value)) < 200


def body_of(reply):
    status, body = ms_rest.to_body(reply)
    return status, json.loads(body)


def test_a_good_reply_is_its_instances():
    assert body_of(Reply([b'{"y":1}', b'{"y":2}'])) == (200, {"instances": [{"y": 1}, {"y": 2}]})


def test_a_failed_instance_has_its_own_error():
    reply = Reply([b'{"y":1}', b""], [None, StageFailed("raised")])
    assert body_of(reply) == (200, {"instances": [{"y": 1}, {"error_msg": "raised"}]})


def test_a_reply_with_the_same_error_for_all_instances_is_an_error():
    reply = Reply([b"", b""], [StageFailed("raised"), StageFailed("raised")])
    assert body_of(reply) == (500, {"error_msg": "raised"})


@pytest.mark.parametrize(
    ("failure", "status"),
    [(InvalidInputs("no"), 400), (NotFound("no"), 404), (DeadlineExceeded("no"), 504)],
)
def test_a_failed_request_is_an_error_with_its_status(failure, status):
    assert body_of(Reply(failure=failure)) == (status, {"error_msg": "no"})
