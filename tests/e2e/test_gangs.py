"""Distributed servables whose processes die, hang or cannot start: scripts, agents, signals."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindspore_serving.cli import status
from tests.e2e.authority import Authority
from tests.e2e.gangs import (
    ANSWER,
    GangScripts,
    SharedGang,
    agents_of,
    all_ended,
    processes_in,
    worker_of,
)
from tests.e2e.harness import eventually
from tests.waiting import PATIENCE

IMPATIENT = "heartbeat_timeout=1"  # where a process hangs; a busy machine may be as silent

CONFIG = """
from mindspore_serving.server import distributed, register

model = distributed.declare_servable(2, stage_size=1)

def each(x):
    return model.call(x), model.call(x, subgraph=1), model.call(x, subgraph=2)

@register.register_method(output_names=["y"])
def predict(x):
    return register.add_stage(model, x, outputs_count=1)

@register.register_method(output_names=["a", "b", "environment"])
def subgraphs(x):
    return register.add_stage(each, x, outputs_count=3)
"""

ENVIRONMENT = """
import os, numpy as np
def model(x):
    table = open(os.environ["RANK_TABLE_FILE"]).read()
    names = ("RANK_ID", "DEVICE_ID", "RANK_SIZE", "MS_ENABLE_HCCL", "PARA_GROUP_FILE")
    text = ";".join([os.environ[name] for name in names] + [str('"server_list"' in table)])
    return np.frombuffer(text.encode(), np.uint8)[None].repeat(len(x), axis=0)
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Callable[..., GangScripts]]:
    made: list[GangScripts] = []

    def make(*args: Any, **kwargs: Any) -> GangScripts:
        made.append(GangScripts(tmp_path, *args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


def write_subgraphs(made: GangScripts) -> dict[str, Any]:
    """The servable of CONFIG, whose ranks have groups; the options of its agents."""
    made.write("big/servable_config.py", CONFIG)
    made.write("minus.py", "def model(x):\n    return -x\n")
    made.write("environment.py", ENVIRONMENT)
    for name in ("a.pb", "b.pb", "c.pb"):
        made.write(name, "")
    files = ["model.py", "minus.py", "environment.py"]
    return {"files": [files, files], "group_config_files": [["a.pb"], ["b.pb", "c.pb"]]}


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGang]:
    shared = SharedGang(lambda: tmp_path_factory.mktemp("gang"), prepare=write_subgraphs)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGang]:
    shared = SharedGang(lambda: tmp_path_factory.mktemp("impatient"), IMPATIENT)
    yield shared
    shared.close()


@pytest.fixture
def gang(request: pytest.FixtureRequest) -> SharedGang:
    """Two ranks that serve; those that a test may name."""
    shared: SharedGang = request.getfixturevalue(getattr(request, "param", "patient"))
    shared.ensure()
    return shared


# --- how it works ---------------------------------------------------------------------------------


FIRST_STAGE = """
def model(x):
    if (x < 0).all():
        open(f"first{x[0, 0]}", "w").close()
    return x * 2
"""

SECOND_STAGE = """
import os, time
def model(doubled):
    if (doubled < 0).all():
        open(f"second{doubled[0, 0]}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
    return doubled + 1
"""


def test_sixteen_ranks_in_two_stages_on_two_machines_agents_first(scripts, pool):
    made = scripts(16, spec="2, enable_pipeline_infer=True")
    made.write("first.py", FIRST_STAGE)
    made.write("second.py", SECOND_STAGE)
    machines = [
        made.start_agents(
            [name] * 8, f"agents_{name}", agent_ip=f"127.0.0.{m + 1}", rank_start=8 * m
        )
        for m, name in enumerate(("first.py", "second.py"))
    ]
    server = made.start_server()
    server.says("it serves")
    check_that_stages_work_on_different_requests_at_once(made, pool)
    asked = [pool.submit(made.ask, n, n + 1) for n in range(8)]
    for n, one in enumerate(asked):
        assert one.result(PATIENCE) == [[2 * n + 1.0] * 2, [2 * n + 3.0] * 2]
    for machine in machines:
        machine.says("Success to start agents")
        assert len(agents_of(machine)) == 8
    server.send(signal.SIGTERM)
    assert [server.status(), *(machine.status() for machine in machines)] == [0, 0, 0]
    assert processes_in(made.directory) == []
    assert list((made.directory / "temp_rank_table").iterdir()) == []


def check_that_stages_work_on_different_requests_at_once(made, pool):
    asked = [pool.submit(made.ask, -1)]
    eventually((made.directory / "second-2.0").exists)  # the first request is in the second stage
    asked.append(pool.submit(made.ask, -2))
    eventually((made.directory / "first-2.0").exists)  # the second one in the first
    made.go()
    assert [one.result(PATIENCE) for one in asked] == [[[-1.0] * 2], [[-3.0] * 2]]


def test_a_rank_that_raises_fails_its_instances_and_the_gang_goes_on(gang):
    made, agents = gang.made, gang.agents
    before = agents_of(agents)
    assert "no 13 on rank" in made.ask(13)
    assert made.ask(1, 2) == ANSWER
    assert agents_of(agents) == before


def test_a_stage_calls_the_sub_graphs_of_a_gang(gang):
    with gang.made.client("subgraphs") as client:
        (found,) = client.infer({"x": np.full(2, 5, np.float32)})
    assert (found["a"].tolist(), found["b"].tolist()) == ([11, 11], [-5, -5])


def test_an_agent_has_the_environment_of_collectives(gang):
    with gang.made.client("subgraphs") as client:
        (found,) = client.infer({"x": np.zeros(2, np.float32)})
    files = ";".join(str(gang.made.directory / name) for name in ("b.pb", "c.pb"))
    assert found["environment"].tobytes().decode() == f"1;1;2;1;{files};True"


OLD_CONFIG = """
from mindspore_serving.worker import distributed, register

distributed.declare_distributed_servable(rank_size=2, stage_size=1)

@register.register_method(output_names=["y"])
def predict(x):
    y = register.call_servable(x)
    return y
"""

OLD_SERVER = """
from mindspore_serving import master
from mindspore_serving.worker import distributed

distributed.start_distributed_servable_in_master(".", "big", "table.json", worker_port={port})
master.start_grpc_server("127.0.0.1", {grpc})
print("it serves", flush=True)
"""

OLD_AGENTS = """
from mindspore_serving.worker import distributed

distributed.startup_worker_agents("127.0.0.1", {port}, ["model.py", "model.py"])
"""


def test_the_names_of_1_1_still_work(scripts):
    made = scripts()
    made.write("big/servable_config.py", OLD_CONFIG)
    port = made.agents.rpartition(":")[2]
    made.run("agents.py", OLD_AGENTS.format(port=port))
    made.run("server.py", OLD_SERVER.format(port=port, grpc=made.grpc)).says("it serves")
    assert made.ask(1, 2) == ANSWER


def test_a_gang_with_mutual_tls_serves_and_tells_outsiders_the_reason(scripts, tmp_path):
    ours, made = Authority(tmp_path, "ours"), scripts()
    names = [f"SERVING_DISTRIBUTED_TLS_{name}" for name in ("CERT", "KEY", "CA")]
    tls = dict(zip(names, (*ours.issue("both"), ours.ca), strict=True))
    server, agents = made.start_server(**tls), made.start_agents(environment=tls)
    server.says("it serves")
    assert made.ask(1, 2) == ANSWER
    for without, words in ((names[:2], "refuses our certificate"), (names[2:], "is not trusted")):
        environment = {name: path for name, path in tls.items() if name not in without}
        stranger = made.start_agents(name="stranger.py", environment=environment)
        assert stranger.status() == 1
        assert words in stranger.text
    os.kill(agents_of(agents)[1], signal.SIGKILL)
    made.serves_again(ANSWER, 1, 2)
    server.send(signal.SIGTERM)
    assert (server.status(), agents.status()) == (0, 0)
    assert processes_in(made.directory) == []


def test_other_agents_are_refused_and_the_gang_serves(gang, monkeypatch):
    made = gang.made
    with pytest.raises(RuntimeError, match="refuses: rank 0 is reserved already by another script"):
        made.start_agents_here()
    with pytest.raises(RuntimeError, match="Card count 2 .* does not equal to model files size 1"):
        made.start_agents_here(["model.py"])
    monkeypatch.setenv("SERVING_DISTRIBUTED_TOKEN", "guessed")
    stranger = made.start_agents(name="stranger.py")
    assert stranger.status() == 1
    assert "the worker refuses: wrong token" in stranger.text
    assert made.ask(1, 2) == ANSWER


# --- what dies ------------------------------------------------------------------------------------


def ask_and_wait(made, pool):
    """Predictions that run and that wait, as futures."""
    asked = [pool.submit(made.ask, -1) for _ in range(3)]
    made.running(1)
    return asked


@pytest.mark.parametrize(
    ("gang", "number"),
    [("patient", signal.SIGKILL), ("impatient", signal.SIGSTOP)],
    indirect=["gang"],
)
def test_requests_fail_and_a_new_gang_serves_when_an_agent_dies(gang, pool, number):
    made, agents = gang.made, gang.agents
    asked, before = ask_and_wait(made, pool), agents_of(agents)
    os.kill(before[0], number)
    for one in asked:
        assert "rank 0" in one.result(PATIENCE)
    made.go()
    made.serves_again(ANSWER, 1, 2)
    assert set(agents_of(agents)) == {0, 1}
    assert all_ended(*before.values())


def test_the_status_shows_where_each_agent_runs_also_of_a_new_gang(gang):
    made, server, agents = gang.made, gang.server, gang.agents

    def shown() -> list[list[str]]:
        return [row.split() for row in status.lines(made.servables())][1:]

    def expected() -> list[list[str]]:
        ranks = sorted(agents_of(agents).items())
        rows = [
            ["big", "1", "127.0.0.1", str(pid), str(n), "rank", str(n), "-"] for n, pid in ranks
        ]
        return [["big", "1", "(here)", str(worker_of(server)), "-", "ready", "-"], *rows]

    assert shown() == expected()
    os.kill(agents_of(agents)[1], signal.SIGKILL)
    made.serves_again(ANSWER, 1, 2)
    assert shown() == expected()


def test_when_the_worker_dies_a_new_gang_serves(gang, pool):
    made, server, agents = gang.made, gang.server, gang.agents
    asked, before = ask_and_wait(made, pool), agents_of(agents)
    os.kill(worker_of(server), signal.SIGKILL)
    for one in asked:
        assert "not available" in (text := one.result(PATIENCE)) or "died" in text
    made.go()
    made.serves_again(ANSWER, 1, 2)
    assert all_ended(*before.values())


@pytest.mark.parametrize("gang", ["impatient"], indirect=True)
def test_when_the_worker_hangs_a_new_gang_serves(gang, pool):
    made, server, agents = gang.made, gang.server, gang.agents
    asked, before = ask_and_wait(made, pool), agents_of(agents)
    os.kill(worker_of(server), signal.SIGSTOP)
    for one in asked:
        assert "no heartbeat" in (text := one.result(PATIENCE)) or "not available" in text
    made.go()
    made.serves_again(ANSWER, 1, 2)
    assert all_ended(*before.values())


def test_agents_die_with_their_script_and_can_be_replaced(gang, pool):
    made, agents = gang.made, gang.agents
    asked, before = ask_and_wait(made, pool), agents_of(agents)
    agents.send(signal.SIGKILL)
    for one in asked:
        assert "rank" in one.result(PATIENCE)
    eventually(lambda: all_ended(*before.values()))
    eventually(lambda: "servable is not available" in made.ask(1))  # at once, nobody waits
    made.go()
    gang.start_agents()
    made.serves_again(ANSWER, 1, 2)


def test_only_the_script_survives_the_master_and_accepts_a_new_master(gang):
    made, server, agents = gang.made, gang.server, gang.agents
    before, said = [worker_of(server), *agents_of(agents).values()], agents.text
    server.send(signal.SIGKILL)
    eventually(lambda: all_ended(*before))
    gang.start_server()
    gang.server.says("it serves")
    assert made.ask(1, 2) == ANSWER
    eventually(lambda: "the group of agents died" in agents.text.removeprefix(said))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_script_of_agents_ends_them(gang, number):
    made, agents = gang.made, gang.agents
    before = agents_of(agents)
    agents.send(number)
    agents.status()
    assert all_ended(*before.values())
    eventually(lambda: "servable is not available" in made.ask(1))


def test_stopping_the_server_ends_all(gang):
    made, server, agents = gang.made, gang.server, gang.agents
    server.send(signal.SIGINT)
    assert (server.status(), agents.status()) == (0, 0)
    assert processes_in(made.directory) == []


HELD_MODEL = """
import os, time
if os.path.exists("held"):
    open("loading", "w").close()
    time.sleep(1000)

def model(x):
    return x
"""


def test_stopping_while_a_new_gang_joins_ends_all(scripts):
    made = scripts(1)
    made.write("model.py", HELD_MODEL)
    server, agents = made.start_server(), made.start_agents()
    server.says("it serves")
    (made.directory / "held").touch()
    os.kill(agents_of(agents)[0], signal.SIGKILL)
    eventually((made.directory / "loading").exists)
    server.send(signal.SIGTERM)
    assert (server.status(), agents.status()) == (0, 0)
    assert "cannot be restarted: the servable is stopped" in agents.text
    assert processes_in(made.directory) == []
