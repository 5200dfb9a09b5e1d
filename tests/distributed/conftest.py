"""Gangs for tests of this directory."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.distributed.opening import Opening


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def opening(pool: ThreadPoolExecutor) -> Iterator[Callable[..., Opening]]:
    opened: list[Opening] = []

    def make(rank_size: int = 2, stage_size: int = 1, **how: Any) -> Opening:
        opened.append(Opening(pool, rank_size, stage_size, **how))
        return opened[-1]

    yield make
    for one in opened:
        if not one._opened.done():
            one.end_wait()
        for connection in one.connections:  # the model waits for their ends
            connection.close()
        if one._opened.exception() is None:
            one.model.close()
