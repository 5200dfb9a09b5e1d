"""Connections that have not proved themselves, and which of them gives way."""

from mindspore_serving.cluster.strangers import Strangers


def ended_of(most: int, addresses: str) -> list[int]:
    """Which of connections from these addresses, in their order, have given way."""
    strangers, ended = Strangers(most), []
    for number, address in enumerate(addresses):
        strangers.add(number, address, lambda number=number: ended.append(number))
    assert len(strangers) == len(addresses) - len(ended)
    return ended


def test_the_oldest_stranger_of_one_address_gives_way() -> None:
    assert ended_of(2, "aaaa") == [0, 1]


def test_a_stranger_from_the_address_with_most_gives_way() -> None:
    assert ended_of(4, "baaaaaa") == [1, 2, 3]
    assert ended_of(4, "aaaabbb") == [0, 1, 4]


def test_who_has_proved_itself_makes_room() -> None:
    strangers, ended = Strangers(1), []
    strangers.add(1, "a", lambda: ended.append(1))
    strangers.discard(1)
    strangers.discard(1)
    strangers.add(2, "a", lambda: ended.append(2))
    assert (ended, len(strangers)) == ([], 1)
