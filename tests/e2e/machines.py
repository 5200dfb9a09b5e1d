"""A server in this process, and machines that join it: processes of this machine."""

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mindspore_serving import server
from tests.cli.commands import SERVING, Command
from tests.e2e.fragile import SOURCE
from tests.e2e.harness import Calls, config, eventually, is_alive, workers, write_servable
from tests.ports import free_port

TOKEN = "a token of no use elsewhere"


class Machine(Command):
    """A machine that joins; `pid` is its node."""

    def __init__(
        self, name: str, where: str, options: list[str], directory: Path, prefix: Sequence[str] = ()
    ) -> None:
        words = [*prefix, *SERVING, "worker", "--join", where, "--name", name, *options]
        super().__init__(words, directory)
        self.name = name

    def workers(self) -> list[int]:
        return workers(self.pid)


class Cluster:
    """A server at `where` for machines, whose clients use `calls`.  In the working directory."""

    def __init__(
        self, stack: ExitStack, directory: Path, host: str = "127.0.0.1", **options: Any
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.where = f"{host}:{self.port}"
        self.calls = Calls(f"127.0.0.1:{free_port()}", free_port())
        self._stack = stack
        token = directory / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.join_options = ["--token-file", str(token)]
        if not options.get("ssl_config"):
            options["insecure"] = True
            self.join_options.append("--insecure")
        options.setdefault("token_file", token)
        server.start_node_server(self.where, **options)
        server.start_grpc_server(self.calls.grpc)
        server.start_restful_server(f"127.0.0.1:{self.calls.http}")

    def machine(self, name: str, *options: str, prefix: Sequence[str] = ()) -> Machine:
        """Start a machine that tries to join; `prefix` is put before its command line."""
        words = [*self.join_options, *options]
        machine = Machine(name, self.where, words, self.directory, prefix)
        return self._stack.enter_context(machine)

    def join(self, name: str, *options: str, prefix: Sequence[str] = ()) -> Machine:
        """One that has joined."""
        machine = self.machine(name, *options, prefix=prefix)
        machine.says("Joined")
        return machine

    def rows(self, servable: str = "toy") -> list[dict[str, Any]]:
        """What the server says of the workers of a servable."""
        found = json.loads(self.calls.http_call("GET", "/servables")[1])["servables"]
        return next((one["workers"] for one in found if one["name"] == servable), [])

    def ready(self, servable: str = "toy") -> dict[str, int]:
        """How many workers are ready on each machine."""
        return dict(Counter(r["node"] for r in self.rows(servable) if r["state"] == "ready"))

    def pids(self, servable: str = "toy") -> list[int]:
        return [row["pid"] for row in self.rows(servable) if row["state"] == "ready"]


@contextmanager
def cluster(directory: Path, **options: Any) -> Iterator[Cluster]:
    """`options` are those of `start_node_server`; without certificates it is insecure."""
    with ExitStack() as stack:
        stack.callback(server.stop)
        made = Cluster(stack, directory, **options)
        stack.callback(made.calls.close)
        yield made


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def all_end(pids: list[int]) -> None:
    """Wait until none of these processes is there."""
    eventually(lambda: not any(map(is_alive, pids)), what=f"one of {pids} is still there")


def serve(made: Cluster, **options: Any) -> None:
    """Start "toy", which hangs and dies on request."""
    write_servable(made.directory, "toy", SOURCE)
    server.start_servables(config(made.directory, "toy", **options))


def who(made: Cluster) -> int:
    return int(made.calls.post("toy", "pid", [{"x": 0}])["instances"][0]["pid"])


def answered(future: "Future[Any]") -> int:
    """The worker that ran it."""
    (result,) = future.result()
    return int(result["pid"])
