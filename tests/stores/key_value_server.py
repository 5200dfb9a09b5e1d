"""A Valkey or Redis server of the system for tests."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

PROGRAM = shutil.which("valkey-server") or shutil.which("redis-server")
PASSWORD = "p@ss word/with:all"


class KeyValueServer:
    """A server with a password, on a port of its own; ended with the `with` block.

    `options` are those of its command line.  With `certificates` (authority, certificate, key) it
    speaks TLS alone.
    """

    def __init__(
        self, directory: Path, *options: str, certificates: Sequence[str] = (), port: int = 0
    ) -> None:
        if PROGRAM is None:
            pytest.skip("neither valkey-server nor redis-server is installed")
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        ports = ["--port", str(self.port)]
        connection = {}
        if certificates:
            authority, certificate, key = certificates
            self.url = f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={authority}"
            ports = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            ports += ["--tls-ca-cert-file", authority, "--tls-cert-file", certificate]
            ports += ["--tls-key-file", key]
            connection = {"ssl": True, "ssl_ca_certs": authority}
        words = [PROGRAM, "--bind", "127.0.0.1", "--save", "", "--dir", str(directory), *ports]
        words += ["--requirepass", PASSWORD, *options]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(
            "127.0.0.1", port=self.port, password=PASSWORD, socket_timeout=PATIENCE, **connection
        )
        try:
            eventually(self._answers)
        except BaseException:
            self.__exit__()
            raise

    def stop(self) -> None:
        """Stop the process, which keeps its connections and answers nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def __enter__(self) -> "KeyValueServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.kill()  # also if it is stopped
        self.process.wait(PATIENCE)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            assert self.process.poll() is None
            return False
