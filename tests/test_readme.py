"""The code of the documentation runs: its files are written, its consoles are typed, as shown.

A block that begins with `# PATH` is that file.  A `console` block is typed line by line in
the directory of those files: `$ COMMAND` must print exactly the lines below it, and `$ COMMAND &`
is a server, which must get ready, a script of agents, which wait for one, or a machine that joins
one later.  Ports are replaced by free ones.  Other blocks are not run, but Python must be Python.
"""

import ast
import http.client
import re
import shutil
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.cli.commands import Command, environment
from tests.e2e.harness import ROOT, eventually
from tests.llm.real_model import real_model
from tests.ports import free_port
from tests.waiting import PATIENCE

PAGES = ["README.md", "README_CN.md", "ARCHITECTURE.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
RUN = [page for page in PAGES if page != "README_CN.md"]  # its code is that of README.md
NEEDS = {"mindspore": "mindspore", "onnx": "onnx", "torch": "torch"}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")
_PORT = re.compile(r"(?<=[0-9]:)[1-9][0-9]{3,4}\b|(?<=-port |port: )[1-9][0-9]{3,4}\b")


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(*match) for match in _FENCE.findall((ROOT / page).read_text())]


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
        assert done.stdout.strip() == self._with_free_ports(step.expected), done.stderr

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


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_examples_of_a_page_work_as_shown(page: str, tmp_path: Path) -> None:
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
        typist = Typist(tmp_path, servers)
        for block in found:
            if file_name(block):
                typist.write(block)
        for block in found:
            if block.language == "console":
                for step in steps(block.text):
                    typist.type(step)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_is_python(page: str) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    text = _FENCE.sub("", (ROOT / page).read_text())
    for target, _ in _LINK.findall(text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_blocks_and_links_of_pages_are_found() -> None:
    """Without which the tests above would find nothing to be wrong."""
    text = (ROOT / "README.md").read_text()
    assert {"python", "console"} <= {block.language for block in blocks("README.md")}
    assert "docs/clients.md" in {target for target, _ in _LINK.findall(text)}


def test_both_readmes_show_the_same_code() -> None:
    without_comments = [
        [(b.language, re.sub(r"#.*", "#", b.text)) for b in blocks(page)]
        for page in ("README.md", "README_CN.md")
    ]
    assert without_comments[0] == without_comments[1]


def test_the_chinese_readme_has_the_same_sections_rows_and_links() -> None:
    shapes, links = [], []
    for page in ("README.md", "README_CN.md"):
        text = (ROOT / page).read_text()
        shapes.append(re.findall(r"(?m)^(#+|[|-]) ", text))
        targets = {link.replace("docs/zh/", "docs/") for link, _ in _LINK.findall(text)}
        links.append(targets - {"README.md", "README_CN.md"})
    assert shapes[0] == shapes[1]
    assert links[0] == links[1]


@pytest.mark.e2e
def test_the_backend_of_the_page_is_found_by_its_entry_point_and_serves(tmp_path: Path) -> None:
    with ExitStack() as servers:
        typist = Typist(tmp_path, servers)
        page = blocks("docs/backends.md")
        for block in page:
            if file_name(block):
                typist.write(block)
        (toml,) = [block.text for block in page if block.language == "toml"]
        install(tmp_path, re.sub(r'"', "", toml.partition("\n")[2]))
        (tmp_path / "linear" / "1").mkdir()
        np.savez(tmp_path / "linear" / "1" / "weight.npz", weight=np.array([[1.0, 2], [3, 4]]))
        path = f"PYTHONPATH={tmp_path}:$PYTHONPATH"
        port = "--http-port 1999 --no-grpc"
        typist.type(Step(f"env {path} mindspore-serving serve linear {port} &", ""))
        call = "mindspore-serving predict http://127.0.0.1:1999 linear predict"
        typist.type(
            Step(f"{call} '{{\"x\": [1.0, 10.0]}}'", '{"instances": [{"y": [31.0, 42.0]}]}')
        )


def install(directory: Path, entry_points: str) -> None:
    """What pip writes for a package with these entry points."""
    metadata = directory / "linear_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: linear\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[mindspore_serving.backends]\n{entry_points}")


def test_the_readmes_run_something() -> None:
    """The tests above would pass on a page without blocks."""
    assert [b.language for b in blocks("README.md")].count("console") == 3
    assert sum(1 for b in blocks("README.md") if file_name(b)) == 4
