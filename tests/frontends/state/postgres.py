"""A server of PostgreSQL for the tests, in a directory of its own."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import PATIENCE

PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
SETTINGS = {"fsync": "off", "shared_buffers": "1MB", "max_connections": "20"}


def program(name: str) -> str:
    """Return the path of a program of PostgreSQL; skip the test without it."""
    places = os.pathsep.join([*map(str, PLACES), os.environ.get("PATH", "")])
    found = shutil.which(name, path=places)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install postgresql)")
    return found


def user() -> dict[str, Any]:
    """Return whose processes the server's are: PostgreSQL refuses to run as root."""
    if os.getuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def run(words: Sequence[str], directory: Path) -> None:
    done = subprocess.run(
        words, cwd=directory, capture_output=True, text=True, timeout=PATIENCE, **user()
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Postgres:
    """A server; `url` is that of its database."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self.url = f"postgresql://tester:secret@127.0.0.1:{self._port}/postgres"
        (directory / "password").write_text("secret")
        if user():
            for path in (directory, directory / "password"):
                os.chown(path, user()["user"], user()["group"])
        words = [program("initdb"), "--username=tester", "--auth=scram-sha-256", "--no-sync",
                 "--no-instructions", "--pwfile=password", "data"]  # fmt: skip
        run(words, directory)

    def start(self) -> None:
        settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        place = f"-c unix_socket_directories='' -c listen_addresses=127.0.0.1 -p {self._port}"
        self._control("start", "-w", "-o", f"{settings} {place}")

    def stop(self) -> None:
        self._control("stop", "-m", "immediate")

    def _control(self, *words: str) -> None:
        run([program("pg_ctl"), "-D", "data", "-l", "log", *words], self._directory)


@contextmanager
def serving_postgres() -> Iterator[Postgres]:
    """A server that runs, stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as directory:
        server = Postgres(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()
