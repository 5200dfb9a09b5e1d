"""A call beside a block begins when the block reports progress, and its errors are the block's."""

import threading

import pytest

from mindspore_serving import loading
from mindspore_serving.errors import StartError
from mindspore_serving.llm.progress import called_while_compiling


def test_a_call_beside_a_block_begins_when_loading_progresses() -> None:
    called = threading.Event()
    with called_while_compiling(called.set) as result:
        assert not called.wait(0.01)
        loading.reached(0.3)
        assert called.wait(60)
        assert result() is None


def test_a_call_without_progress_begins_when_its_result_is_read() -> None:
    with called_while_compiling(threading.current_thread) as result:
        assert result() is not threading.current_thread()
        assert result() is result()


def test_the_error_of_a_call_beside_a_block_is_raised_by_its_result() -> None:
    def fail() -> None:
        raise StartError("broken")

    with called_while_compiling(fail) as result:
        for _ in range(2):
            with pytest.raises(StartError, match="broken"):
                result()


def test_a_block_that_fails_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(StartError), called_while_compiling(list):
        raise StartError("broken")
    assert threading.active_count() == before
