"""The pictures of rooms in ARCHITECTURE.md, drawn from the imports.

`python -m tests.rooms` draws them anew.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "mindspore_serving"
TOP = Path(__file__).resolve().parents[1]
ROOT = TOP / PACKAGE
DOCUMENT = TOP / "ARCHITECTURE.md"

# Used everywhere, or only forwarding old paths: arrows to and from them say nothing.
BELOW = ("errors", "extras", "file_check", "log", "loading", "metrics", "aio", "old_paths")
LEFT_OUT = frozenset({"", *BELOW, "__main__", "legacy"})

Graph = Mapping[str, frozenset[str]]


def sources(root: Path = ROOT) -> list[Path]:
    """Every module that a person wrote."""
    return [path for path in sorted(root.rglob("*.py")) if "_pb2" not in path.name]


def unit_of(path: Path, root: Path = ROOT) -> str:
    """The package or module of `root` that a file belongs to; the `__init__` of `root` is ''."""
    first = path.relative_to(root).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def package_of(path: Path) -> tuple[str, ...]:
    return (PACKAGE, *path.relative_to(ROOT).parent.parts)


def imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, wherever it stands; `package` resolves the dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def imports_between(root: Path) -> Graph:
    """Each package or module of `root`, and which others its files import."""
    inside = ".".join((PACKAGE, *root.relative_to(ROOT).parts)) + "."
    found: dict[str, set[str]] = {}
    for path in sources(root):
        unit = unit_of(path, root)
        targets = {
            dotted.removeprefix(inside).split(".")[0]
            for _, dotted in imports(ast.parse(path.read_text()), package_of(path))
            if dotted.startswith(inside)
        }
        found.setdefault(unit, set()).update(targets - {unit})
    return {
        unit: frozenset(targets & found.keys() - LEFT_OUT)
        for unit, targets in found.items()
        if unit not in LEFT_OUT
    }


def direct(graph: Graph) -> Graph:
    """Only the arrows that no other path stands for."""
    return {
        unit: frozenset(
            one for one in targets if not any(one in below(graph, two) for two in targets)
        )
        for unit, targets in graph.items()
    }


def below(graph: Graph, unit: str) -> frozenset[str]:
    """All that `unit` reaches."""
    return graph[unit].union(*(below(graph, one) for one in graph[unit]))


def picture(root: Path) -> str:
    """The mermaid text."""
    graph = direct(imports_between(root))
    arrows = [
        f"    {unit} --> {' & '.join(sorted(targets))}\n"
        for unit, targets in sorted(graph.items())
        if targets
    ]
    used = frozenset[str]().union(*graph.values())
    alone = [f"    {unit}\n" for unit in sorted(graph) if not graph[unit] and unit not in used]
    return "flowchart TD\n" + "".join(arrows + alone)


PICTURES = {"rooms": ROOT, "rooms of llm": ROOT / "llm"}


def redrawn(text: str) -> str:
    """The document `text` with the pictures of today."""
    for name, root in PICTURES.items():
        begin, end = f"<!-- {name} -->\n```mermaid\n", "```\n"
        before, mark, rest = text.partition(begin)
        if not mark:
            raise ValueError(f"{DOCUMENT.name} has no {begin!r}")
        text = before + begin + picture(root) + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(redrawn(DOCUMENT.read_text()))
