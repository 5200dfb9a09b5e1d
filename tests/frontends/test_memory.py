"""What clients may take of what a server has once for all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(
    st.integers(1, 40),
    st.integers(0, 10),
    st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), max_size=60),
)
def test_an_allowance_follows_the_rules_of_its_quota(
    limit: int, reserved: int, steps: list[tuple[int, int]]
) -> None:
    """Six connections of two addresses and of a unix socket take units, and give some back."""
    quota, other = (Quota(limit, largest=limit // 3, reserved=reserved) for _ in range(2))
    addresses = ["a", "a", "a", "b", "b", ""]
    allowances = [quota.allowance((name, 1) if name else None) for name in addresses]
    peers = [
        MemoryPeer(name, number) if name else ANONYMOUS for number, name in enumerate(addresses)
    ]
    taken = [0] * len(addresses)
    for number, amount in steps:
        if amount >= 0:
            has_room = other.take(peers[number], amount)
            assert allowances[number].take(amount) == has_room
            taken[number] += amount * has_room
        else:
            back = min(-amount, taken[number])
            taken[number] -= back
            allowances[number].give_back(back)
            other.give_back(peers[number], back)
        assert quota.used == other.used == sum(taken)
