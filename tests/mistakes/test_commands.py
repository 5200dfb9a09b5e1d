"""Each mistake of commands.txt ends at once, with the status and the line that the table has."""

import shlex
from pathlib import Path

import pytest

from mindspore_serving import cli
from tests.cli.conftest import write_words

TABLE = Path(__file__).parent / "commands.txt"


def rows() -> list[tuple[str, str]]:
    """Read the table: a line for the command, a line for its end; # begins a remark."""
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_words(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "model" / "model.safetensors").touch()
    (tmp_path / "wrong.yaml").write_text("htpp_port: 1\n")
    (tmp_path / "no.yaml").write_text("servables: [\n")
    monkeypatch.chdir(tmp_path)
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
    assert end_of(command, capfd).replace(str(tmp_path), "DIRECTORY") == end
