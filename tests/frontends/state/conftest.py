"""A server of PostgreSQL, and two stores of its database."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from mindspore_serving.frontends.state.database import Database
from mindspore_serving.frontends.state.store import StateStore
from tests.frontends.state.postgres import Postgres, serving_postgres

T = TypeVar("T")


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with serving_postgres() as running:
        yield running


@pytest.fixture
def empty(server: Postgres) -> Postgres:
    """The server, with an empty database."""
    store = StateStore(server.url)
    run(store, lambda db: db._execute("TRUNCATE records, pieces, claims"))
    asyncio.run(store.close())
    return server


@pytest.fixture
def stores(empty: Postgres) -> Iterator[tuple[StateStore, StateStore]]:
    """Two servers of one database, which is empty."""
    found = StateStore(empty.url), StateStore(empty.url)
    yield found
    for store in found:
        asyncio.run(store.close())


def run(store: StateStore, work: Callable[[Database], T]) -> T:
    return asyncio.run(store.run(work))
