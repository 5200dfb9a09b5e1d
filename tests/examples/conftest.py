"""Runs an example as its reader would: a copy, its three scripts, real processes, free ports."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from mindspore_serving.cli import report
from mindspore_serving.cli.client_commands import Reach
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.client import Client
from tests import printed
from tests.e2e.harness import Script
from tests.ports import free_port
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
READY = "RESTful server start success"  # printed by the last thing that every server script does
START_SECONDS, STOP_SECONDS, SCRIPT_SECONDS = 120, 60, 240


def environment() -> dict[str, str]:
    names = ("SERVING_GRPC_PORT", "SERVING_HTTP_PORT")
    ports = {name: str(free_port()) for name in names}
    return {**os.environ, **ports, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}


@dataclass(frozen=True, slots=True)
class Example:
    """A running example: `directory` is the copy; `servable` the name it is served under."""

    directory: Path
    servable: str
    env: dict[str, str]
    server: "subprocess.Popen[str]"

    def client(self, method: str) -> Client:
        return Client("127.0.0.1:" + self.env["SERVING_GRPC_PORT"], self.servable, method)

    def post(self, method: str, instances: Any) -> Any:
        connection = http.client.HTTPConnection(
            "127.0.0.1", int(self.env["SERVING_HTTP_PORT"]), timeout=PATIENCE
        )
        body = json.dumps({"instances": instances})
        connection.request("POST", f"/model/{self.servable}:{method}", body)
        reply = json.loads(connection.getresponse().read())
        connection.close()
        return reply["instances"]

    def printed_commands(self) -> list[str]:
        """The commands that `serve` prints for these servables."""
        port = int(self.env["SERVING_HTTP_PORT"])
        url = f"http://127.0.0.1:{port}"
        with urlopen(f"{url}/servables", timeout=PATIENCE) as answer:
            rows = json.load(answer)["servables"]
        settings = ServeSettings(paths=["."], http_port=port)
        return printed.commands(report.ready(settings, Reach.of(settings), rows, 0.0))

    def run_client(self) -> str:
        return run_script(self.directory / "serving_client.py", self.env)

    def libraries_of_workers(self) -> list[str]:
        """For each worker process of the server, the files that are mapped into it."""
        found = []
        for children in Path(f"/proc/{self.server.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                if b"mindspore_serving.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(Path(f"/proc/{pid}/maps").read_text())
        return found


def run_script(path: Path, env: dict[str, str], status: int = 0) -> str:
    """The output of a script that must end with exit status `status`."""
    done = subprocess.run(
        [sys.executable, str(path)],
        env=env,
        cwd=path.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    assert done.returncode == status, f"{path.name} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout


@contextmanager
def started(
    command: list[str], cwd: Path, env: dict[str, str], sign: str = READY
) -> "Iterator[subprocess.Popen[str]]":
    """A server process that printed `sign`; stopped by SIGINT, as by Ctrl-C, and must then exit."""
    process = subprocess.Popen(
        command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    lines: list[str] = []
    ready = threading.Event()

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)
            if sign in line:
                ready.set()
        ready.set()  # the end: nothing more will come

    reader = threading.Thread(target=read)
    reader.start()
    try:
        ready.wait(START_SECONDS)
        assert any(sign in line for line in lines), "no server:\n" + "".join(lines)
        yield process
        assert process.poll() is None, "the server died:\n" + "".join(lines)
        process.send_signal(signal.SIGINT)
        process.wait(STOP_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(STOP_SECONDS)
        if process.stdout:
            process.stdout.close()


def copy_examples(source: Path, target: Path) -> Path:
    """A copy without what earlier runs have made."""
    made = shutil.ignore_patterns("1", "test_images", "__pycache__", "serving_logs", "rank_0")
    return Path(shutil.copytree(source, target, ignore=made))


@pytest.fixture(scope="module")
def serve_example() -> Iterator[Callable[[Path, str], Example]]:
    """serve_example(copy, servable): start the server, and stop it after the module."""
    with ExitStack() as stack:

        def serve(copy: Path, servable: str) -> Example:
            env = environment()
            command = [sys.executable, "serving_server.py"]
            return Example(copy, servable, env, stack.enter_context(started(command, copy, env)))

        yield serve


@pytest.fixture(scope="module")
def run_example(
    tmp_path_factory: pytest.TempPathFactory, serve_example: Callable[[Path, str], Example]
) -> Callable[..., Example]:
    """run_example(name, servable): export and `serve_example`."""

    def run(name: str, servable: str) -> Example:
        copy = copy_examples(ROOT / "examples" / name, tmp_path_factory.mktemp("run") / name)
        run_script(copy / "export_model.py", environment())
        return serve_example(copy, servable)

    return run


@dataclass(frozen=True, slots=True)
class GangExample(Example):
    """One with a script of agents."""

    agents: Script


@pytest.fixture(scope="module")
def run_gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., GangExample]]:
    """run_gang(name, servable): export, start the agents and then the server; the agents must end
    with the server."""
    with ExitStack() as stack:

        def run(name: str, servable: str) -> GangExample:
            copy = copy_examples(ROOT / "examples" / name, tmp_path_factory.mktemp("run") / name)
            ports = {f"SERVING_{one}_PORT": str(free_port()) for one in ("AGENT", "TORCH")}
            env = environment() | ports
            run_script(copy / "export_model.py", env)
            agents = Script(copy / "serving_agent.py", env)
            stack.callback(agents.end)
            stack.callback(agents.status)
            command = [sys.executable, "serving_server.py"]
            process = stack.enter_context(started(command, copy, env))
            return GangExample(copy, servable, env, process, agents)

        yield run


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """reference(code, *arguments): what `code`, in a process of its own, prints last, as JSON."""

    def run(code: str, *arguments: str) -> Any:
        script = tmp_path_factory.mktemp("reference") / "reference.py"
        script.write_text(f"import sys\nsys.argv[1:] = {list(arguments)!r}\n{code}")
        return json.loads(run_script(script, environment()).splitlines()[-1])

    return run


@dataclass(frozen=True, slots=True)
class Demo:
    """A copy of all examples; `run` is examples/demo.py to its end, `serve` leaves it running."""

    directory: Path
    env: dict[str, str]

    def run(self, status: int = 0) -> str:
        return run_script(self.directory / "demo.py", self.env, status)

    def processes(self) -> list[str]:
        """The processes that run in the directory: demo, server, workers."""
        found = []
        for cwd in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):  # it has ended, or is another user's
                if cwd.resolve() == self.directory.resolve():
                    found.append(cwd.with_name("cmdline").read_text().replace("\0", " "))
        return found

    def serve(self) -> "AbstractContextManager[subprocess.Popen[str]]":
        command = [sys.executable, "demo.py", "--serve"]
        return started(command, self.directory, self.env, sign="serving until Ctrl-C")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    copy = copy_examples(ROOT / "examples", tmp_path_factory.mktemp("demo") / "examples")
    return Demo(copy, environment())
