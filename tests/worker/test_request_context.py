"""Whose requests a thread runs: what stands in front of the lines that it logs."""

from collections.abc import Iterator

import pytest

from mindspore_serving import log
from mindspore_serving.worker import request_context
from mindspore_serving.worker.job import Job, RunningPart


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    yield
    request_context.leave()


def jobs(*names: str) -> list[Job]:
    parts = [
        RunningPart(number, None, None, None, request_id=name)  # type: ignore[arg-type]
        for number, name in enumerate(names)
    ]
    return [Job(part, 0, []) for part in parts]


def test_the_requests_of_a_batch_are_all_named() -> None:
    request_context.enter_all(jobs("a", "b", "c"), 0, is_batch=True)
    assert log.request_id.get() == "a,b,c"


def test_of_a_large_batch_the_first_are_named_and_the_rest_counted() -> None:
    names = [f"r{number}" for number in range(1000)]
    request_context.enter_all(jobs(*names), 0, is_batch=True)
    shown = log.request_id.get().split(",")
    assert shown == [
        *names[: request_context.MAX_NAMED],
        f"{1000 - request_context.MAX_NAMED} more",
    ]
