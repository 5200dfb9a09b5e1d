from mindspore_serving.core.service import Reply
from mindspore_serving.errors import InvalidInputs


def test_failures_are_codes_and_texts():
    reply = Reply([b"1", b""], [None, InvalidInputs("bad")])
    assert reply.failures() == [None, (2, "bad")]


def test_a_reply_without_faults_has_no_failures():
    assert Reply([b"1"]).failures() is None
