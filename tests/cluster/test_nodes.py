"""Which machine a worker runs on, without any machine."""

import pytest

from mindspore_serving import __version__
from mindspore_serving.cluster.base import Needs
from mindspore_serving.cluster.node_messages import JoinCluster, Start, check_node, check_start
from mindspore_serving.cluster.nodes import Machine, choose, why_none
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.master.loading import needs_of


def place(machines: list[Machine], *all_needs: Needs) -> list[str | None]:
    """Where workers go that are started one after another."""
    found = []
    for needs in all_needs:
        machine = choose(needs, machines, now=100.0)
        if machine is not None:
            kept = Needs(needs.servable, device_id=machine.free_device(needs))
            machine.workers[object()] = kept
        found.append(None if machine is None else machine.name)
    return found


def test_workers_of_a_servable_are_spread():
    machines = [Machine(""), Machine("a", 8), Machine("b", 8)]
    assert place(machines, *[Needs("add")] * 6) == ["", "a", "b", "", "a", "b"]


def test_workers_of_several_servables_are_spread_too():
    machines = [Machine(""), Machine("a", 8)]
    assert place(machines, Needs("add"), Needs("sub"), Needs("mul"), Needs("mul")) == [
        "",
        "a",
        "",
        "a",
    ]


def test_no_more_workers_than_slots():
    machines = [Machine("", 1), Machine("a", 2)]
    assert place(machines, *[Needs("add")] * 4) == ["", "a", "a", None]


def test_ranks_take_a_slot_each_and_share_a_machine():
    machines = [Machine("a", 3), Machine("b", 4)]
    gang = Needs("cut", slots=3)
    for expected in ("a", "b"):
        machine = choose(gang, machines, 100.0)
        assert machine is not None
        assert machine.name == expected
        machine.workers[object()] = gang
    assert choose(gang, machines, 100.0) is None
    assert why_none(gang, machines) == (
        "no machine can run it now (a: 0 of its 3 slots are free, and 3 ranks need one each; "
        "b: 1 of its 4 slots are free, and 3 ranks need one each)"
    )
    assert place(machines, Needs("add"), Needs("add")) == ["b", None]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 1),
        ({"tensor_parallel": 4}, 4),
        ({"tensor_parallel": 2, "pipeline_parallel": 3}, 6),
        ({"tensor_parallel": "two"}, 1),
        ({"pipeline_parallel": 0}, 1),
    ],
)
def test_a_worker_needs_a_slot_for_each_rank(options, expected):
    deployment = Deployment("models", "cut", llm_options=options)
    assert needs_of(deployment, None, 0.0).slots == expected


def test_a_model_with_fewer_ranks_than_machines_is_refused():
    options = {"pipeline_parallel": 2}
    deployment = Deployment("models", "cut", llm_options=options, rank_machines=2)
    assert (needs_of(deployment, None, 0.0).machines, deployment.rank_machines) == (2, 2)
    deployment = Deployment("models", "cut", llm_options=options, rank_machines=3)
    with pytest.raises(StartError, match="rank_machines is 3, but the model has 2 ranks"):
        needs_of(deployment, None, 0.0)


def test_a_machine_offers_each_device_once():
    machine = Machine("a", 8, device_ids=(3, 5))
    needs = Needs("add", device_id=5)
    assert machine.free_device(needs) == 5
    assert place([machine], needs) == ["a"]
    assert machine.free_device(needs) == 3
    assert place([machine], needs, needs) == ["a", None]
    assert place([machine], Needs("add")) == ["a"]  # one without a device


def test_a_machine_where_a_worker_just_failed_is_the_last_choice():
    machines = [Machine("a", 8, avoided={"add": 160.0}), Machine("b", 2)]
    assert place(machines, *[Needs("add")] * 3) == ["b", "b", "a"]
    machines = [Machine("a", 8, avoided={"add": 99.0, "sub": 160.0}), Machine("b", 2)]
    assert place(machines, Needs("add")) == ["a"]


def test_without_devices_of_its_own_a_machine_takes_those_of_the_server():
    assert Machine("a", 8).free_device(Needs("add", device_id=4)) == 4


@pytest.mark.parametrize(
    ("machine", "needs", "problem"),
    [
        (Machine("", 0), Needs("add"), "it has no slots"),
        (Machine("a", 8, "cpu"), Needs("add", "gpu"), "it offers cpu, not gpu"),
        (Machine("a", 8, "gpu"), Needs("add", "gpu"), ""),
        (Machine("a", 8), Needs("add", "gpu"), ""),
        (Machine("a", 8, "gpu"), Needs("add"), ""),
        (Machine("a", 8, labels={"zone": "a"}), Needs("add", labels={"zone": "a"}), ""),
        (
            Machine("a", 8, labels={"zone": "a"}),
            Needs("add", labels={"zone": "b"}),
            "it has other labels",
        ),
        (Machine(""), Needs("add", labels={"zone": "b"}), "it has other labels"),
        (Machine("a", 8, is_leaving=True), Needs("add"), "it is leaving"),
        (Machine("a", 8), Needs("add", is_local=True), "it is not the master's machine"),
        (Machine(""), Needs("add", is_local=True), ""),
    ],
)
def test_why_a_machine_has_no_place(machine, needs, problem):
    assert machine.problem(needs) == problem
    assert (choose(needs, [machine], 0.0) is None) == bool(problem)
    if problem:
        assert f"{machine.name or 'this machine'}: {problem}" in why_none(needs, [machine])


def offer(**changes: object) -> JoinCluster:
    fields = {
        "version": __version__,
        "name": "a",
        "slots": 1,
        "device_type": "none",
        "device_ids": [],
        "labels": {},
    }
    return JoinCluster(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "the node's name is ''"),
        ({"name": "../a"}, "the node's name is '../a'"),
        ({"name": "a" * 64}, "1 to 63"),
        ({"slots": 0}, "slots is 0, expected 1 to 1024"),
        ({"device_type": "tpu"}, "device_type is 'tpu'"),
        ({"device_ids": [1, 1]}, "expected different numbers"),
        ({"device_ids": [-1]}, "expected different numbers"),
        ({"labels": {"zone": ""}}, "the labels are invalid"),
        ({"labels": {str(n): "x" for n in range(65)}}, "the labels are invalid"),
    ],
)
def test_an_offer_that_cannot_be_used_is_refused(changes, words):
    check_node(offer())
    with pytest.raises(InvalidInputs, match=words):
        check_node(offer(**changes))


@pytest.mark.parametrize(
    "start",
    [
        Start("id", "add", "../../etc/cron", None),
        Start("id", "add", ".hidden", None),
        Start("id", "add\n--channel", "log_add", None),
        Start("id", "add", "log_add", 2),
    ],
)
def test_a_node_starts_no_worker_on_a_device_outside_its_offer(start):
    check_start(Start("id", "servable name:add, device id:0", "log_add_device0", 1), offer())
    with pytest.raises(InvalidInputs):
        check_start(start, offer(device_ids=[0, 1]))
