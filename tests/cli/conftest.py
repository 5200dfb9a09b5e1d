"""Servables to be served by the command line, and a server of them that a module shares."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.commands import SERVING, Command
from tests.ports import free_port

WORDS = """
from mindspore_serving.server import register

def join(left, right):
    if str(left) == "fail":
        raise ValueError("asked to fail")
    return f"{left} {right}"

def twice(x):
    return 2 * x

@register.register_method(output_names=["text"])
def joined(left, right):
    return register.add_stage(join, left, right, outputs_count=1)

@register.register_method(output_names=["y"])
def double(x):
    return register.add_stage(twice, x, outputs_count=1)
"""


def write_words(directory: Path, name: str = "words") -> Path:
    (directory / name).mkdir(parents=True)
    (directory / name / "servable_config.py").write_text(WORDS)
    return directory


def write_onnx(path: Path) -> None:
    """A bare model: difference = a - b on float32 of shape (any, 3)."""
    onnx = pytest.importorskip("onnx", reason="it writes the model")
    make, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [make.make_node("Sub", ["a", "b"], ["difference"])],
        "subtract",
        [make.make_tensor_value_info(name, number, ["N", 3]) for name in ("a", "b")],
        [make.make_tensor_value_info("difference", number, ["N", 3])],
    )
    path.parent.mkdir(parents=True)
    opset = make.make_opsetid("", 17)
    onnx.save(make.make_model(graph, opset_imports=[opset], ir_version=8), path)


def write_good_and_bad(directory: Path) -> None:
    """The servable "words", a pickle, an ONNX file that is none, and one with a typing error."""
    write_words(directory)
    for place, content in {"scaler/1/model.pkl": b"\x80\x04N.", "cut/net.onnx": b"cut"}.items():
        (directory / place).parent.mkdir(parents=True)
        (directory / place).write_bytes(content)
    (directory / "typo").mkdir()
    (directory / "typo" / "servable_config.py").write_text("from no_such_library import x\n")


@dataclass(frozen=True, slots=True)
class Served:
    """A server started by the command line."""

    command: Command
    http: int
    grpc: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`serve` of the servable "words"."""
    directory = write_words(tmp_path_factory.mktemp("served"))
    with served_from(directory, "words") as words:
        yield words


@contextmanager
def served_from(directory: Path, name: str) -> Iterator[Served]:
    """`serve` of a servable in `directory`, until the end of the block."""
    http, grpc = free_port(), free_port()
    ports = ["--http-port", str(http), "--grpc-port", str(grpc)]
    with Command([*SERVING, "serve", name, "--allow-loading", *ports], directory) as command:
        command.says("Ctrl-C stops")
        yield Served(command, http, grpc)
