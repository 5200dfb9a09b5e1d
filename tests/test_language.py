"""The words of the code: names by the glossary of CONTRIBUTING.md, and first lines of docstrings.

`python -m tests.test_language mindspore_serving/master tests/master` lists what these paths have.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rooms import TOP, sources

TESTS = TOP / "tests"
VERBS = frozenset((TESTS / "imperative_verbs.txt").read_text().split())
# How a line begins that leaves out its subject or its noun.
FRAGMENTS = re.compile(
    r"(What|Whether|Of|As|How|Those|For|Where|With|From|Why|Until|By|Without|It|Which|That|So|To|Over"
    r"|At|While|When|There|On|Its|Every|Whose|Nobody|Nothing|One|Such|Most|Never|In|\w+,)"
)
# Terms of the field, and names in interfaces of others, with a word of the glossary's list.
ALLOWED = re.compile(r"not_?found|one_of|one_hot|in_?place|plus_one|minus_one|all_to_one|at_most")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *FUNCTIONS)
MAX_TEST_NAME = 70
WITHOUT_SUBJECT = frozenset(["it", "what", "one", "ones", "others", "such"])


def banned_words() -> frozenset[str]:
    """Return the words that the glossary rules out as names and as parts of names."""
    glossary = (TOP / "CONTRIBUTING.md").read_text()
    (listed,) = re.findall(r"<!-- not names -->\n(.+?)\n\n", glossary, re.DOTALL)
    return frozenset(re.findall(r"`(\w+)`", listed))


BANNED = banned_words()


def words(name: str) -> frozenset[str]:
    """Split a name in snake_case or CamelCase into its words, in lower case."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return frozenset(ALLOWED.sub("", snake).split("_"))


def defined_name(node: ast.AST) -> str:
    """Return the name of the class, function, parameter, variable or field that a node defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return (isinstance(node, ast.alias) and node.asname) or ""


def is_property(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", ())
    return any("property" in ast.unparse(decorator) for decorator in decorators)


def fault_of_docstring(node: ast.AST) -> str:
    """Return what is wrong with how a docstring begins, '' if nothing is or there is none."""
    docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
    if not docstring:
        return ""
    first = docstring.split()[0]
    if isinstance(node, FUNCTIONS) and not is_property(node):
        return "" if first.rstrip(",.:") in VERBS else "a function's docstring starts with a verb"
    is_fragment = FRAGMENTS.fullmatch(first)
    return "a docstring of a class, property or module starts with a noun" if is_fragment else ""


def faults_of_product(source: str) -> Iterator[tuple[int, str]]:
    """Iterate over the lines of a module whose names or docstrings break the rules, and why."""
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        if hit := words(defined_name(node)) & BANNED:
            yield line, f"name {defined_name(node)} with '{min(hit)}'"
        if fault := fault_of_docstring(node):
            docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            yield line, f"{fault}: {str(docstring).partition(chr(10))[0]}"


def faults_of_tests(source: str) -> Iterator[tuple[int, str]]:
    """Iterate over the tests of a module whose names are too long or have no subject, and why."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FUNCTIONS) and node.name.startswith("test_"):
            if len(node.name) > MAX_TEST_NAME:
                yield node.lineno, f"{node.name} has more than {MAX_TEST_NAME} characters"
            if hit := set(node.name.split("_")) & WITHOUT_SUBJECT:
                yield node.lineno, f"{node.name} says '{min(hit)}' instead of its subject"


def faults(path: Path) -> Iterator[str]:
    """Iterate over the faults of a file, as `path:line: fault`."""
    file, of_source = path.relative_to(TOP), faults_of_product
    if TESTS in path.parents:
        of_source = faults_of_tests
    elif hit := words(path.stem) & BANNED:
        yield f"{file}: file name with '{min(hit)}'"
    yield from (f"{file}:{line}: {fault}" for line, fault in of_source(path.read_text()))


FILES = (*sources(), *sorted(TESTS.rglob("test_*.py")))


def test_names_and_docstrings_use_the_words_of_the_field() -> None:
    assert [fault for path in FILES for fault in faults(path)] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("found = 1", "name found with 'found'"),
        ("def run(MOST_ROWS): pass", "name MOST_ROWS with 'most'"),
        ("class OwnWorker: pass", "name OwnWorker with 'own'"),
        ("def run():\n    'The worker that runs.'", "a function's docstring starts with a verb"),
        ("class Door:\n    'What a server lets in by.'", "a docstring of a class, property"),
    ],
)
def test_faults_of_names_and_docstrings_are_reported(source: str, fault: str) -> None:
    ((_, reported),) = faults_of_product(source)
    assert reported.startswith(fault)


@pytest.mark.parametrize(
    "source",
    [
        "class NotFoundError: pass",
        "one_hot = 1",
        "def run():\n    'Run the worker.'",
        "class A:\n    @property\n    def size(self):\n        'Number of rows.'",
    ],
)
def test_terms_of_the_field_are_no_faults(source: str) -> None:
    assert list(faults_of_product(source)) == []


def test_names_of_tests_without_a_subject_or_too_long_are_reported() -> None:
    long_name = "test_" + "a" * MAX_TEST_NAME
    source = f"def test_it_works(): pass\ndef {long_name}(): pass\ndef test_a_worker_stops(): pass"
    assert [line for line, _ in faults_of_tests(source)] == [1, 2]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        top = (TOP / argument).resolve()
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            if "_pb2" not in path.name:
                print(*faults(path), sep="\n", end="\n" * any(faults(path)))
