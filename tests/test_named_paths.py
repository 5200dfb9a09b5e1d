"""Files and modules that docstrings and pages on the architecture name in backticks exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mindspore_serving

ROOT = Path(mindspore_serving.__file__).parent
REPOSITORY = ROOT.parent
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Where a dotted name may begin: import paths of users leave out `mindspore_serving.server`.
BASES = (ROOT, ROOT / "llm", ROOT / "server", ROOT / "legacy")
FILES_OF_USERS = {"servable_config.py"}
SOURCES = sorted(path for path in ROOT.rglob("*.py") if "_pb2" not in path.name)
PACKAGES = {path.stem for base in BASES for path in base.iterdir() if path.stem != "__init__"}


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of functions, classes, variables and imports anywhere in a file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name):
            names.add(node.id)
    return frozenset(names)


def is_module_or_name(dotted: str, base: Path) -> bool:
    place, parts = base, dotted.split(".")
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    if not parts:
        return True
    file = place / f"{parts[0]}.py"
    if file.exists():
        parts.pop(0)
    else:
        file = place / "__init__.py"
    return not parts or (file.exists() and parts[0] in names_in(file))


@cache
def tracked_paths() -> tuple[str, ...]:
    folders = (ROOT, REPOSITORY / "tests", REPOSITORY / "benchmarks", REPOSITORY / "examples")
    return tuple(f"/{path.relative_to(REPOSITORY)}" for f in folders for path in f.rglob("*.py"))


def missing_names(text: str, *bases: Path) -> list[str]:
    """What `text` has in backticks that looks like a file or module of ours and is none."""
    missing = []
    for name in re.findall(r"`([\w./]+)`", text):
        if name.endswith(".py") and name not in FILES_OF_USERS:
            is_there = any(path.endswith(f"/{name}") for path in tracked_paths())
        elif re.fullmatch(r"[a-z_0-9]+(\.\w+)+", name) and name.partition(".")[0] in PACKAGES:
            is_there = any(is_module_or_name(name, base) for base in (*BASES, *bases))
        else:
            continue
        if not is_there:
            missing.append(name)
    return missing


def test_docstrings_name_files_and_modules_that_exist() -> None:
    missing = {
        str(path.relative_to(ROOT)): names
        for path in SOURCES
        if (names := [n for text in docstrings(path) for n in missing_names(text, path.parent)])
    }
    assert missing == {}


def test_the_architecture_names_files_and_modules_that_exist() -> None:
    for page in ("ARCHITECTURE.md", "docs/internals.md"):
        assert missing_names((REPOSITORY / page).read_text()) == []


@pytest.mark.parametrize("name", ["llm/nothing.py", "llm.nothing", "worker.job.Nothing"])
def test_a_name_of_nothing_is_noticed(name: str) -> None:
    assert missing_names(f"As `{name}` does.") == [name]
