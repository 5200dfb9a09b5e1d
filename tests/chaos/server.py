"""A server for the chaos suite: a start-up script as a process, found and ended by its mark."""

import json
import os
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import servables
from tests.chaos.processes import MARK, kill_marked, marked, parent, servable_of
from tests.e2e.harness import Calls, Script, eventually, free_port, is_alive, memory

KEY = "a-key-of-the-chaos-suite"
MOST_MEMORY = 8 << 30  # bytes of a server's processes together, beyond which it is killed

_NONE: dict[str, Any] = {"requests": {"running": 0, "waiting": 0}, "num_workers": 0}
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
_SCRIPT = """
import json, threading
from mindspore_serving import server
from mindspore_serving.server import master
site = json.load(open("site.json"))
master.context.set_max_enqueued_requests(site["limit"])
def open_ports():
    more = dict(api_keys=site["keys"], limits=server.ServerLimits(**site["limits"]))
    server.start_restful_server(site["http"], site["max_mb"], use_status_codes=True, **more)
    server.start_grpc_server(site["grpc"], site["max_mb"], **more)

def start_servables():
    server.start_servables([
        server.ServableStartConfig(
            ".", name, num_parallel_workers=workers, llm_options=options, **site["timeouts"]
        )
        for name, workers, options in site["servables"]
    ])

steps = [open_ports, start_servables]
for step in reversed(steps) if site["servables_first"] else steps:
    step()
print("all started", flush=True)
if not site["script_ends"]:  # wait as the command line does
    try:
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
    except (KeyboardInterrupt, SystemExit):
        pass
"""


@dataclass(frozen=True, slots=True)
class Site:
    """How a server is started.  Faults of equal sites may share one."""

    toy_workers: int = 2
    keys: tuple[str, ...] = ()
    max_message_mb: int = 100
    limit: int = 10_000  # requests in flight
    limits: tuple[tuple[str, float], ...] = ()  # fields of ServerLimits
    servables_first: bool = False  # the script opens the ports when all servables are loaded
    taken: str = ""  # the port that somebody else listens on: "http" or "grpc"
    script_ends: bool = False  # the script ends when all is started, and the server goes on
    environment: tuple[tuple[str, str], ...] = ()
    clock: str = ""  # what libfaketime makes of the time; "": nothing
    has_small_logs: bool = False  # serving_logs is a file system of 1 MiB
    heartbeat_timeout: float = 10.0
    stage_timeout: float = 0.0
    llm_options: tuple[tuple[str, int | str], ...] = (("max_num_seqs", 16), ("dtype", "f32"))

    def to_json(self, http: int, grpc: int) -> str:
        """For the script; the arguments are ports."""
        site = {
            "http": f"127.0.0.1:{http}",
            "grpc": f"127.0.0.1:{grpc}",
            "keys": self.keys,
            "max_mb": self.max_message_mb,
            "limit": self.limit,
            "limits": dict(self.limits),
            "servables_first": self.servables_first,
            "timeouts": {
                "heartbeat_timeout": self.heartbeat_timeout,
                "stage_timeout": self.stage_timeout,
            },
            "script_ends": self.script_ends,
            "servables": [
                ("toy", self.toy_workers, None),
                ("good", 1, None),
                ("tiny", 1, dict(self.llm_options)),
            ],
        }
        return json.dumps(site)


WATCHED = Site(heartbeat_timeout=2.0, stage_timeout=3.0)
"""Where what hangs is ended before requests count as hung."""


class Server:
    """Starts at once; `wait_until_started` waits until it can be called.  `is_held`: its workers
    of `toy` do not finish loading before `release_loading`.

    Attributes:
        directory: its working directory, with the servables and serving_logs.
        http, grpc: its ports on 127.0.0.1.
    """

    def __init__(self, site: Site, directory: Path, *, is_held: bool = False) -> None:
        self.site = site
        self.directory = directory
        self.http, self.grpc = free_port(), free_port()
        self._taken = _listen(getattr(self, site.taken)) if site.taken else None
        self._mark = secrets.token_hex(8)
        path = servables.build(directory) / "start.py"
        path.write_text(_SCRIPT)
        (directory / "site.json").write_text(site.to_json(self.http, self.grpc))
        if is_held:
            self.hold_loading()
        if site.has_small_logs:
            _mount(directory / "serving_logs")
        self.script = Script(path, self._environment())
        self.pid = self.script.pid
        self.text = ""  # what its language model says when all is well
        self._is_closed = threading.Event()
        self._guard = threading.Thread(target=self._watch_memory, daemon=True)
        self._guard.start()

    def wait_until_started(self) -> None:
        self.script.says("all started")

    @property
    def headers(self) -> dict[str, str]:
        key = self.site.keys[0] if self.site.keys else ""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        calls = Calls(f"127.0.0.1:{self.grpc}", self.http)
        return calls.http_call("GET", path, headers=self.headers)

    def row(self, servable: str) -> dict[str, Any]:
        """What /servables says of it."""
        rows = json.loads(self.get("/servables")[1])["servables"]
        return next((row for row in rows if row["name"] == servable), _NONE)

    @property
    def refuses(self) -> bool:
        """Whether its HTTP port is closed."""
        try:
            socket.create_connection(("127.0.0.1", self.http)).close()
        except OSError:
            return True
        return False

    @property
    def is_running(self) -> bool:
        return self.script.process.poll() is None

    def pids(self) -> list[int]:
        """All living processes that it started, itself included."""
        return [pid for pid in marked(self._mark) if is_alive(pid)]

    def workers(self, servable: str) -> list[int]:
        return sorted(pid for pid in self.pids() if servable_of(pid) == servable)

    def orphans(self) -> list[int]:
        """Living processes of it that do not descend from the master, which may have ended."""
        pids = self.pids()
        family = {self.pid} if self.is_running else set()
        while grown := {pid for pid in pids if pid not in family and parent(pid) in family}:
            family |= grown
        return [pid for pid in pids if pid not in family]

    def set_clock(self, clock: str) -> None:
        """As "+3600", for an hour later."""
        (self.directory / "clock").write_text(clock)

    def hold_loading(self) -> None:
        """Workers of `toy` that are started from now on do not finish loading."""
        (self.directory / servables.HOLD).touch()

    def release_loading(self) -> None:
        (self.directory / servables.HOLD).unlink(missing_ok=True)

    def close(self) -> None:
        """End it and all that it started, whatever state that is in."""
        self._is_closed.set()
        kill_marked(self._mark)
        self.script.end()
        self._guard.join()
        if self._taken is not None:
            self._taken.close()
        if self.site.has_small_logs:
            subprocess.run(["umount", "-l", str(self.directory / "serving_logs")], check=True)

    def _environment(self) -> dict[str, str]:
        environment = {MARK: self._mark, **dict(self.site.environment)}
        if self.site.clock:
            self.set_clock(self.site.clock)
            environment["LD_PRELOAD"] = str(FAKETIME[0])
            environment["FAKETIME_TIMESTAMP_FILE"] = str(self.directory / "clock")
            environment["FAKETIME_NO_CACHE"] = "1"
        return environment

    def _watch_memory(self) -> None:
        while not self._is_closed.wait(0.25):
            if total_memory(self.pids()) > MOST_MEMORY:
                kill_marked(self._mark)


def _listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def _mount(directory: Path) -> None:
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(directory)]
    subprocess.run(command, check=True)


def total_memory(pids: Sequence[int]) -> int:
    """Resident bytes; shared pages count for each."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += memory(pid)
    return total


def send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until_gone(pids: Sequence[int], seconds: float) -> bool:
    """Whether all have ended in time."""
    with suppress(AssertionError):
        return eventually(lambda: not any(map(is_alive, pids)), seconds)
    return False
