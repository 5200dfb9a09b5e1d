import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspore_serving.distributed import rank_table
from mindspore_serving.distributed.rank_table import RankEntry
from mindspore_serving.errors import InvalidInputs
from tests.distributed import tables

EIGHT = (("10.0.0.1", 8),)


@pytest.mark.parametrize("make", [tables.servers, tables.groups])
def test_both_formats_give_the_ranks_in_the_order_of_the_file(make):
    found = rank_table.parse(json.dumps(make(("10.0.0.1", 2), ("10.0.0.2", 1))))
    assert found == (
        RankEntry(0, "10.0.0.1", 0),
        RankEntry(1, "10.0.0.1", 1),
        RankEntry(2, "10.0.0.2", 0),
    )


def test_several_groups_and_servers_are_a_single_list():
    first, second = tables.groups(("10.0.0.1", 2))["group_list"][0]["instance_list"]
    table = {"group_list": [{"instance_list": [first]}, {"instance_list": [second]}]}
    assert [rank.number for rank in rank_table.parse(json.dumps(table))] == [0, 1]


def changed(change: Callable[[Any], None], make: Callable[..., Any] = tables.servers) -> str:
    table = make(("10.0.0.1", 2))
    change(table)
    return json.dumps(table)


def set_at(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(table: Any) -> None:
        for step in path[:-1]:
            table = table[step]
        if to is None:
            del table[path[-1]]
        else:
            table[path[-1]] = to

    return change


SERVER, DEVICE = ("server_list", 0), ("server_list", 0, "device", 1)
INSTANCE = ("group_list", 0, "instance_list", 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "expected an object with either 'server_list' or 'group_list'"),
        ("{}", "expected an object with either"),
        ('{"server_list": [], "group_list": []}', "expected an object with either"),
        ('{"server_list": []}', "it has no ranks"),
        (" " * (rank_table.MAX_BYTES + 1), "at most 1048576 are accepted"),
        (changed(set_at("server_list", to=1)), "'server_list' should be a list of objects"),
        (changed(set_at(*SERVER, to="a")), "'server_list[0]' should be an object, but is \"a\""),
        (changed(set_at(*SERVER, "server_id", to=None)), "'server_list[0].server_id' should be"),
        (changed(set_at(*SERVER, "server_id", to=7)), "should be a str that is not empty, but is"),
        (changed(set_at(*SERVER, "device", to=None)), "'server_list[0].device' should be a"),
        (changed(set_at(*DEVICE, "device_id", to=1)), 'should be a decimal str such as "0", but'),
        (
            changed(set_at(*DEVICE, "device_id", to="-1")),
            "device[1].device_id' should be a",
        ),
        (changed(set_at(*DEVICE, "device_id", to="1" * 10)), "should be a decimal str"),
        (
            changed(set_at(*DEVICE, "rank_id", to=None)),
            "device[1].rank_id' should be a dec",
        ),
        (changed(set_at(*DEVICE, "rank_id", to="0")), "rank_id '0' is there twice"),
        (changed(set_at(*DEVICE, "rank_id", to="2")), "rank_id '2' is not in order"),
        (
            changed(set_at(*INSTANCE, "devices", to=[]), tables.groups),
            "'group_list[0].instance_list[1].devices' has 0 items, expected 1",
        ),
        (
            changed(set_at(*INSTANCE, "rank_id", to=1), tables.groups),
            "'group_list[0].instance_list[1].rank_id' should be a decimal str",
        ),
        (
            changed(set_at("group_list", 0, "instance_list", to=None), tables.groups),
            "'group_list[0].instance_list' should be a list of objects, but is missing",
        ),
    ],
)
def test_a_wrong_table_is_refused_with_the_place(text, problem):
    with pytest.raises(InvalidInputs) as caught:
        rank_table.parse(text)
    assert str(caught.value).startswith("The rank table is wrong: ")
    assert problem in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["0", "1", "", "10.0.0.1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["server_list", "group_list", "instance_list", "device", "devices", "rank_id"]
                + ["device_id", "server_id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=30,
)


@given(JSON)
def test_any_table_is_parsed_to_ranks_or_an_error(table):
    try:
        found = rank_table.parse(json.dumps(table))
    except InvalidInputs:
        return
    assert [rank.number for rank in found] == list(range(len(found)))


def ranks(*machines: tuple[str, int]) -> tuple[RankEntry, ...]:
    return rank_table.parse(tables.text(*machines))


@pytest.mark.parametrize(
    ("found", "sizes", "problem"),
    [
        (ranks(*EIGHT), (8, 3), "rank_size 8 is not a multiple of stage_size 3"),
        (ranks(*EIGHT), (16, 1), "it has 8 ranks, the servable is declared with 16"),
        (ranks(("10.0.0.1", 9)), (9, 1), "device_id '8' should be less than 8"),
        (ranks(("10.0.0.1", 2), ("10.0.0.1", 2)), (4, 1), "device_id '0' of server_id"),
        (ranks(("10.0.0.1", 4)), (4, 2), "a servable of several stages needs 8 ranks, it has 4"),
        (ranks(("10.0.0.1", 4), ("10.0.0.2", 4)), (8, 2), "rank 4 is on '10.0.0.2'"),
        (
            tuple(RankEntry(n, "a", 7 - n) for n in range(8)),
            (8, 2),
            "rank 0 should have device_id '0'",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_declaration_is_refused(found, sizes, problem):
    with pytest.raises(InvalidInputs) as caught:
        rank_table.check(found, *sizes)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("found", "sizes"),
    [
        (ranks(("10.0.0.1", 1)), (1, 1)),
        (ranks(("10.0.0.1", 2), ("10.0.0.2", 2)), (4, 1)),
        (ranks(*EIGHT), (8, 8)),
        (ranks(("10.0.0.1", 8), ("10.0.0.2", 8)), (16, 2)),
    ],
)
def test_a_table_that_fits_is_taken(found, sizes):
    rank_table.check(found, *sizes)


def test_the_ranks_of_a_machine_may_begin_later():
    found = ranks(("10.0.0.1", 4), ("10.0.0.2", 2))
    assert [rank.number for rank in rank_table.on_machine(found, "10.0.0.2")] == [4, 5]
    assert [rank.number for rank in rank_table.on_machine(found, "10.0.0.1", 2)] == [2, 3]
