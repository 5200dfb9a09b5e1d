"""What became of a request: a failure that is raised keeps nothing alive."""

import weakref

import pytest

from mindspore_serving.core.service import Reply
from mindspore_serving.errors import DeadlineExceeded


class Body:
    """Stands for what a front end holds for a request."""


def ask():
    body, reply = Body(), Reply(failure=DeadlineExceeded("too late"))
    held = weakref.ref(body)
    try:
        reply.raise_failure()
    except DeadlineExceeded:
        return held


@pytest.mark.usefixtures("uncollected")
def test_a_failed_request_is_freed_without_the_garbage_collector():
    assert ask()() is None


def test_a_failure_is_raised_unchanged():
    failure = DeadlineExceeded("too late")
    with pytest.raises(DeadlineExceeded) as raised:
        Reply(failure=failure).raise_failure()
    assert raised.value is failure
