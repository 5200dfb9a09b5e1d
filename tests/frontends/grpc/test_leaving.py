"""Clients of gRPC that leave in each state of a call: nothing of the call stays in the server."""

import socket
import struct
from collections.abc import Callable

import pytest

from mindspore_serving.aio import BackgroundLoop
from mindspore_serving.core.service import Reply
from tests.frontends.grpc.test_limits import (
    LARGEST,
    MEGABYTE,
    PREDICT,
    PREDICT_STREAM,
    Client,
    Served,
    ask,
    message,
    serving,
    status_of,
)
from tests.frontends.raw_grpc import HEADERS
from tests.waiting import eventually

NUM_CALLS = 5
RESET = struct.pack("ii", 1, 0)  # SO_LINGER


def connect(_: Served, client: Client) -> None:
    """Send the preface and settings."""


def begin_head(_: Served, client: Client) -> None:
    """Send a part of a field block, of which CONTINUATION would bring the rest."""
    client._send(HEADERS, 0, 1, b"\x83\x86")


def send_head(_: Served, client: Client) -> None:
    for _ in range(NUM_CALLS):
        client.call(PREDICT)


def send_prefix(_: Served, client: Client) -> None:
    for _ in range(NUM_CALLS):
        client.begin(client.call(PREDICT), LARGEST)


def send_part(_: Served, client: Client) -> None:
    for _ in range(NUM_CALLS):
        client.begin_to_send(2 * MEGABYTE)


def send_message(served: Served, client: Client) -> None:
    """Send whole messages, but not the end of the calls."""
    before = len(served.inference.calls)
    for _ in range(NUM_CALLS):
        number, body = client.call(PREDICT), message(MEGABYTE)
        client.begin(number, len(body))
        client.send(number, body)
    served.inference.wait_for(before + NUM_CALLS)


def send_all(served: Served, client: Client) -> None:
    before = len(served.inference.calls)
    for _ in range(NUM_CALLS):
        ask(client, MEGABYTE)
    served.inference.wait_for(before + NUM_CALLS)


def get_a_part(served: Served, client: Client) -> None:
    """Get the beginning of streams that go on."""
    before = len(served.inference.calls)
    for _ in range(NUM_CALLS):
        ask(client, 1000, PREDICT_STREAM)
    served.inference.wait_for(before + NUM_CALLS)
    for call in served.inference.calls[before:]:
        call.reply(Reply([message(1000)], is_last=False))
    eventually(lambda: client.receive() or len(client.answers) == NUM_CALLS)


def read_nothing(served: Served, client: Client) -> None:
    """Leave answers unread in the server."""
    client.take_nothing()
    before = len(served.inference.calls)
    for _ in range(NUM_CALLS):
        ask(client, 1000)
    served.inference.wait_for(before + NUM_CALLS)
    for call in served.inference.calls[before:]:
        call.reply(Reply([message(MEGABYTE)]))


STATES = (
    connect,
    begin_head,
    send_head,
    send_prefix,
    send_part,
    send_message,
    send_all,
    get_a_part,
    read_nothing,
)


def close(stream: socket.socket) -> None:
    stream.close()


def reset(stream: socket.socket) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.close()


def half_close(stream: socket.socket) -> None:
    """Send the end of the connection, and stay."""
    stream.shutdown(socket.SHUT_WR)


def holds_nothing(served: Served) -> bool:
    shared = served.server.shared
    quotas = shared.memory, shared.streams, served.gate.reader._memory
    return not shared.connections and not any(quota.used for quota in quotas)


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize("state", STATES)
def test_a_client_that_leaves_in_a_call_leaves_nothing(
    background: BackgroundLoop,
    state: Callable[[Served, Client], None],
    leave: Callable[[socket.socket], None],
) -> None:
    with serving(background) as served:
        served.inference.holds = True
        client = served.raw()
        state(served, client)
        leave(client.stream)
        eventually(lambda: holds_nothing(served))
        if state in (send_message, send_all, get_a_part):
            eventually(lambda: all(call.is_cancelled for call in served.inference.calls))
        served.inference.holds = False
        assert status_of(served.call(message())) == "OK"


def test_a_client_that_leaves_while_the_server_stops_delays_no_stop(
    background: BackgroundLoop,
) -> None:
    with serving(background) as served:
        served.inference.holds = True
        client = served.raw()
        send_all(served, client)

        async def stop() -> None:
            client.stream.close()
            await served.server.stop(600)

        background.run(stop())
        assert holds_nothing(served)
