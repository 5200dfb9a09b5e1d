"""Calls that workers make while they run requests: whose they are, and methods in a circle."""

import pytest

from mindspore_serving.errors import StageFailed
from mindspore_serving.master.nested_calls import NestedCalls
from mindspore_serving.master.request import PendingRequest
from tests.master.served import Worker


class Method:
    """In place of a served method."""

    def __init__(self, label: str) -> None:
        self.label = label


A, B, C = Method("a"), Method("b"), Method("c")


def request() -> PendingRequest:
    return PendingRequest("m", lambda reply: None, lambda request, code: None, 0.0)


def ended(calls: NestedCalls, of: PendingRequest) -> list[PendingRequest]:
    of.is_done = True
    return calls.end(of)


def test_calls_end_with_the_last_request_for_which_they_are_made():
    calls, first, second, call = NestedCalls(), request(), request(), request()
    calls.begin(call, B, Worker(), [(first, A), (second, A)])
    assert ended(calls, first) == []
    assert ended(calls, second) == [call]


def test_calls_that_are_answered_are_forgotten():
    calls, outer, call = NestedCalls(), request(), request()
    calls.begin(call, B, Worker(), [(outer, A)])
    assert ended(calls, call) == []
    assert not calls
    assert ended(calls, outer) == []


def test_calls_of_a_worker_are_listed():
    calls, worker, call, other = NestedCalls(), Worker(), request(), request()
    calls.begin(call, B, worker, [(request(), A)])
    calls.begin(other, B, Worker(), [(request(), A)])
    assert calls.made_by(worker) == [call]


def test_a_method_in_its_own_chain_of_calls_is_refused():
    calls, outer, inner = NestedCalls(), request(), request()
    calls.begin(inner, B, Worker(), [(outer, A)])
    calls.begin(request(), C, Worker(), [(inner, B)])
    with pytest.raises(StageFailed, match="cannot call itself: a -> b -> a"):
        calls.begin(request(), A, Worker(), [(inner, B)])
    with pytest.raises(StageFailed, match="cannot call itself: a -> a"):
        calls.begin(request(), A, Worker(), [(outer, A)])
