"""A request cut into parts, and the parts' answers joined in order."""

import pytest

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import Code, InvalidInputs, StageFailed
from mindspore_serving.master.request import PendingRequest, split_parts


class Caller:
    """Keeps what a request replied and with which code it ended."""

    def __init__(self):
        self.replies, self.codes = [], []
        self.request = PendingRequest("m", self.replies.append, self.on_done, 0.0)

    def on_done(self, request, code):
        assert request is self.request
        self.codes.append(code)

    def split(self, count, workers, batch_size=1):
        chunks = [b"%d" % number for number in range(count)]
        self.request.parts = split_parts(
            self.request, "ms_json_items", chunks, num_workers=workers, batch_size=batch_size
        )
        return self.request.parts


@pytest.mark.parametrize(
    ("count", "workers", "batch_size", "sizes"),
    [
        (1, 1, 1, [1]),
        (6, 2, 1, [3, 3]),
        (5, 2, 1, [3, 2]),
        (5, 2, 2, [4, 1]),  # whole batches: half of 5 is 3, rounded up to 4
        (7, 3, 4, [4, 3]),  # the third worker gets nothing
        (2, 8, 1, [1, 1]),
        (100, 4, 32, [32, 32, 32, 4]),
        (10, 0, 1, [10]),
    ],
)
def test_instances_are_shared_over_workers_in_whole_batches(count, workers, batch_size, sizes):
    parts = Caller().split(count, workers, batch_size)
    assert [len(part.chunks) for part in parts] == sizes


def test_the_parts_hold_every_instance_once_and_in_order():
    parts = Caller().split(7, 3)
    assert [chunk for part in parts for chunk in part.chunks] == [b"%d" % i for i in range(7)]
    assert [part.index for part in parts] == [0, 1, 2]
    assert [part.first for part in parts] == [0, 3, 6]
    assert {part.codec for part in parts} == {"ms_json_items"}


def test_answers_are_joined_in_the_order_of_the_request():
    caller = Caller()
    first, second = caller.split(3, 2)
    caller.request.answer(second, Reply([b"c"]))
    assert caller.replies == []
    caller.request.answer(first, Reply([b"a", b"b"]))
    assert [list(reply.instances) for reply in caller.replies] == [[b"a", b"b", b"c"]]
    assert caller.replies[0].faults is None
    assert caller.codes == [Code.OK]


def test_faults_keep_their_instance():
    caller = Caller()
    fault = StageFailed("raised")
    first, second = caller.split(3, 2)
    caller.request.answer(first, Reply([b"a", b"b"]))
    caller.request.answer(second, Reply([b""], [fault]))
    assert caller.replies == [Reply([b"a", b"b", b""], [None, None, fault])]


def test_a_part_that_failed_as_a_whole_fails_the_request():
    caller = Caller()
    first, second = caller.split(2, 2)
    failure = InvalidInputs("bad")
    caller.request.answer(second, Reply(failure=failure))
    caller.request.answer(first, Reply([b"a"]))
    assert caller.replies == [Reply(failure=failure)]
    assert caller.codes == [Code.INVALID_INPUTS]


def test_a_request_of_a_single_part_gets_the_reply_unchanged():
    caller = Caller()
    (part,) = caller.split(1, 1)
    reply = Reply([b"a"])
    caller.request.answer(part, reply)
    assert caller.replies[0] is reply


def test_a_stream_ends_with_its_last_reply():
    caller = Caller()
    (part,) = caller.split(1, 1)
    caller.request.answer(part, Reply([b"a"], is_last=False))
    assert not caller.request.is_done
    caller.request.answer(part, Reply([b"b"]))
    assert caller.request.is_done
    assert [reply.instances for reply in caller.replies] == [[b"a"], [b"b"]]
    assert caller.codes == [Code.OK]


def test_nothing_is_replied_after_cancel():
    caller = Caller()
    (part,) = caller.split(1, 1)
    caller.request.cancel()
    caller.request.answer(part, Reply([b"a"]))
    caller.request.fail(InvalidInputs("late"))
    caller.request.cancel()
    assert caller.replies == []
    assert caller.codes == [Code.CANCELLED]


def test_cancel_after_the_answer_does_nothing():
    caller = Caller()
    (part,) = caller.split(1, 1)
    caller.request.answer(part, Reply([b"a"]))
    caller.request.cancel()
    assert len(caller.replies) == 1
    assert caller.codes == [Code.OK]


def test_only_the_first_failure_is_replied():
    caller = Caller()
    caller.request.fail(InvalidInputs("first"))
    caller.request.fail(StageFailed("second"))
    assert [str(reply.failure) for reply in caller.replies] == ["first"]
