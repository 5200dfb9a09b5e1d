"""What clients may take of what a server has once for all."""

import pytest

from mindspore_serving.frontends.memory import ANONYMOUS, MemoryPeer, Quota, peer_of

MOST = 1024


def take_all(quota: Quota, peer: MemoryPeer) -> int:
    """How much the peer gets, one by one."""
    count = 0
    while quota.take(peer, 1):
        count += 1
    return count


def test_a_connection_takes_less_than_its_address_and_that_less_than_all() -> None:
    quota = Quota(MOST)
    by_connection = [take_all(quota, MemoryPeer("a", number)) for number in range(20)]
    by_address = [take_all(quota, MemoryPeer(name, 0)) for name in "bcd"]
    assert by_connection[0] == 9 * MOST // 16  # three quarters of three quarters
    assert sum(by_connection) <= 3 * MOST // 4
    assert all(by_connection[:4])
    assert all(by_address)
    assert quota.used <= MOST


@pytest.mark.parametrize(
    ("peer", "amount"), [(MemoryPeer("a", 0), MOST), (ANONYMOUS, MOST), (ANONYMOUS, 9999)]
)
def test_a_single_peer_can_use_all_units(peer: MemoryPeer, amount: int) -> None:
    assert Quota(MOST).take(peer, amount)


def test_the_largest_amount_can_be_taken_in_parts() -> None:
    quota = Quota(MOST, largest=1000)
    assert take_all(quota, MemoryPeer("a", 0)) == 1000
    assert take_all(quota, MemoryPeer("b", 0)) == 24


def test_a_connection_has_its_least_where_nothing_is_free() -> None:
    quota = Quota(MOST, reserved=10)
    assert quota.take(ANONYMOUS, MOST)
    assert [take_all(quota, MemoryPeer("a", number)) for number in range(3)] == [10, 10, 10]
    assert not quota.take(ANONYMOUS, 1)


def test_units_that_are_given_back_can_be_taken_again() -> None:
    quota = Quota(MOST)
    count = take_all(quota, MemoryPeer("a", 0))
    quota.give_back(MemoryPeer("a", 0), count)
    assert (quota.used, quota.used_by(MemoryPeer("a", 0))) == (0, (0, 0))
    assert take_all(quota, MemoryPeer("a", 1)) == count


@pytest.mark.parametrize(
    ("name", "address"),
    [("ipv4:127.0.0.1:5000", "ipv4:127.0.0.1"), ("ipv6:%5B::1%5D:5000", "ipv6:%5B::1%5D")],
)
def test_a_peer_of_grpc_has_the_address_without_the_port(name: str, address: str) -> None:
    assert peer_of(name) == MemoryPeer(address, name)


@pytest.mark.parametrize("name", ["unix:", "unix:2", ""])
def test_clients_of_a_unix_socket_share_a_peer(name: str) -> None:
    assert peer_of(name) is ANONYMOUS
