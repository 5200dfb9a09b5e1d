"""Each mistake of commands.txt ends at once, with the status and the line that the table has."""

import io
import shlex
from pathlib import Path

import pytest

from mindspore_serving import cli
from tests.cli.conftest import write_words
from tests.ports import free_port

STARTED = "Fail to start workers"
TABLE = Path(__file__).parent / "commands.txt"


def rows() -> list[tuple[str, str]]:
    """Read the table: a line for the command, a line for its end; # begins a remark."""
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return list(zip(lines[::2], lines[1::2], strict=True))


POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 988097824\n"
)
LLAMA = '{"architectures": ["LlamaForCausalLM"]}'
FILES = {
    "model/config.json": LLAMA,
    "model/model.safetensors": "",
    "wrong.yaml": "htpp_port: 1\n",
    "no.yaml": "servables: [\n",
    "net.gguf.part": "GGUF",
    "damaged/config.json": '{"architectures": [',
    "nameless/config.json": "{}",
    "weights/model.safetensors": "",
    "page.xml": "<!DOCTYPE html><html><body>Not found</body></html>",
    "pointer.gguf": POINTER,
    "notes.txt": "a line",
    "resnet50.om": "IMOD",
}


def write_files(directory: Path) -> None:
    """Write the servable words, a language model without weights, and files that are wrong."""
    write_words(directory)
    (directory / "empty").mkdir()
    for name, text in FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.delenv("MINDSPORE_SERVING_TOKEN", raising=False)


def end_of(command: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Run a command; return its status and what it printed as errors, in one line."""
    try:
        status: object = cli.main(shlex.split(command)[2:])
    except SystemExit as end:  # of argparse
        status = end.code
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    return f"{status} {' / '.join(lines)}"


@pytest.mark.parametrize(("command", "end"), rows(), ids=lambda text: str(text)[:60])
def test_a_wrong_command_ends_as_the_table_says(
    command: str, end: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if STARTED in end:  # at other ports than servers of this machine may have
        command += f" --grpc-port {free_port()} --http-port {free_port()}"
    assert end_of(command, capfd).replace(str(tmp_path), "DIRECTORY") == end
