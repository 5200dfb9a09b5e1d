"""Calls that workers make while they run requests: whose they are, and methods in a circle."""

import pytest

from mindspore_serving.errors import StageFailed
from mindspore_serving.master.nested_calls import NestedCalls
from mindspore_serving.master.request import PendingRequest
from mindspore_serving.tracing.span import SERVABLE, VERSION
from tests.master.served import Worker


class Method:
    """In place of a served method."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.attributes = {SERVABLE: label, VERSION: 1}


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


@pytest.mark.parametrize("waiting", [(True, False), (False, True), (True, True)])
def test_servables_that_would_wait_for_each_other_are_refused(waiting):
    """Also in calls for different requests: each of their workers may be the last free one."""
    calls, (first, second) = NestedCalls(), waiting
    call = request()
    calls.begin(call, B, Worker(), [(request(), A)], waits=first)
    with pytest.raises(StageFailed, match="use add_stage in place of call"):
        calls.begin(request(), A, Worker(), [(request(), B)], waits=second)
    ended(calls, call)
    calls.begin(request(), A, Worker(), [(request(), B)], waits=second)


def test_servables_may_call_each_other_by_stages():
    calls, worker, pending = NestedCalls(), Worker(), [request(), request(), request()]
    calls.begin(pending[0], B, worker, [(request(), A)])
    calls.begin(pending[1], C, worker, [(request(), B)], waits=True)
    calls.begin(pending[2], A, worker, [(request(), B)])
    assert calls.made_by(worker) == pending


def test_a_worker_may_wait_for_a_model_of_its_servable():
    calls, worker, pending = NestedCalls(), Worker(), [request(), request()]
    model = Method("model")
    model.attributes = A.attributes
    calls.begin(pending[0], model, worker, [(request(), A)], waits=True)
    calls.begin(pending[1], B, worker, [(request(), A)], waits=True)
    assert calls.made_by(worker) == pending
