"""State in PostgreSQL, which several servers share."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspore_serving.core.language_limits import LanguageLimits
from mindspore_serving.errors import StartError
from mindspore_serving.frontends.conversation_store import ConversationStore, NewItem
from mindspore_serving.frontends.response_store import ResponseStore, StoredResponse
from mindspore_serving.frontends.state.database import Database, PageRequest, Piece, Record
from mindspore_serving.frontends.state.files import add_file, find_file, read_file
from mindspore_serving.frontends.state.store import StateLost, StateStore
from tests.frontends.state.conftest import run
from tests.frontends.state.postgres import Postgres

LIMITS = LanguageLimits()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path: Path) -> Iterator[StateStore]:
    """A database of each kind, empty."""
    if request.param == "postgres":
        yield request.getfixturevalue("stores")[0]
        return
    store = StateStore(str(tmp_path))
    yield store
    asyncio.run(store.close())


def record(name: str, **fields) -> Record:
    return Record(name, "kind", "anna", 5, b"body", **fields)


def test_records_and_pieces_are_kept_in_both_databases(store: StateStore) -> None:
    def work(db: Database) -> None:
        db.add(record("a"), [Piece(0, b"\0\xff", b"k"), Piece(1, b"more")])
        db.add(record("b", is_open=True))
        db.add(record("c", expires=7))
        assert [one.id for one in db.page("kind", "anna", PageRequest(2))] == ["c", "b"]
        assert [one.id for one in db.page("kind", "anna", PageRequest(9, "b"))] == ["a"]
        assert [one.id for one in db.page("kind", "anna", PageRequest(9, "a", True))] == ["b", "c"]
        assert [one.id for one in db.list_open(("kind",))] == ["b"]
        assert db.usage("anna", ("kind", "other")) == (3, 18)
        assert db.pieces("a") == [Piece(0, b"\0\xff", b"k"), Piece(1, b"more")]
        assert [one.number for one in db.pieces_by_key("a", None, 9)] == [1, 0]
        assert db.find_piece("a", b"k") == Piece(0, b"\0\xff", b"k")
        assert (db.remove_piece("a", 0), db.remove_piece("a", 0)) == (True, False)
        assert db.next_number("a") == 2
        db.replace("b", b"longer", is_open=False)
        db.renew("a", 9)
        assert [one.id for one in db.page("kind", "anna", PageRequest(1))] == ["a"]
        assert db.find("kind", "anna", "b") == Record("b", "kind", "anna", 5, b"longer", size=6)
        assert db.find("kind", "bert", "b") is None
        assert db.find("kind", "anna", "a\0") is None
        assert db.page("kind", "anna", PageRequest(1, "a\0")) == []
        assert (db.expire(8), db.expire(8)) == (1, 0)
        db.add(record("d"))
        assert [one.id for one in db.page("kind", "anna", PageRequest(1))] == ["d"]
        db.remove("a", "b", "d")
        assert (db.usage("anna", ("kind",)), db.pieces("a")) == ((0, 0), [])

    run(store, work)


def test_work_that_fails_is_undone(store: StateStore) -> None:
    def fail(db: Database) -> None:
        db.add(record("a"))
        raise ValueError("undone")

    with pytest.raises(ValueError, match="undone"):
        run(store, fail)
    assert run(store, lambda db: db.find("kind", "anna", "a")) is None


def test_two_servers_share_files_responses_and_conversations(stores) -> None:
    async def work(first: StateStore, second: StateStore) -> None:
        await add_file(first, Record("f", "file", "anna", 1, b"{}", is_open=True), b"abc", LIMITS)
        assert (await find_file(second, "anna", "f")).size == 5
        assert [part async for part in read_file(second, "f")] == [b"abc"]
        response = StoredResponse(b"{}", (b"in",), (b"out",), (b"event",))
        ResponseStore(first).add("anna", "r", response, LIMITS)
        assert await ResponseStore(second).find("anna", "r") == response
        item = NewItem({}, "i", "item")
        made = await ConversationStore(first).create("anna", {}, [item], LIMITS)
        assert await ConversationStore(second).items("anna", made.id) == (b'{"id":"i"}',)

    asyncio.run(work(*stores))


def test_a_response_fails_once_its_server_has_ended(stores) -> None:
    first, second = (ResponseStore(store) for store in stores)

    async def status() -> str:
        second.fail_interrupted()
        found = await second.find("anna", "r")
        assert found is not None
        return json.loads(found.body)["status"]

    async def work() -> None:
        body = StoredResponse(b'{"status":"in_progress"}', (), ())
        first.add("anna", "r", body, LIMITS, is_open=True)
        assert await status() == "in_progress"
        first.renew("r")
        assert await status() == "in_progress"
        await stores[0].run(lambda db: db._execute("UPDATE claims SET until = until - 31"))
        assert await status() == "failed"

    asyncio.run(work())


def test_a_claim_excludes_the_other_server(stores) -> None:
    first, second = stores
    claim = {store: lambda db, one=store: db.claim("a", one.holder, 30) for store in stores}
    assert (run(first, claim[first]), run(second, claim[second])) == (True, False)
    assert run(first, claim[first])  # renewed
    run(second, lambda db: db.release("a", second.holder))  # which is not its own
    assert not run(second, claim[second])
    run(first, lambda db: db._execute("UPDATE claims SET until = until - 31"))
    assert run(second, claim[second])
    run(second, lambda db: db.release("a", second.holder))
    assert run(first, claim[first])


def test_a_server_connects_again_after_its_database(server: Postgres, stores) -> None:
    first, _ = stores
    run(first, lambda db: db.add(record("a")))
    server.stop()
    with pytest.raises(StateLost):
        run(first, lambda db: db.find("kind", "anna", "a"))
    server.start()
    assert run(first, lambda db: db.find("kind", "anna", "a")) is not None


def test_a_wrong_url_is_refused_without_its_password(server: Postgres) -> None:
    with pytest.raises(StartError, match="cannot be used") as refused:
        StateStore(server.url.replace("tester", "nobody"))
    assert "secret" not in str(refused.value)
