"""Files, modules and names in backticks, in docstrings and pages on the architecture, exist."""

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
PACKAGE_NAME = ROOT.name
PACKAGES = {path.stem for base in BASES for path in base.iterdir() if path.stem != "__init__"}


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file: parsing it takes longer than whatever is looked for in it."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def docstrings(path: Path) -> tuple[str, ...]:
    documented = [node for node in nodes_of(path) if isinstance(node, DOCUMENTED)]
    return tuple(text for node in documented if (text := ast.get_docstring(node)))


@pytest.fixture(scope="module", autouse=True)
def nodes_are_dropped_at_the_end() -> Iterator[None]:
    """Those of all files take a hundred megabytes and more."""
    yield
    nodes_of.cache_clear()


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of functions, classes, variables and imports anywhere in a file."""
    names = set()
    for node in nodes_of(path):
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
def is_in_checkout(name: str) -> bool:
    return any(path.endswith(f"/{name}") for path in tracked_paths())


@cache
def tracked_paths() -> tuple[str, ...]:
    folders = (ROOT, REPOSITORY / "tests", REPOSITORY / "benchmarks", REPOSITORY / "examples")
    return tuple(f"/{path.relative_to(REPOSITORY)}" for f in folders for path in f.rglob("*.py"))


def missing_names(text: str, *bases: Path) -> list[str]:
    """What `text` has in backticks that looks like a file or module of ours and is none."""
    missing = []
    for name in re.findall(r"`([\w./]+)`", text):
        if name.endswith(".py") and name not in FILES_OF_USERS:
            is_there = is_in_checkout(name)
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


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/internals.md"])
def test_the_architecture_names_files_modules_and_names_that_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    assert missing_names(text) == []
    assert unknown_names(text) == []


# Names in docstrings that the code does not contain: of other libraries, or made at run time.
ELSEWHERE = frozenset(
    {
        "cryptography",
        "DecodeStream",
        "Dim",
        "finally",
        "multiprocessing",
        "serving_llm_NAME",
        "toml",
    }
    | {"to_thread", "yield", "None", "True", "False"}
)


def identifiers(path: Path) -> Iterator[str]:
    """Iterate over all names of a module's code, and the words of its texts but docstrings."""
    described = {id(node.body[0].value) for node in nodes_of(path) if is_documented(node)}
    for node in nodes_of(path):
        for field in ("name", "id", "arg", "attr", "asname", "module"):
            if isinstance(text := getattr(node, field, None), str):
                yield from text.split(".")
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in described
        ):
            yield from re.findall(r"\w+", node.value)


def is_documented(node: ast.AST) -> bool:
    return isinstance(node, DOCUMENTED) and bool(ast.get_docstring(node))


@cache
def known_names() -> frozenset[str]:
    names = {part for path in ROOT.rglob("*") for part in path.relative_to(ROOT).parts}
    names |= {name.partition(".")[0] for name in names}
    for path in SOURCES:
        names.update(identifiers(path))
    return frozenset(names) | ELSEWHERE | {PACKAGE_NAME, "pyproject", "proto"}


def unknown_names(text: str) -> list[str]:
    """Names in backticks that occur nowhere in the code."""
    quoted = re.findall(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\(\))?`", text)
    return [name for name in quoted if not known_names().issuperset(name.split("."))]


def test_docstrings_quote_names_that_the_code_has() -> None:
    unknown = {
        str(path.relative_to(ROOT)): names
        for path in SOURCES
        if (names := [name for text in docstrings(path) for name in unknown_names(text)])
    }
    assert unknown == {}


def test_a_name_that_the_code_lacks_is_reported() -> None:
    assert unknown_names("As `no_such_name_anywhere` and `WorkerSupervisor` do.") == [
        "no_such_name_anywhere"
    ]


@pytest.mark.parametrize("name", ["llm/nothing.py", "llm.nothing", "worker.job.Nothing"])
def test_a_name_of_nothing_is_noticed(name: str) -> None:
    assert missing_names(f"As `{name}` does.") == [name]


IN_CHECKOUTS = re.compile(r"\b(docs|benchmarks|examples|tests|scripts)/[\w/.-]*\.(md|py|sh)\b")
COMMANDS_OF_PAGES = re.compile(r"`mindspore-serving docs\s+([a-z_]+)`")
PUBLIC = ("server", "servable", "client")


def texts_of_users(path: Path) -> Iterator[str]:
    """Strings that a running program can show, and the docstrings of public functions."""
    notes = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            yield node.value
        is_public = path.relative_to(ROOT).parts[0] in PUBLIC and isinstance(node, DOCUMENTED[1:])
        if is_public and (text := ast.get_docstring(node)):
            yield text


def test_no_text_for_users_names_a_file_that_only_a_checkout_has() -> None:
    """An installation has the pages, which `mindspore-serving docs` prints, and nothing else."""
    faults = [
        (str(path.relative_to(ROOT)), match[0])
        for path in SOURCES
        for text in texts_of_users(path)
        for match in IN_CHECKOUTS.finditer(text)
    ]
    assert faults == []


def test_pages_in_texts_for_users_exist() -> None:
    names = {
        name
        for path in SOURCES
        for text in texts_of_users(path)
        for name in COMMANDS_OF_PAGES.findall(text)
    }
    assert (
        sorted(name for name in names if not (REPOSITORY / "docs" / f"{name}.md").is_file()) == []
    )
    assert {"architectures", "limits"} <= names
