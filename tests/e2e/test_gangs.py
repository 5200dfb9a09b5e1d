"""Distributed servables whose processes die, hang or cannot start: scripts, agents, signals."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mindspore_serving.cli import status
from tests.e2e.authority import Authority
from tests.e2e.gangs import GangScripts, agents_of, all_ended, processes_in, worker_of
from tests.e2e.harness import Script, eventually
from tests.waiting import PATIENCE

IMPATIENT = "heartbeat_timeout=1"  # where a process hangs; a busy machine may be as silent
ANSWER = [[3.0, 3.0], [5.0, 5.0]]  # of 1 and 2, by the last of two ranks


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Callable[..., GangScripts]]:
    made: list[GangScripts] = []

    def make(*args: Any, **kwargs: Any) -> GangScripts:
        made.append(GangScripts(tmp_path, *args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def gang(
    scripts: Callable[..., GangScripts], request: pytest.FixtureRequest
) -> "tuple[GangScripts, Script, Script]":
    """Two ranks that serve; with the options of the server that a test may name."""
    made = scripts()
    server, agents = made.start_server(getattr(request, "param", "")), made.start_agents()
    server.says("it serves")
    return made, server, agents


# --- how it works ---------------------------------------------------------------------------------


def test_sixteen_ranks_in_two_stages_on_two_machines_agents_first(scripts, pool):
    made = scripts(16, spec="2, enable_pipeline_infer=True")
    made.write("first.py", "def model(x):\n    return x * 2\n")
    made.write("second.py", "def model(doubled):\n    return doubled + 1\n")
    machines = [
        made.start_agents(
            [name] * 8, f"agents_{name}", agent_ip=f"127.0.0.{m + 1}", rank_start=8 * m
        )
        for m, name in enumerate(("first.py", "second.py"))
    ]
    server = made.start_server()
    server.says("it serves")
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


def test_a_rank_that_raises_fails_its_instances_and_the_gang_goes_on(gang):
    made, server, agents = gang
    before = agents_of(agents)
    assert "no 13 on rank" in made.ask(13)
    assert made.ask(1, 2) == ANSWER
    assert agents_of(agents) == before


SUBGRAPHS = """
from mindspore_serving.server import distributed, register

model = distributed.declare_servable(2, 1, with_batch_dim=False)

def both(x):
    return model.call(x), model.call(x, subgraph=1)

@register.register_method(output_names=["a", "b"])
def predict(x):
    a, b = register.add_stage(both, x, outputs_count=2)
    return a, b
"""


def test_a_stage_calls_the_sub_graphs_of_a_gang(scripts):
    made = scripts()
    made.write("big/servable_config.py", SUBGRAPHS)
    made.write("minus.py", "def model(x):\n    return -x\n")
    made.start_agents([["model.py", "minus.py"]] * 2)
    made.start_server().says("it serves")
    with made.client() as client:
        (found,) = client.infer({"x": 5})
    assert (found["a"].tolist(), found["b"].tolist()) == ([11], [-5])


ENVIRONMENT = """
import os, numpy as np
def model(x):
    table = open(os.environ["RANK_TABLE_FILE"]).read()
    names = ("RANK_ID", "DEVICE_ID", "RANK_SIZE", "MS_ENABLE_HCCL", "PARA_GROUP_FILE")
    text = ";".join([os.environ[name] for name in names] + [str('"server_list"' in table)])
    return np.frombuffer(text.encode(), np.uint8)[None].repeat(len(x), axis=0)
"""


def test_an_agent_has_the_environment_of_collectives(scripts):
    made = scripts()
    made.write("model.py", ENVIRONMENT)
    groups = [["a.pb"], ["b.pb", "c.pb"]]
    for name in ("a.pb", "b.pb", "c.pb"):
        made.write(name, "")
    made.start_agents(group_config_files=groups)
    made.start_server().says("it serves")
    (found,) = made.ask(1)
    files = ";".join(str(made.directory / name) for name in ("b.pb", "c.pb"))
    assert bytes(found).decode() == f"1;1;2;1;{files};True"


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


MODEL_THAT_WAITS = """
import os, time
def model(hidden):
    x = hidden
    NOTE
    while not os.path.exists("go"):
        time.sleep(0.01)
    return x
"""


def test_with_a_pipeline_the_stages_work_on_different_requests_at_once(scripts, pool):
    made = scripts(8, spec="2, enable_pipeline_infer=True")
    note = "    open({name!r} + str(x[0, 0]), 'w').close()\n"
    made.write("first.py", "def model(x):\n" + note.format(name="first") + "    return x\n")
    made.write("second.py", MODEL_THAT_WAITS.replace("NOTE", note.format(name="second").strip()))
    made.start_agents(["first.py"] * 4 + ["second.py"] * 4)
    made.start_server().says("it serves")
    asked = [pool.submit(made.ask, -1)]
    eventually((made.directory / "second-1.0").exists)  # the first request is in the second stage
    asked.append(pool.submit(made.ask, -2))
    eventually((made.directory / "first-2.0").exists)  # the second one in the first
    made.go()
    assert [one.result(PATIENCE) for one in asked] == [[[-1.0] * 2], [[-2.0] * 2]]


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


# --- what dies ------------------------------------------------------------------------------------


def ask_and_wait(made, pool):
    """Predictions that run and that wait, as futures."""
    asked = [pool.submit(made.ask, -1) for _ in range(3)]
    made.running(1)
    return asked


@pytest.mark.parametrize(
    ("gang", "number"),
    [("", signal.SIGKILL), (IMPATIENT, signal.SIGSTOP)],
    indirect=["gang"],
)
def test_requests_fail_and_a_new_gang_serves_when_an_agent_dies(gang, pool, number):
    made, server, agents = gang
    asked, before = ask_and_wait(made, pool), agents_of(agents)
    os.kill(before[0], number)
    for one in asked:
        assert "rank 0" in one.result(PATIENCE)
    made.go()
    made.serves_again(ANSWER, 1, 2)
    assert set(agents_of(agents)) == {0, 1}
    assert all_ended(*before.values())


def test_the_status_shows_where_each_agent_runs_also_of_a_new_gang(gang):
    made, server, agents = gang

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
    made, server, agents = gang
    asked, before = ask_and_wait(made, pool), agents_of(agents)
    os.kill(worker_of(server), signal.SIGKILL)
    for one in asked:
        assert "not available" in (text := one.result(PATIENCE)) or "died" in text
    made.go()
    made.serves_again(ANSWER, 1, 2)
    assert all_ended(*before.values())


@pytest.mark.parametrize("gang", [IMPATIENT], indirect=True)
def test_when_the_worker_hangs_a_new_gang_serves(gang, pool):
    made, server, agents = gang
    asked, before = ask_and_wait(made, pool), agents_of(agents)
    os.kill(worker_of(server), signal.SIGSTOP)
    for one in asked:
        assert "no heartbeat" in (text := one.result(PATIENCE)) or "not available" in text
    made.go()
    made.serves_again(ANSWER, 1, 2)
    assert all_ended(*before.values())


def test_agents_die_with_their_script_and_can_be_replaced(gang, pool):
    made, server, agents = gang
    asked, before = ask_and_wait(made, pool), agents_of(agents)
    agents.send(signal.SIGKILL)
    for one in asked:
        assert "rank" in one.result(PATIENCE)
    eventually(lambda: all_ended(*before.values()))
    eventually(lambda: "servable is not available" in made.ask(1))  # at once, nobody waits
    made.go()
    made.start_agents()
    made.serves_again(ANSWER, 1, 2)


def test_only_the_script_survives_the_master_and_accepts_a_new_master(gang):
    made, server, agents = gang
    before = [worker_of(server), *agents_of(agents).values()]
    server.send(signal.SIGKILL)
    eventually(lambda: all_ended(*before))
    again = made.start_server()
    again.says("it serves")
    assert made.ask(1, 2) == ANSWER
    assert "the group of agents died" in agents.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_script_of_agents_ends_them(gang, number):
    made, server, agents = gang
    agents.says("agents run")
    before = agents_of(agents)
    agents.send(number)
    agents.status()
    assert all_ended(*before.values())
    eventually(lambda: "servable is not available" in made.ask(1))


def test_stopping_the_server_ends_all(gang):
    made, server, agents = gang
    server.send(signal.SIGINT)
    assert (server.status(), agents.status()) == (0, 0)
    assert processes_in(made.directory) == []


# --- what cannot start ----------------------------------------------------------------------------


def test_agents_that_cannot_load_a_model_end_both_scripts(scripts):
    made = scripts()
    made.write("broken.py", "import no_such_library\n")
    server, agents = made.start_server(), made.start_agents(["model.py", "broken.py"])
    assert (server.status(), agents.status()) == (1, 1)
    assert "Failed to start agents, rank 1: Model file" in agents.text
    for text in (agents.text, server.text):
        assert "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'" in text
    assert "Fail to start workers: distributed servable big: " in server.text
    assert processes_in(made.directory) == []


def test_agents_of_other_shapes_end_both_scripts_with_the_reason(scripts):
    made = scripts()
    for name, size in (("a.py", 3), ("b.py", 4)):
        made.write(
            name,
            "import numpy as np\n"
            "from mindspore_serving.core.value import Signature, TensorSpec\n"
            f"spec = TensorSpec('x', np.dtype('f4'), (-1, {size}))\n"
            "def model(x):\n    return x\n"
            "model.signature = Signature((spec,), (spec,))\n",
        )
    server, agents = made.start_server(), made.start_agents(["a.py", "b.py"])
    assert (server.status(), agents.status()) == (1, 1)
    for text in (agents.text, server.text):
        assert "the inputs of ranks of a stage should be the same: of sub-graph 0" in text


def test_a_server_whose_agents_do_not_come_says_which(scripts):
    server = scripts().start_server("wait_agents_time_in_seconds=1")
    assert server.status() == 1
    assert "agents of ranks 0, 1 have not joined within 1 s" in server.text


def test_a_server_that_waits_for_agents_ends_by_a_signal(scripts):
    made = scripts()
    server = made.start_server()
    wrong = {"SERVING_DISTRIBUTED_TOKEN": "guessed"}
    made.start_agents(environment=wrong).says("the worker refuses: wrong token")  # it listens
    server.send(signal.SIGINT)
    assert server.status() != 0
    assert processes_in(made.directory) == []


def test_missing_files_of_ranks_end_both_scripts(scripts):
    made = scripts()
    server, agents = made.start_server(), made.start_agents(["model.py"])
    assert (server.status(), agents.status()) == (1, 1)
    for text in (agents.text, server.text):
        assert "Card count 2 described rank table does not equal to model files size 1" in text


def test_agents_without_a_server_say_so(scripts):
    made = scripts()
    source = "import mindspore_serving.distributed.agents as agents\nagents.SEARCH_SECONDS = 0.5\n"
    made.write("faster.py", source)
    agents = made.run(
        "agents.py",
        "import faster\nfrom mindspore_serving.server import distributed\n"
        f"distributed.startup_agents({made.agents!r}, ['model.py', 'model.py'])\n",
    )
    assert agents.status() == 1
    assert (
        f"no worker of a distributed servable answered at {made.agents} within 0.5 s" in agents.text
    )


def test_other_agents_are_refused_and_the_gang_serves(gang):
    made, server, agents = gang
    other = made.start_agents(name="other.py")
    assert other.status() == 1
    assert "the worker refuses: rank 0 is reserved already by another script" in other.text
    stranger = made.start_agents(
        name="stranger.py", environment={"SERVING_DISTRIBUTED_TOKEN": "guessed"}
    )
    assert stranger.status() == 1
    assert "the worker refuses: wrong token" in stranger.text
    fewer = made.start_agents(["model.py"], name="fewer.py")
    assert fewer.status() == 1
    assert "Card count 2 described rank table does not equal to model files size 1" in fewer.text
    assert made.ask(1, 2) == ANSWER


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("distributed.declare_servable(4, 1)", "it has 2 ranks, the servable is declared with 4"),
        ("distributed.declare_servable(2, 2)", "a servable of several stages needs 8 ranks"),
        ("register.declare_model(lambda x: x, 'Python')", "has no distributed.declare_servable"),
    ],
)
def test_a_servable_that_does_not_fit_is_a_single_error(scripts, config, reason):
    made = scripts()
    head, _, rest = (made.directory / "big/servable_config.py").read_text().partition("model =")
    body = rest.partition("\n")[2]
    made.write("big/servable_config.py", f"{head}model = {config}\n{body}")
    server = made.start_server()
    assert server.status() == 1
    assert reason in server.text
