import pytest

from mindspore_serving.distributed import rank_table
from mindspore_serving.distributed.local_ranks import (
    AgentOptions,
    choose_ranks,
    environment,
    find_ip,
    is_local,
)
from mindspore_serving.errors import InvalidInputs
from tests.distributed import tables

ELSEWHERE = "198.51.100.1"  # documentation only: no machine has it
RANKS = rank_table.parse(tables.text((ELSEWHERE, 2), ("127.0.0.2", 4)))


def options(count, **given):
    return AgentOptions("127.0.0.1:6200", (("a.mindir",),) * count, **given)


def numbers(*args, **given):
    return [rank.number for rank in choose_ranks(RANKS, options(*args, **given))]


def test_without_an_address_the_ranks_are_those_of_this_machine():
    assert find_ip(RANKS) == "127.0.0.2"
    assert numbers(4) == [2, 3, 4, 5]


def test_an_address_and_a_first_rank_choose_other_ranks():
    assert numbers(2, ip=ELSEWHERE, rank_start=0) == [0, 1]
    assert numbers(2, ip="127.0.0.2", rank_start=4) == [4, 5]


@pytest.mark.parametrize(
    ("count", "given", "problem"),
    [
        (3, {}, "Card count 4 described rank table does not equal to model files size 3"),
        (1, {"ip": "127.0.0.9", "rank_start": 0}, "Card count 0 described rank table"),
        (1, {"ip": ELSEWHERE, "rank_start": 6}, "cannot equal or larger than rank size 6"),
    ],
)
def test_a_wrong_choice_is_refused(count, given, problem):
    with pytest.raises(InvalidInputs, match=problem):
        numbers(count, **given)


def test_a_table_of_other_machines_is_refused():
    ranks = rank_table.parse(tables.text((ELSEWHERE, 1), ("198.51.100.2", 1)))
    with pytest.raises(
        InvalidInputs, match=r"failed, rank table ips: 198.51.100.1, 198.51.100.2: none"
    ):
        find_ip(ranks)


def test_an_address_that_is_none_is_of_no_machine():
    assert not is_local("10.*.*.*")


def test_an_agent_finds_its_rank_in_its_environment():
    found = environment(RANKS[3], RANKS, "/tmp/table.json", ["a.pb", "b.pb"], 7000)
    assert found == {
        "RANK_ID": "3",
        "RANK_SIZE": "6",
        "DEVICE_ID": "1",
        "RANK_TABLE_FILE": "/tmp/table.json",
        "MS_ENABLE_HCCL": "1",
        "PARA_GROUP_FILE": "a.pb;b.pb",
        "RANK": "3",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": ELSEWHERE,
        "MASTER_PORT": "7000",
    }
    assert "PARA_GROUP_FILE" not in environment(RANKS[3], RANKS, "t", [], 7000)
