"""Builds what a Dockerfile says, without a container engine: each stage is a directory in which
its instructions run, one after another, with `chroot`.

The base image cannot be had here.  In its place are this machine's /usr and /etc, under what the
stage writes, and the Python that runs this.  It needs root, and a mount namespace of its own.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.dockerfile import Ignored, Instruction, expand, parse

PYTHON = Path(sys.base_prefix)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@dataclass(slots=True)
class Image:
    """What a stage has come to: its files are in `root`."""

    root: Path
    env: dict[str, str]
    args: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    ports: set[int] = field(default_factory=set)


class Builder:
    """`context` is the directory that is sent to a builder; `place`, in memory, gets its stages."""

    def __init__(self, context: Path, place: Path, args: dict[str, str]) -> None:
        self._context, self._place, self._given = context, place, args
        self._is_ignored = Ignored((context / ".dockerignore").read_text())
        self._stages: dict[str, Image] = {}
        self._global: dict[str, str] = {}
        self._image: Image | None = None

    def build(self, dockerfile: Path) -> Image:
        """The last stage."""
        for instruction in parse(dockerfile.read_text()):
            print(f"{instruction.name} {instruction.text}", flush=True)
            if instruction.name == "ARG" and self._image is None:
                name, _, default = instruction.text.partition("=")
                self._global[name] = self._given.get(name, default)
            elif instruction.name == "FROM":
                self._begin(instruction)
            else:
                getattr(self, f"_{instruction.name.lower()}")(instruction)
        return self._now

    @property
    def _now(self) -> Image:
        assert self._image is not None, "the Dockerfile begins with no FROM"
        return self._image

    def _begin(self, instruction: Instruction) -> None:
        base, *name = expand(instruction.text, self._global).split(" AS ")
        own = f"python:{sys.version_info.major}.{sys.version_info.minor}"
        assert base.startswith(own), f"run this with the Python of {base}, not with {own}"
        root = self._place / f"stage-{len(self._stages)}"
        _prepare(root, self._place / f"written-{len(self._stages)}")
        self._image = Image(root, {"PATH": f"{PYTHON}/bin:{_PATH}", "LANG": "C.UTF-8"})
        self._stages[name[0] if name else str(len(self._stages))] = self._image

    def _expanded(self, instruction: Instruction) -> str:
        return expand(instruction.text, {**self._now.args, **self._now.env})

    def _arg(self, instruction: Instruction) -> None:
        name, _, default = self._expanded(instruction).partition("=")
        self._now.args[name] = self._given.get(name, default)

    def _env(self, instruction: Instruction) -> None:
        words = Instruction("ENV", {}, self._expanded(instruction)).words()
        self._now.env |= dict(word.split("=", 1) for word in words)

    def _label(self, instruction: Instruction) -> None:
        assert all("=" in word for word in instruction.words())

    def _workdir(self, instruction: Instruction) -> None:
        self._now.workdir = self._expanded(instruction)
        (self._now.root / self._now.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _user(self, instruction: Instruction) -> None:
        self._now.user = self._expanded(instruction)

    def _expose(self, instruction: Instruction) -> None:
        self._now.ports |= set(map(int, instruction.words()))

    def _healthcheck(self, instruction: Instruction) -> None:
        self._now.healthcheck = Instruction(
            "CMD", {}, instruction.text.removeprefix("CMD ")
        ).words()

    def _entrypoint(self, instruction: Instruction) -> None:
        self._now.entrypoint = instruction.words()

    def _cmd(self, instruction: Instruction) -> None:
        self._now.cmd = instruction.words()

    def _run(self, instruction: Instruction) -> None:
        env = {**self._now.args, **self._now.env}
        words = [f"--chdir={self._now.workdir}", *(f"{name}={env[name]}" for name in env)]
        command = ["/usr/bin/env", "-i", *words, "/bin/sh", "-c", instruction.text]
        subprocess.run(["chroot", self._now.root, *command], check=True)

    def _copy(self, instruction: Instruction) -> None:
        *sources, target = Instruction("COPY", {}, self._expanded(instruction)).words()
        at = self._now.root / Path(self._now.workdir, target).relative_to("/")
        stage = instruction.flags.get("from")
        for source in sources:
            if stage is None:
                self._copy_from(self._context, Path(source), at, is_into=target.endswith("/"))
            else:
                found = self._stages[stage].root / source.lstrip("/")
                shutil.copytree(found, at, symlinks=True, dirs_exist_ok=True)

    def _copy_from(self, context: Path, source: Path, at: Path, *, is_into: bool) -> None:
        """A file, or what is in a directory, without what .dockerignore leaves out."""
        found = context / source
        files = [found] if found.is_file() else [one for one in found.rglob("*") if one.is_file()]
        kept = [one for one in files if not self._is_ignored(one.relative_to(context))]
        assert kept, f".dockerignore leaves out {source}"
        for file in kept:
            inside = (
                file.relative_to(found) if found.is_dir() else Path(file.name if is_into else "")
            )
            (at / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, at / inside)


def mount(*words: "str | Path") -> None:
    subprocess.run(["mount", *words], check=True)


def _prepare(root: Path, written: Path) -> None:
    """A root directory that has the programs of this machine, and none of its other files."""
    for name in ("dev", "proc", "tmp", "opt", "root", "run", "sys", "var/tmp", "usr", "etc"):
        (root / name).mkdir(parents=True)
    mount("--bind", root, root)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("usr", "etc"):
        above, work = written / name, written / f"{name}-work"
        above.mkdir(parents=True)
        work.mkdir()
        layers = f"lowerdir=/{name},upperdir={above},workdir={work}"
        mount("-t", "overlay", "overlay", "-o", layers, root / name)
    if Path("/usr") == PYTHON:
        (root / "usr/bin/python").unlink(missing_ok=True)
        (root / "usr/bin/python").symlink_to("python3")
    else:
        inside = root / PYTHON.relative_to("/")
        inside.mkdir(parents=True)
        mount("--bind", "-o", "ro", PYTHON, inside)
    for name in _DEVICES:
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", root / "dev" / name)
    (root / "dev/shm").mkdir()
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
