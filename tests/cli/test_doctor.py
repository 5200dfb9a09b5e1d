"""`mindspore-serving doctor`: its findings are those of the machine."""

import importlib.metadata
import os
import socket
import subprocess

import pytest

from mindspore_serving.backends import ascend_installation
from mindspore_serving.cli import doctor, main
from tests.backends.ascend_files import machine
from tests.cli.commands import SERVING, environment


def test_doctor_lists_each_format_with_library_version_and_devices(capsys) -> None:
    assert main(["doctor"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {row[0]: row[1:] for row in rows if row}
    assert rows["python"][:3] == ["-", "-", "CPU"]
    version = importlib.metadata.version("onnxruntime")
    assert rows["onnx"][:2] == ["onnxruntime", version]


@pytest.mark.parametrize(("chosen", "words"), [("avx2", "CPU (avx2)"), ("mmx", "no: ")])
def test_native_kernels_are_shown_with_their_instructions(chosen, words, capsys, monkeypatch):
    pytest.importorskip("llvmlite")
    monkeypatch.setenv("MINDSPORE_SERVING_NATIVE_ISA", chosen)
    main(["doctor"])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("native"))
    assert words in row
    assert chosen in row


def test_a_reader_of_its_output_may_leave() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*SERVING, "doctor"], stdout=writing, stderr=subprocess.PIPE, env=environment(), check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_without_a_command_all_are_shown(capsys) -> None:
    assert main([]) == 2
    assert "serve models over REST and gRPC" in capsys.readouterr().err


def test_a_missing_library_has_the_command_that_installs_the_extra(capsys, monkeypatch) -> None:
    from mindspore_serving.backends import formats

    row = formats.FORMATS["onnx"]
    missing = formats.ModelFormat(row.target, "no_such_library", row.extra)
    monkeypatch.setitem(formats.FORMATS, "onnx", missing)
    main(["doctor"])
    assert "pip install 'mindspore-serving[onnx]'" in capsys.readouterr().out


def test_ports_in_use_and_free_ports_are_distinguished() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "Address already in use" in doctor.port_state(port)
    assert doctor.port_state(port) == "free"


@pytest.mark.parametrize(
    ("numpy", "mindspore", "words"),
    [
        ("1.26.4", "2.10.0", "fine for every backend"),
        ("2.1.0", "2.10.0", "breaks MindSpore 2.10.0, run: pip install 'numpy<2'"),
        ("2.1.0", "", "fine, but MindSpore"),
        ("", "", "missing"),
    ],
)
def test_numpy_2_and_mindspore_together_are_told(numpy, mindspore, words) -> None:
    assert words in doctor.numpy_note(numpy, mindspore)


def test_the_columns_are_aligned() -> None:
    assert list(doctor.table([("a", "bb"), ("ccc", "d")])) == ["a    bb", "ccc  d"]


def test_an_ascend_installation_has_rows_and_sentences(tmp_path, capsys, monkeypatch) -> None:
    sources = machine(tmp_path, cann="7.0.0")
    monkeypatch.setattr(ascend_installation.AscendSources, "of_this_machine", lambda: sources)
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert "driver    25.2.0" in lines
    assert any(line.startswith("Ascend: CANN 7.0.0 does not fit MindSpore") for line in lines)


def test_a_machine_without_ascend_has_no_rows_of_devices(tmp_path, capsys, monkeypatch) -> None:
    sources = ascend_installation.AscendSources(tmp_path, {}, "no-npu-smi")
    monkeypatch.setattr(ascend_installation.AscendSources, "of_this_machine", lambda: sources)
    main(["doctor"])
    assert "Ascend" not in capsys.readouterr().out
