"""Two machines on this one, for benchmarks of roles: nodes that join a server at 127.0.0.1.

With a delay the first is in a network namespace of its own, whose only ways out are links that
delay each byte: to the server, and to the port for blocks of the second machine.  Needs root then.
"""

import ctypes
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.processes import free_ports, running
from tests.slow_link import SlowLink

TOKEN = "a token of no use elsewhere"
FAR = "127.0.0.3"  # address of the second machine
_CLONE_NEWNET = 0x40000000


@contextmanager
def namespace(name: str) -> Iterator[None]:
    """Make a network namespace, in which this host's addresses are others."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def listen_in(name: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens in a namespace; a thread enters that, as it stays there."""
    streams: list[socket.socket] = []

    def enter() -> None:
        with open(f"/run/netns/{name}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        streams.append(socket.create_server((host, port)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return streams[0]


def listening_port(host: str) -> int:
    """Return the port at which a worker listens for blocks at `host`."""
    address = bytes(reversed(socket.inet_aton(host))).hex().upper()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        if local.startswith(address) and state == "0A":
            return int(local.partition(":")[2], 16)
    raise LookupError(f"nothing listens at {host}")


class Machines:
    """Machines that join a server, one after the other; `words` are options of `serve`."""

    def __init__(self, stack: ExitStack, name: str, directory: Path, delay: float) -> None:
        self._stack, self._name, self._delay = stack, name, delay
        self._token = directory / f"token-{name}"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        (self._port,) = free_ports(1)
        where = f"127.0.0.1:{self._port}"
        self.words = ["--worker-address", where, "--insecure", "--local-slots", "0"]
        self.words += ["--token-file", str(self._token)]
        if delay:
            stack.enter_context(namespace(name))
            self._link("127.0.0.1", self._port)

    def can_join(self) -> bool:
        """Return whether the server accepts machines."""
        socket.create_connection(("127.0.0.1", self._port)).close()
        return True

    def join(self) -> None:
        """Start both machines."""
        inside = ["ip", "netns", "exec", self._name] if self._delay else []
        self._join("near", inside, "127.0.0.2", core=0)
        self._join("far", [], FAR, core=1)

    def open_link(self) -> None:
        """Delay what the first machine sends to the port for blocks of the second one."""
        if self._delay:
            self._link(FAR, listening_port(FAR))

    def _link(self, host: str, port: int) -> None:
        stream = listen_in(self._name, host, port)
        link = SlowLink((host, port), delay=self._delay, stream=stream)
        self._stack.callback(link.close)

    def _join(self, machine: str, prefix: list[str], address: str, core: int) -> None:
        log = Path(__file__).parent / ".cache" / "logs" / f"{self._name}_{machine}.log"
        command = [*prefix, "taskset", "-c", str(core), sys.executable, "-m", "mindspore_serving"]
        command += ["worker", "--join", f"127.0.0.1:{self._port}", "--insecure", "--slots", "1"]
        command += ["--token-file", str(self._token), "--name", machine, "--address", address]
        has_joined = partial(_says, log, b"Joined")
        self._stack.enter_context(running(f"{self._name}_{machine}", command, has_joined))


def _says(log: Path, text: bytes) -> bool:
    return log.is_file() and text in log.read_bytes()
