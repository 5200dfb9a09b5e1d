"""The shape of the package: who may import whom, which parts do no I/O, how long things may be."""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from mindspore_serving import server
from mindspore_serving.cli import commands
from mindspore_serving.cli.options import SERVE
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.core.params import OptionRow, rows_of
from mindspore_serving.core.servable_options import SERVABLE
from mindspore_serving.core.server_options import SERVER
from tests.rooms import DOCUMENT, PACKAGE, ROOT, TOP, imports, package_of, sources, unit_of

# From low to high.  A module may import its own package, or one of a strictly lower layer.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "extras", "file_check", "log", "loading", "metrics", "aio", "old_paths"}),
    frozenset({"tracing", "tls", "hub"}),
    frozenset({"core", "stores"}),
    frozenset({"proto"}),
    frozenset({"process"}),
    frozenset({"wire", "ipc", "servable", "isolation", "mindir", "mcp"}),
    frozenset({"batching"}),
    frozenset({"backends", "cluster"}),
    frozenset({"distributed"}),
    frozenset({"llm"}),
    frozenset({"tasks"}),
    frozenset({"client", "worker", "master", "frontends"}),
    frozenset({"server"}),
    frozenset({"cli"}),
    frozenset({"__main__", "legacy"}),
)
# The same between the packages and modules of `llm`.
LLM = f"{PACKAGE}.llm"
LLM_LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"catalog", "option_checks", "step", "progress", "descriptions", "visible_devices"}),
    frozenset({"option_rows"}),
    frozenset({"config"}),
    frozenset({"options", "vllm_options", "checkpoint", "sounds"}),
    frozenset({"tokenization", "sampling", "storage"}),
    frozenset({"grammar", "models"}),
    frozenset({"parallel"}),
    frozenset({"runtimes"}),
    frozenset({"engine", "chat", "images", "calibration"}),
    frozenset({"engines"}),
    frozenset({"loader", "outputs", "inspection", "beam_search"}),
    frozenset({"processing"}),
    frozenset({"serving", "llm", "quantize", "export_mindir"}),
    frozenset({"upstream", "speech"}),
    frozenset({"voices"}),
)
# Layers below that a package does without all the same.
FORBIDDEN = {"frontends": frozenset({"llm"})}  # what a token means is decided in the worker

# Decisions only: no clock, no thread, no socket, no event loop.
PURE = (
    "core",
    "batching",
    "wire",
    "distributed/gang.py",
    "distributed/messages.py",
    "distributed/rank_table.py",
    "distributed/stages.py",
    "llm/upstream/balancing.py",
    "llm/upstream/circuit.py",
    "llm/upstream/targets.py",
    "master/method.py",
    "master/pacing.py",
    "master/registry.py",
    "master/request.py",
)
IO_MODULES = frozenset({"asyncio", "threading", "socket", "time", "subprocess", "grpc"})

# Whatever of Python starts a process.
SPAWNING = re.compile(
    r"(subprocess\.)?(Popen|check_call|check_output|getoutput|getstatusoutput)"
    r"|subprocess\.(run|call)|os\.(fork|forkpty|posix_spawnp?|spawn\w+|exec[lv]\w*|system|popen)"
    r"|(.+\.)?((create_)?subprocess_(exec|shell)|ProcessPoolExecutor)|(multiprocessing|pty)\..+"
)

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def pure_sources() -> list[Path]:
    prefixes = [ROOT / name for name in PURE]
    return [p for p in sources() if any(p == pure or pure in p.parents for pure in prefixes)]


def sources_of_llm() -> list[Path]:
    return [path for path in sources() if ROOT / "llm" in path.parents]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def numbered(layers: tuple[frozenset[str], ...]) -> dict[str, int]:
    return {name: layer for layer, names in enumerate(layers) for name in names}


LAYER_OF, LLM_LAYER_OF = numbered(LAYERS), numbered(LLM_LAYERS)


def upward_imports(
    tree: ast.AST,
    unit: str,
    package: tuple[str, ...],
    inside: str = PACKAGE,
    layer_of: Mapping[str, int] = LAYER_OF,
) -> list[str]:
    """Imports of units of `inside` that are not strictly below `unit`, or forbidden to it."""
    found = []
    for line, dotted in imports(tree, package):
        target = dotted.removeprefix(f"{inside}.").split(".")[0]
        if not dotted.startswith(f"{inside}.") or target in (unit, "__version__"):
            continue
        is_above = layer_of.get(target, len(layer_of)) >= layer_of.get(unit, -1)
        if is_above or target in FORBIDDEN.get(unit, ()):
            found.append(f"line {line}: {unit or inside} may not import {dotted}")
    return found


def module_of(path: Path) -> str:
    """The dotted name below the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def file_imports(texts: Mapping[str, tuple[str, tuple[str, ...]]]) -> dict[str, set[str]]:
    """Module -> the modules among `texts` (source and package of each) that it imports."""
    found: dict[str, set[str]] = {}
    for module, (text, package) in texts.items():
        targets = set()
        for _, dotted in imports(ast.parse(text), package):
            name = dotted.removeprefix(f"{PACKAGE}.")
            while name and name not in texts:
                name = name.rpartition(".")[0]
            targets.add(name)
        found[module] = targets - {module, ""}
    return found


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of one cycle, empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def io_imports(tree: ast.AST) -> list[str]:
    return [
        f"line {line}: {dotted}"
        for line, dotted in imports(tree, (PACKAGE,))
        if dotted.split(".")[0] in IO_MODULES
    ]


def long_functions(tree: ast.AST) -> list[str]:
    return [
        f"{node.name}: {length} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def spawns(tree: ast.AST) -> list[str]:
    """Calls that start a process, and imports of what does nothing else."""
    calls = [
        (node.lineno, ast.unparse(node.func))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    found = [*imports(tree, (PACKAGE,)), *calls]
    return [f"line {line}: {dotted}" for line, dotted in found if SPAWNING.fullmatch(dotted)]


def offenders(
    paths: Iterable[Path], problems_of: Callable[[Path, ast.AST], Sequence[str]]
) -> dict[str, Sequence[str]]:
    """File -> what `problems_of` finds in it, of the files in which it finds something."""
    results = {name_of(path): problems_of(path, parsed(path)) for path in paths}
    return {name: problems for name, problems in results.items() if problems}


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text())


def test_every_module_has_a_layer() -> None:
    assert {unit_of(path) for path in sources()} - {""} == LAYER_OF.keys(), "change LAYERS"
    units = {unit_of(path, ROOT / "llm") for path in sources_of_llm()}
    assert units - {""} == LLM_LAYER_OF.keys(), "change LLM_LAYERS"


def test_every_directory_is_a_package_and_so_part_of_a_wheel() -> None:
    directories = {path.parent for path in sources()}
    assert [path for path in sorted(directories) if not (path / "__init__.py").exists()] == []


def test_imports_point_downward() -> None:
    def upward(path: Path, tree: ast.AST) -> list[str]:
        return upward_imports(tree, unit_of(path), package_of(path))

    assert offenders(sources(), upward) == {}


def test_imports_inside_llm_point_downward() -> None:
    def upward(path: Path, tree: ast.AST) -> list[str]:
        unit = unit_of(path, ROOT / "llm")
        return upward_imports(tree, unit, package_of(path), LLM, LLM_LAYER_OF)

    assert offenders(sources_of_llm(), upward) == {}


def test_child_processes_are_started_in_a_single_module() -> None:
    """Others run programs that are not of this package, or fork in a process of one thread."""
    assert offenders(sources(), lambda _, tree: spawns(tree)).keys() == {
        "process/child.py",
        "process/interpreter.py",  # asks another interpreter for its packages
        "process/command.py",  # becomes an MCP server
        "process/tool.py",  # npu-smi
        "cli/launch.py",  # becomes a coding agent
        "cluster/environment.py",  # pip and uv
        "isolation/fork_server.py",
    }


def test_options_of_commands_are_rows() -> None:
    def added(_: Path, tree: ast.AST) -> list[str]:
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        options = (node for node in calls if getattr(node.func, "attr", "") == "add_argument")
        return [f"line {node.lineno}" for node in options if "version" not in ast.unparse(node)]

    found = offenders((path for path in sources() if unit_of(path) == "cli"), added)
    assert found.keys() == {"cli/options.py"}
    parser = commands.parsers(commands.parser())["serve"]
    rows = {row.name_in(SERVE) for row in rows_of(ServeSettings).values()}
    shown = {action.option_strings[0] for action in parser._actions if action.option_strings}
    assert shown - {"-h", "--help-all"} == {f"--{name.replace('_', '-')}" for name in rows if name}


@pytest.mark.parametrize(
    ("function", "rows", "others"),
    [
        (server.ServableStartConfig, SERVABLE, ()),
        (server.start_grpc_server, SERVER, ("address", "ssl_config", "api_keys", "limits")),
        (
            server.start_restful_server,
            SERVER,
            ("address", "ssl_config", "api_keys", "limits", "language_limits"),
        ),
    ],
    ids=["ServableStartConfig", "start_grpc_server", "start_restful_server"],
)
def test_arguments_of_the_public_api_are_rows(
    function: Callable[..., object], rows: Mapping[str, OptionRow], others: Sequence[str]
) -> None:
    arguments = inspect.signature(function).parameters
    assert arguments.keys() - set(others) <= rows.keys()
    defaults = {name: one.default for name, one in arguments.items() if name not in others}
    required = {name: "" for name, one in defaults.items() if one is inspect.Parameter.empty}
    assert {**defaults, **required} == {name: rows[name].default for name in defaults}


def test_streams_between_processes_are_read_in_a_single_module() -> None:
    """Others read packets, which have no lengths of ours, or bytes that they throw away."""
    reads = {
        name_of(path)
        for path in sources()
        if re.search(r"\.recv(_into|msg)?\(|\brecv_fds\(|sock_recv|readexactly\(", path.read_text())
    }
    assert {name for name in reads if not name.startswith("process/")} == {
        "cli/endpoint.py",  # the first bytes of a server that is not known to be of HTTP
        "cluster/node_connection.py",  # what a refused one still sends
        "cluster/node_server.py",  # the preamble
        "frontends/http/listener.py",  # what is left of an ended connection
        "llm/parallel/bridge.py",  # tags of one size, in packets
        "llm/parallel/links.py",  # the same
        "server/processes/front_end.py",  # packets with a connection
        "llm/parallel/msrun.py",  # descriptors with a byte that says nothing
    }


def test_routes_are_created_in_a_single_module() -> None:
    """Others would be in no list: without a key, a form of errors, a label or a description."""

    def makers(path: Path, tree: ast.AST) -> list[str]:
        names = [dotted for _, dotted in imports(tree, package_of(path))]
        modules = ("starlette.routing", "starlette.applications")
        types = ("starlette.routing.BaseRoute", "starlette.routing.Match")
        return [one for one in names if one.startswith(modules) and one not in types]

    assert offenders(sources(), makers).keys() == {"frontends/routes.py"}


def test_no_two_classes_have_the_same_name() -> None:
    """Unless a name is private to its file.  Both packages of users have always had `SSLConfig`."""
    places: dict[str, list[str]] = {}
    for path in sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert twice == {"SSLConfig": ["client/caller.py", "server/ssl_config.py"]}


def test_decisions_do_no_io() -> None:
    assert offenders(pure_sources(), lambda _, tree: io_imports(tree)) == {}


def test_files_are_short() -> None:
    lines = {name_of(path): len(path.read_text().splitlines()) for path in sources()}
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    assert offenders(sources(), lambda _, tree: long_functions(tree)) == {}


@pytest.mark.parametrize(
    "line",
    [
        "import mindspore_serving.server",
        "import mindspore_serving.batching.batcher as b",
        "from mindspore_serving.server import register",
        "from mindspore_serving import master",
        "from ..cluster import local",
        "from .. import frontends",
        "def f():\n    import mindspore_serving.ipc",
        "if TYPE_CHECKING:\n    from mindspore_serving.backends.base import Backend",
    ],
)
def test_an_upward_import_is_found_in_every_form(line: str) -> None:
    assert upward_imports(ast.parse(line), "wire", (PACKAGE, "wire")) != []


@pytest.mark.parametrize(
    "line",
    [
        "from mindspore_serving.core.dtype import DType",
        "from mindspore_serving import errors, __version__",
        "from mindspore_serving.wire.status import STATUS",
        "from . import status",
        "from .status import STATUS",
        "from ..core import value",
        "import numpy",
    ],
)
def test_a_downward_import_is_allowed_in_every_form(line: str) -> None:
    assert upward_imports(ast.parse(line), "wire", (PACKAGE, "wire")) == []


@pytest.mark.parametrize(
    ("unit", "line", "is_upward"),
    [
        ("models", "from mindspore_serving.llm.runtimes import open_runner", True),
        ("checkpoint", "from ..tokenization import tokenizer", True),
        ("quantize", "from .llm import LLM", True),
        ("runtimes", "from mindspore_serving.llm.models.ops import Ops", False),
        ("runtimes", "from mindspore_serving.llm.runtimes.layout import Layout", False),
        ("runtimes", "from mindspore_serving.errors import StartError", False),
    ],
)
def test_an_upward_import_inside_llm_is_found(unit: str, line: str, is_upward: bool) -> None:
    own = (PACKAGE, "llm") if unit == "quantize" else (PACKAGE, "llm", unit)
    found = upward_imports(ast.parse(line), unit, own, LLM, LLM_LAYER_OF)
    assert bool(found) == is_upward


@pytest.mark.parametrize(
    "line",
    [
        "from mindspore_serving.core import b",
        "from .b import B",
        "def f():\n    import mindspore_serving.core.b",
        "if TYPE_CHECKING:\n    from mindspore_serving.core.b import B",
    ],
)
def test_a_circle_of_imports_is_found_in_every_form(line: str) -> None:
    package = (PACKAGE, "core")
    texts = {"core.a": (line, package), "core.b": ("from . import c", package)}
    assert cycle_in(file_imports(texts | {"core.c": ("import numpy", package)})) == []
    assert cycle_in(file_imports(texts | {"core.c": ("from .a import A", package)})) != []


def test_nothing_runs_on_the_threads_of_asyncio() -> None:
    """They take nothing when the main thread has ended, as that of a start-up script has."""
    calls = ("to_thread(", "run_in_executor(")
    assert [path for path in sources() if any(one in path.read_text() for one in calls)] == []


def test_front_ends_know_no_language_model_engine() -> None:
    for line in ("from mindspore_serving.llm.chat import template", "import mindspore_serving.llm"):
        assert upward_imports(ast.parse(line), "frontends", (PACKAGE, "frontends")) != []
        assert upward_imports(ast.parse(line), "worker", (PACKAGE, "worker")) == []


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.Popen([])",
        "subprocess.run([])",
        "os.fork()",
        "os.posix_spawn('a', [], {})",
        "await asyncio.create_subprocess_exec('a')",
        "from multiprocessing import get_context",
        "ProcessPoolExecutor()",
        "os.system('a')",
    ],
)
def test_whatever_starts_a_process_is_found(line: str) -> None:
    assert spawns(ast.parse(line)) != []
    assert spawns(ast.parse("child.run()\nserver.fork('role', 1)\nplatform.system_alias()")) == []


@pytest.mark.parametrize("line", ["import time", "from asyncio import sleep", "import grpc.aio"])
def test_io_in_a_decision_is_found(line: str) -> None:
    assert io_imports(ast.parse(line)) != []


def test_a_long_function_is_found() -> None:
    assert long_functions(ast.parse("def f():\n" + "    pass\n" * MAX_FUNCTION_LINES)) != []
    assert long_functions(ast.parse("def f():\n" + "    pass\n" * (MAX_FUNCTION_LINES - 1))) == []


# Where a newcomer begins: task in ARCHITECTURE.md, "Where to look" -> name that the first file has.
FIRST_FILES = {
    "add a sampling parameter": "class SamplingParams",
    "add an architecture of language models": "ROWS: dict[str, Architecture]",
    "add a route": "HttpRoute",
    "change how batches are formed": "class Batcher",
    "change what happens when a worker dies": "def decide_retry",
    "add an operator of MindIR": "OPERATORS",
    "add a source of models by name": "SOURCES: dict[str, SourceRow]",
    "add an option of servables": "class ServableOptions",
}


def rows_where_to_look() -> dict[str, list[str]]:
    """Cells of the table "Where to look", by task."""
    table = DOCUMENT.read_text().split("## Where to look")[1].split("\n## ")[0]
    rows = [line.strip("| \n").split(" | ") for line in table.splitlines() if line[:1] == "|"]
    return {task: cells for task, *cells in rows[2:]}


@pytest.mark.parametrize(("task", "name"), FIRST_FILES.items())
def test_the_first_file_of_a_task_has_its_subject(task: str, name: str) -> None:
    first, following = rows_where_to_look()[task]
    file = re.findall(r"`([\w./]+\.py)`", first)[0]
    assert name in (ROOT / file).read_text()
    for path in re.findall(r"`((?:\w+/)+[\w.-]+)`", first + following):
        assert (ROOT / path).exists() or (TOP / path).exists(), path


def test_each_task_of_where_to_look_is_checked() -> None:
    assert rows_where_to_look().keys() == FIRST_FILES.keys()
