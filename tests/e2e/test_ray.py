"""Machines of a Ray cluster, nodes on this machine, and what happens when one is lost."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving import server
from mindspore_serving.cluster.ray_machines import MasterEndpoint, RayMachines, RayPlan
from mindspore_serving.errors import StartError
from tests.e2e.authority import Authority
from tests.e2e.fragile import SOURCE
from tests.e2e.harness import Calls, children, config, eventually, write_servable
from tests.e2e.machines import TOKEN
from tests.e2e.test_ranks import is_rank
from tests.llm import chatty
from tests.ports import free_port

ray: Any = pytest.importorskip("ray", reason="the extra 'ray' is not installed")

pytestmark = pytest.mark.slow
# Ray takes 127.0.0.1 for an address that others can reach, which it replaces by one.
HERE = {"node_ip_address": "127.0.0.2"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster with a head that runs nothing, and two machines of two CPUs."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True, head_node_args={**HERE, "num_cpus": 0, "include_dashboard": False}
    )
    for _ in range(2):
        made.add_node(num_cpus=2, **HERE)
    yield made
    made.shutdown()


@pytest.fixture
def third(cluster: Any) -> Iterator[Any]:
    """One more machine."""
    node = cluster.add_node(num_cpus=2, **HERE)
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


class Served:
    """A server whose workers run on machines of `cluster`."""

    def __init__(self, cluster: Any, directory: Path, tls: Authority | None = None) -> None:
        self.calls = Calls(f"127.0.0.1:{free_port()}", free_port())
        token = directory / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        where = f"127.0.0.1:{free_port()}"
        if tls is None:
            server.start_node_server(where, token_file=token, insecure=True, local_slots=0)
        else:
            config = server.SSLConfig(*map(str, tls.issue("localhost")))
            server.start_node_server(where, config, token_file=token, local_slots=0)
        server.start_ray_machines(2, address=cluster.address)
        server.start_restful_server(f"127.0.0.1:{self.calls.http}")

    def rows(self, name: str = "") -> list[dict[str, Any]]:
        """The workers of the servable `name`, of the only one without a name."""
        rows = json.loads(self.calls.http_call("GET", "/servables")[1])["servables"]
        (row,) = [one for one in rows if name in ("", one["name"])]
        return [one for one in row["workers"] if one["state"] == "ready"]

    def nodes(self, name: str = "") -> Counter[str]:
        return Counter(one["node"] for one in self.rows(name))


@pytest.fixture
def served(cluster, tmp_path, monkeypatch) -> Iterator[Served]:
    monkeypatch.chdir(tmp_path)
    write_servable(tmp_path, "toy", SOURCE)
    try:
        yield Served(cluster, tmp_path)
    finally:
        server.stop()


def test_workers_are_spread_over_the_machines_of_the_cluster(served, tmp_path):
    server.start_servables(config(tmp_path, "toy", num_parallel_workers=4))
    assert sorted(served.nodes().values()) == [2, 2]
    assert all(name.startswith("ray-127.0.0.2-") for name in served.nodes())
    answer = served.calls.post("toy", "pid", [{"x": n} for n in range(12)])
    pids = {int(one["pid"]) for one in answer["instances"]}
    assert pids <= {one["pid"] for one in served.rows()}


@pytest.mark.long
def test_workers_of_an_actor_that_is_killed_are_placed_again(served, tmp_path):
    server.start_servables(config(tmp_path, "toy", num_parallel_workers=4))
    lost = served.rows()[0]
    with open(f"/proc/{lost['pid']}/stat") as stat:
        actor = int(stat.read().rpartition(")")[2].split()[1])
    os.kill(actor, signal.SIGKILL)
    eventually(lambda: lost["node"] not in served.nodes())
    eventually(lambda: sorted(served.nodes().values()) == [2, 2])  # Ray starts it again
    assert served.calls.post("toy", "pid", [{"x": 1}])["instances"][0]["pid"]


@pytest.mark.long
@pytest.mark.torch
def test_the_ranks_of_a_worker_have_slots_of_the_same_machine(third, tmp_path, served):
    chatty.build(tmp_path)
    options = {"tensor_parallel": 2, "dtype": "f32", "kv_cache_memory": 4 << 20, "num_threads": 2}
    write_servable(tmp_path, "small", SOURCE)
    chat = config(tmp_path, "chatty", num_parallel_workers=2, llm_options=options)
    server.start_servables([chat, config(tmp_path, "small", num_parallel_workers=2)])
    rows = served.rows("chatty")
    assert len({one["node"] for one in rows}) == 2
    for row in rows:
        assert len([one for one in children(row["pid"]) if is_rank(one)]) == 1
    small = served.nodes("small")
    assert small.total() == 2
    assert len(small) == 1  # the machine that has no ranks


@pytest.mark.long
@pytest.mark.torch
def test_the_ranks_of_a_model_are_on_machines_of_the_cluster(served, tmp_path):
    chatty.build(tmp_path)
    options = {"pipeline_parallel": 2, "dtype": "f32", "kv_cache_memory": 4 << 20, "num_threads": 1}
    chat = config(tmp_path, "chatty", rank_machines=2, llm_options=options)
    server.start_servables([chat])
    (row,) = served.rows("chatty")
    names = row["node"].split(", ")
    assert len(set(names)) == 2
    assert all(name.startswith("ray-127.0.0.2-") for name in names)
    body = {"model": "chatty", "prompt": [66, 9], "max_tokens": 4, "temperature": 0}
    status, answer = served.calls.http_call("POST", "/v1/completions", json.dumps(body))
    assert (status, len(json.loads(answer)["choices"])) == (200, 1)


def test_the_script_keeps_its_own_print(served):
    assert print.__module__ == "builtins"


def test_nothing_of_a_server_stays_on_the_cluster(served, tmp_path):
    server.start_servables(config(tmp_path, "toy", num_parallel_workers=3))
    pids = [one["pid"] for one in served.rows()]
    assert len(pids) == 3
    server.stop()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_machines_trust_the_certificate_of_their_server_alone(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_servable(tmp_path, "toy", SOURCE)
    try:
        served = Served(cluster, tmp_path, Authority(tmp_path, "ours"))
        server.start_servables(config(tmp_path, "toy", num_parallel_workers=3))
        assert sum(served.nodes().values()) == 3
    finally:
        server.stop()


def test_a_cluster_without_room_is_refused_with_its_resources(cluster):
    plan = RayPlan(num_machines=9, slots=1, address=cluster.address)
    with pytest.raises(StartError, match="expected 9 machines with 1 free CPUs each") as caught:
        RayMachines.start(plan, MasterEndpoint("127.0.0.1", 1, TOKEN))
    assert "2 CPUs" in str(caught.value)


def test_a_cluster_that_is_not_there_is_said_to_be_so():
    with pytest.raises(StartError, match="no Ray cluster answers at '127.0.0.1:9'"):
        RayMachines.start(RayPlan(1, 1, "127.0.0.1:9"), MasterEndpoint("127.0.0.1", 1, TOKEN))


@pytest.mark.long
def test_a_lost_machine_costs_its_workers_and_no_request_behind(cluster, third, served, tmp_path):
    """The last: Ray itself takes half a minute to see that the machine is gone."""
    server.start_servables(config(tmp_path, "toy", num_parallel_workers=4))
    cluster.remove_node(third, allow_graceful=False)
    eventually(lambda: len(served.nodes()) == 2 and sum(served.nodes().values()) == 4)
    answer = served.calls.post("toy", "pid", [{"x": n} for n in range(8)])
    assert ["pid" in one for one in answer["instances"]] == [True] * 8
