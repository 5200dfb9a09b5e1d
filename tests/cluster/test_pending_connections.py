"""Connections that have not authenticated, and which of them is closed for another."""

from mindspore_serving.cluster.pending_connections import PendingConnections


def ended_of(most: int, addresses: str) -> list[int]:
    """Which of connections from these addresses, in their order, have given way."""
    pending_connections, ended = PendingConnections(most), []
    for number, address in enumerate(addresses):
        pending_connections.add(number, address, lambda number=number: ended.append(number))
    assert len(pending_connections) == len(addresses) - len(ended)
    return ended


def test_the_oldest_connection_of_an_address_is_closed_first() -> None:
    assert ended_of(2, "aaaa") == [0, 1]


def test_a_connection_of_the_busiest_address_is_closed() -> None:
    assert ended_of(4, "baaaaaa") == [1, 2, 3]
    assert ended_of(4, "aaaabbb") == [0, 1, 4]


def test_an_authenticated_connection_makes_room() -> None:
    pending_connections, ended = PendingConnections(1), []
    pending_connections.add(1, "a", lambda: ended.append(1))
    pending_connections.discard(1)
    pending_connections.discard(1)
    pending_connections.add(2, "a", lambda: ended.append(2))
    assert (ended, len(pending_connections)) == ([], 1)
