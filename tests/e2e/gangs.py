"""Distributed servables for tests: a directory with a start-up script and scripts of agents."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from mindspore_serving.client import Client
from mindspore_serving.server import distributed
from tests.distributed import tables
from tests.e2e.harness import Script, children, eventually, is_alive, workers
from tests.ports import free_port
from tests.waiting import PATIENCE

CONFIG = """
from mindspore_serving.server import distributed, register

model = distributed.declare_servable({spec})

@register.register_method(output_names=["y"])
def predict(x):
    return register.add_stage(model, x, outputs_count=1)
"""

# Waits while x is negative, until a file is there; the answer names the rank.
MODEL = """
import os, time
RANK = int(os.environ["RANK_ID"])

def model(x):
    if (x < 0).all():
        open(f"running{RANK}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
    if (x == 13).any():
        raise ValueError(f"no 13 on rank {RANK}")
    return x * 2 + RANK
"""

ANSWER = [[3.0, 3.0], [5.0, 5.0]]  # of 1 and 2, by the last of two ranks

SERVER = """
from mindspore_serving import server
from mindspore_serving.server import distributed

distributed.start_servable(".", "big", "table.json", distributed_address="{agents}", {options})
server.start_grpc_server("127.0.0.1:{grpc}")
server.start_restful_server("127.0.0.1:{http}")
print("it serves", flush=True)
"""

AGENTS = """
from mindspore_serving.server import distributed

distributed.startup_agents("{agents}", {files!r}, **{options!r})
print("agents run", flush=True)
"""


class GangScripts:
    """The scripts of a servable "big" of `rank_size` ranks; `files` is a model file for each."""

    def __init__(self, directory: Path, rank_size: int = 2, spec: str = "stage_size=1") -> None:
        self.directory = directory
        self.agents = f"127.0.0.1:{free_port()}"
        self.grpc, self.http = free_port(), free_port()
        self.scripts: list[Script] = []
        self.write("big/servable_config.py", CONFIG.format(spec=f"{rank_size}, {spec}"))
        self.write("model.py", MODEL)
        firsts = range(0, rank_size, 8)
        machines = [(f"127.0.0.{n // 8 + 1}", min(8, rank_size - n)) for n in firsts]
        self.write("table.json", json.dumps(tables.servers(*machines)))
        self.rank_size = rank_size

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, name: str, source: str, **environment: str) -> Script:
        self.write(name, source)
        self.scripts.append(Script(self.directory / name, environment))
        return self.scripts[-1]

    def start_server(self, options: str = "", **environment: str) -> Script:
        source = SERVER.format(agents=self.agents, grpc=self.grpc, http=self.http, options=options)
        return self.run("server.py", source, **environment)

    def start_agents(
        self, files: Sequence[Any] = (), name: str = "agents.py", **options: Any
    ) -> Script:
        environment = options.pop("environment", {})
        files = list(files or ["model.py"] * self.rank_size)
        source = AGENTS.format(agents=self.agents, files=files, options=options)
        return self.run(name, source, **environment)

    def start_server_here(self, **options: Any) -> None:
        """In this process; returns when the agents have joined, or raises."""
        table = str(self.directory / "table.json")
        distributed.start_servable(
            str(self.directory), "big", table, distributed_address=self.agents, **options
        )

    def start_agents_here(self, files: Sequence[str] = ()) -> None:
        """In this process; returns when they have joined, or raises."""
        names = files or ["model.py"] * self.rank_size
        distributed.startup_agents(self.agents, [str(self.directory / name) for name in names])

    def client(self, method: str = "predict") -> Client:
        return Client(f"127.0.0.1:{self.grpc}", "big", method, timeout=PATIENCE)

    def ask(self, *values: float) -> Any:
        """y of each instance, or the error."""
        with self.client() as client:
            found = client.infer([{"x": np.full(2, value, np.float32)} for value in values])
        if isinstance(found, dict):
            return found["error"]
        return [one["error"] if "error" in one else one["y"].tolist() for one in found]

    def servables(self) -> Any:
        """What `mindspore-serving status` gets."""
        with urlopen(f"http://127.0.0.1:{self.http}/servables", timeout=PATIENCE) as answer:
            return json.load(answer)["servables"]

    def serves_again(self, expected: Any, *values: float) -> None:
        eventually(lambda: self.ask(*values) == expected, what="an answer of a new gang")

    def running(self, rank: int) -> None:
        """Wait until a prediction runs on `rank`."""
        eventually((self.directory / f"running{rank}").exists)

    def go(self) -> None:
        (self.directory / "go").touch()

    def close(self) -> None:
        for script in self.scripts:
            script.end()
            print(script.text)  # shown where a test fails


class SharedGang:
    """The scripts of two ranks that serve, for one test after another.

    `options` are the server's; `prepare` writes other files before the first start.
    """

    def __init__(
        self,
        make_directory: Callable[[], Path],
        options: str = "",
        prepare: Callable[[GangScripts], dict[str, Any]] = lambda _: {},
    ) -> None:
        self._make_directory, self._options, self._prepare = make_directory, options, prepare
        self._made: list[GangScripts] = []
        self._of_agents: dict[str, Any] = {}

    @property
    def made(self) -> GangScripts:
        return self._made[-1]

    def ensure(self) -> None:
        """Start anew what the last test has ended, and wait until it serves."""
        if not self._made or self.server.process.poll() is not None:
            self.close()
            self._made.append(GangScripts(self._make_directory()))
            self._of_agents = self._prepare(self.made)
            self.start_server()
            self.start_agents()
            self.server.says("it serves")
        elif self.agents.process.poll() is not None:
            self.start_agents()
        for path in [self.made.directory / "go", *self.made.directory.glob("running*")]:
            path.unlink(missing_ok=True)
        self.made.serves_again(ANSWER, 1, 2)

    def start_server(self) -> None:
        self.server = self.made.start_server(self._options)

    def start_agents(self) -> None:
        self.agents = self.made.start_agents(**self._of_agents)

    def close(self) -> None:
        if self._made:
            self.made.close()


def agents_of(script: Script) -> dict[int, int]:
    """The process of each rank."""
    found = {}
    for pid in children(script.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if "mindspore_serving.distributed" in words and is_alive(pid):
            name = words[words.index("--name") + 1]
            found[int(name.split("rank:")[1].split(",")[0])] = pid
    return found


def worker_of(script: Script) -> int:
    (pid,) = workers(script.pid)
    return pid


def all_ended(*pids: int) -> bool:
    return not any(is_alive(pid) for pid in pids)


def processes_in(directory: Path) -> list[str]:
    """Every process whose working directory is `directory`."""
    found = []
    for cwd in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if cwd.resolve() == directory.resolve() and is_alive(int(cwd.parent.name)):
                found.append(cwd.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
