"""Pages of the documentation as their readers follow them: files are written, consoles are typed.

A block that begins with `# PATH` is that file.  A `console` block is typed line by line in
the directory of those files: `$ COMMAND` must print exactly the lines below it, and `$ COMMAND &`
is a server, which must get ready, a script of agents, which wait for one, or a machine that joins
one later.  Ports are replaced by free ones.  Other blocks are not run, but Python must be Python.
"""

import http.client
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.commands import Command, environment
from tests.e2e.harness import ROOT, eventually
from tests.llm.real_model import real_model
from tests.ports import free_port
from tests.waiting import PATIENCE

PAGES = ["README.md", "README_CN.md", "ARCHITECTURE.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
# The code of README_CN.md is that of README.md, which the tests of READMEs run.
MODEL_PAGES = [
    f"docs/{name}.md"
    for name in (
        "backends",
        "first_steps",
        "from_torchserve_bentoml",
        "hugging_face",
        "networks",
        "ranking",
    )
]
SERVER_PAGES = [page for page in PAGES if page.startswith("docs/") and page not in MODEL_PAGES]
NEEDS = {"mindspore": "mindspore", "onnx": "onnx", "torch": "torch"}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")
_PORT = re.compile(r"(?<=[0-9]:)[1-9][0-9]{3,4}\b|(?<=-port |port: )[1-9][0-9]{3,4}\b")


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*match) for match in FENCE.findall((ROOT / page).read_text())]


def file_name(block: Block) -> str | None:
    found = re.match(r"# ([\w./-]+\.(?:py|toml|yaml|pbtxt)|[\w./-]*Modelfile)\n", block.text)
    return found.group(1) if found else None


class Step(NamedTuple):
    """A command, and the lines it is to print."""

    command: str
    expected: str


def steps(console: str) -> list[Step]:
    found = []
    for chunk in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, _, expected = chunk.partition("\n")
        found.append(Step(command, expected.strip()))
    return found


class Typist:
    """Types a page's consoles in `directory`."""

    def __init__(self, directory: Path, servers: ExitStack) -> None:
        self._directory, self._servers = directory, servers
        self._ports: dict[str, str] = {}
        for name, words in (("python", []), ("mindspore-serving", ["-m", "mindspore_serving"])):
            script = directory / "bin" / name
            script.parent.mkdir(exist_ok=True)
            script.write_text(f'#!/bin/sh\nexec {" ".join([sys.executable, *words])} "$@"\n')
            script.chmod(0o755)
        (directory / "examples").symlink_to(ROOT / "examples")  # what pages say of a checkout

    def write(self, block: Block) -> None:
        name = file_name(block)
        assert name is not None
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._with_free_ports(block.text))

    def type(self, step: Step) -> None:
        command = self._with_free_ports(step.command)
        if command.endswith("&"):
            self._serve(command.removesuffix("&").strip())
            return
        done = subprocess.run(
            ["bash", "-c", self._on_path(command)],
            cwd=self._directory,
            env={**environment(), "GLOG_v": "3"},
            text=True,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        told = f"{command}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip() == self._with_free_ports(step.expected), told

    def _serve(self, command: str) -> None:
        words = ["bash", "-c", self._on_path(f"exec {command}")]
        server = self._servers.enter_context(Command(words, self._directory))
        source = command
        if command.startswith("python "):
            source = (self._directory / command.split()[1]).read_text()
        if configuration := re.search(r"--config (\S+)", command):
            source += (self._directory / configuration.group(1)).read_text()
        if "startup_agents(" in source:
            return  # they wait for a server that comes later
        if " worker --join" in command:
            server.says("Joining")
            return
        ports = [new for new in self._ports.values() if new in source]

        def is_ready() -> bool:
            assert server.process.poll() is None, server.text
            return any(map(answers_ready, ports))

        eventually(is_ready, what=f"ready: {command}\n{server.text}")

    def _on_path(self, command: str) -> str:
        return f"PATH={self._directory}/bin:$PATH; {command}"

    def _with_free_ports(self, text: str) -> str:
        return _PORT.sub(
            lambda found: self._ports.setdefault(found.group(), str(free_port())), text
        )


def answers_ready(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):  # not yet; or it is the gRPC port
        return False


def follow(page: str, directory: Path) -> None:
    """Write the files of a page in `directory` and type its consoles, which must print as shown."""
    found = blocks(page)
    code = "\n".join(block.text for block in found if block.language == "python")
    for library, name in NEEDS.items():
        if re.search(rf"^import {name}\b", code, re.MULTILINE):
            pytest.importorskip(library)
    if "examples/smollm2.py" in (ROOT / page).read_text():
        real_model()  # or skip
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with ExitStack() as servers:
        typist = Typist(directory, servers)
        for block in found:
            if file_name(block):
                typist.write(block)
        for block in found:
            if block.language == "console":
                for step in steps(block.text):
                    typist.type(step)
