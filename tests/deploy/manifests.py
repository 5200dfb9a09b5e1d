"""What deploy/ says: the command lines, ports, paths and names in it.  Runs nothing."""

import configparser
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.deploy.dockerfile import Instruction, parse
from tests.e2e.harness import ROOT

DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes/base"
OVERLAYS = sorted((DEPLOY / "kubernetes/overlays").iterdir())
CONFIG = "/etc/serving/server.yaml"  # where pods have the server.yaml of their overlay
ASCEND = "ascend.Dockerfile"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


class Words(NamedTuple):
    """A command line behind the name of the program, and the manifest that it is in."""

    where: str
    words: list[str]


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def all_documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for one in documents(path):
            yield str(path.relative_to(DEPLOY)), one


def find(document: object, name: str) -> Iterator[Any]:
    """Every value under the key `name`, at whatever depth."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == name:
                yield value
            yield from find(value, name)
    elif isinstance(document, list):
        for value in document:
            yield from find(value, name)


def instructions(name: str, file: str = "Dockerfile") -> list[Instruction]:
    """Return the instructions of the Dockerfile `file` with this name."""
    found = parse((DEPLOY / file).read_text())
    return [one for one in found if one.name == name]


def compose(file: str = "compose.yaml") -> dict[str, Any]:
    (found,) = documents(DEPLOY / file)
    services: dict[str, Any] = found["services"]
    return services


def unit(path: Path) -> configparser.SectionProxy:
    """The section [Service] of a unit of systemd."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text())
    return parser["Service"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Those of our image that have a command line, with the manifest."""
    for where, document in all_documents():
        for found in find(document, "containers"):
            yield from (
                (where, one)
                for one in found
                if one.get("image", "").startswith("mindspore-serving:")
            )


def command_lines() -> Iterator[Words]:
    (entrypoint,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert entrypoint.words() == ["mindspore-serving"]
    yield Words("Dockerfile", command.words())
    yield Words("compose.yaml", compose()["serving"]["command"])
    yield Words("compose.ascend.yaml", compose("compose.ascend.yaml")["serving"]["command"])
    yield Words(ASCEND, instructions("CMD", ASCEND)[0].words())
    for where, container in containers():
        yield Words(where, container["args"])
    for path in UNITS:
        program, *words = shlex.split(unit(path)["ExecStart"])
        assert Path(program).name == "mindspore-serving"
        yield Words(f"systemd/{path.name}", words)
    for where, document in all_documents():
        if where.startswith("kubernetes/keys"):
            added = [one for text in find(document, "patch") for one in yaml.safe_load(text)]
            words = [one["value"] for one in added if one["path"].endswith("/args/-")]
            yield Words(where, ["serve", "/models", *words])
        for model in (one for one in find(document, "model") if "runtime" in one):
            yield Words(where, ["serve", "/mnt/models", *model.get("args", [])])
