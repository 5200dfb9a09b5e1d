"""Whose requests a thread runs: what stands in front of the lines that it logs."""

from collections.abc import Iterator

import pytest

from mindspore_serving import log
from mindspore_serving.worker import current
from mindspore_serving.worker.job import Job, RunningPart


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    yield
    current.leave()


def jobs(*names: str) -> list[Job]:
    parts = [
        RunningPart(number, None, None, None, request_id=name)  # type: ignore[arg-type]
        for number, name in enumerate(names)
    ]
    return [Job(part, 0, []) for part in parts]


def test_the_requests_of_a_batch_are_all_named() -> None:
    current.enter_all(jobs("a", "b", "c"), 0, is_batch=True)
    assert log.request_id.get() == "a,b,c"


def test_of_a_large_batch_the_first_are_named_and_the_others_counted() -> None:
    names = [f"r{number}" for number in range(1000)]
    current.enter_all(jobs(*names), 0, is_batch=True)
    shown = log.request_id.get().split(",")
    assert shown == [*names[: current.MOST_NAMED], f"{1000 - current.MOST_NAMED} more"]
