"""Clients of a gRPC server that take what they can: headers without messages, messages that come in
drops, messages that are never answered, streams.  Calls of others are answered all the same."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mindspore_serving.aio import BackgroundLoop
from tests.frontends.grpc.test_limits import (
    LARGEST,
    MEGABYTE,
    PREDICT,
    PREDICT_STREAM,
    Served,
    ask,
    message,
    serving,
    status_of,
)
from tests.frontends.raw_grpc import RawGrpc
from tests.waiting import PATIENCE

NUM_CALLS = 25
ROOM = 20 * LARGEST  # as the defaults: 2 GB, and messages of 100 MB
SIZES = (0, 1000, MEGABYTE, 3 * MEGABYTE)
NUM_CONNECTIONS = 4


def open_calls(served: Served, path: str) -> list[RawGrpc]:
    """Headers of many calls by one connection."""
    client = served.raw()
    for _ in range(NUM_CALLS):
        client.call(path)
    return until_read([client])


def open_by_many(served: Served, path: str) -> list[RawGrpc]:
    """Headers of many calls, each by a connection of its own."""
    clients = [served.raw() for _ in range(NUM_CALLS)]
    for client in clients:
        client.call(path)
    return until_read(clients)


def begin_messages(served: Served, path: str) -> list[RawGrpc]:
    """The beginning of many of the largest messages, by some connections."""
    clients = [served.raw() for _ in range(NUM_CONNECTIONS)]
    for client in clients:
        for _ in range(NUM_CALLS // NUM_CONNECTIONS):
            client.begin(client.call(path), LARGEST)
    return until_read(clients)


def until_read(clients: list[RawGrpc]) -> list[RawGrpc]:
    """The clients, when the server has read what they have sent."""
    for client in clients:
        client.wait_until_closed(client.call("/no.Service/Method"))
    return clients


@contextmanager
def dripping(clients: list[RawGrpc]) -> Iterator[None]:
    """While each connection sends a byte of each of its calls now and then."""
    is_over = threading.Event()

    def drip() -> None:
        while not is_over.wait(0.02):
            for client in clients:
                client.drip()

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def statuses(served: Served, rounds: int = 4) -> list[str]:
    """Of calls by connections of their own, some at once, again and again."""
    found = []
    for _ in range(rounds):
        calls = [served.call(message(size), is_new=True) for size in SIZES]
        found += [status_of(call) for call in calls]
    return found


@pytest.mark.parametrize("path", [PREDICT, PREDICT_STREAM])
@pytest.mark.parametrize("attack", [open_calls, open_by_many, begin_messages])
def test_calls_without_a_message_keep_no_other_client_out(
    background: BackgroundLoop,
    attack: Callable[..., list[RawGrpc]],
    path: str,
) -> None:
    with serving(background, max_body_memory=ROOM) as served:
        clients = attack(served, path)
        with dripping(clients if attack is begin_messages else []):
            assert set(statuses(served)) == {"OK"}


@pytest.mark.parametrize("attack", [open_calls, open_by_many, begin_messages])
def test_calls_without_a_message_to_a_unix_socket_keep_no_other_call_out(
    background: BackgroundLoop,
    tmp_path: Path,
    attack: Callable[..., list[RawGrpc]],
) -> None:
    with serving(background, path=f"{tmp_path}/s", max_body_memory=ROOM) as served:
        attack(served, PREDICT)
        assert set(statuses(served)) == {"OK"}


@pytest.mark.parametrize("sources", [["127.0.0.1"], ["127.0.0.2"] * 5])
def test_unanswered_messages_leave_room_for_other_connections(
    background: BackgroundLoop, sources: list[str]
) -> None:
    with serving(background, max_body_memory=ROOM) as served:
        served.inference.holds = True
        for hog in map(served.raw, sources):
            for _ in range(NUM_CALLS):
                last = ask(hog, 3 * MEGABYTE)
            hog.wait_until_closed(last)  # for which there is no room
        served.inference.holds = False
        assert set(statuses(served)) == {"OK"}


def test_small_messages_of_a_new_connection_have_reserved_memory(
    background: BackgroundLoop,
) -> None:
    with serving(background, max_body_memory=LARGEST) as served:
        served.inference.holds = True
        ask(served.raw(), LARGEST - 1000)
        served.inference.wait_for(1)
        served.inference.holds = False
        assert [status_of(served.call(message(size))) for size in (0, 1000, 50_000)] == ["OK"] * 3


def test_connections_over_the_limit_of_their_address_are_refused(
    background: BackgroundLoop,
) -> None:
    with serving(background, max_connections=8, max_connections_per_address=4) as served:
        clients = [served.raw("127.0.0.2") for _ in range(4)]
        source = ("127.0.0.2", 0)
        with socket.create_connection(("127.0.0.1", served.port), PATIENCE, source) as refused:
            assert refused.makefile("rb").read().startswith(b"HTTP/1.1 503 ")
        assert status_of(served.call(message())) == "OK"  # of another address
        for client in clients:
            client.wait_until_closed(ask(client, 10))
