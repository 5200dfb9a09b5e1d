"""`mindspore-serving ascend-check`: the report in text and JSON, with and without a device.

No test here has a device: directories stand for an installation, a scripted process for operators.
"""

import json
from contextlib import ExitStack

import pytest

from mindspore_serving.backends.ascend_installation import AscendSources
from mindspore_serving.cli import ascend_check, main
from mindspore_serving.cli.tool_settings import AscendCheckSettings
from mindspore_serving.llm.runtimes.mindspore import cluster
from tests.backends.ascend_files import machine
from tests.llm.runtimes.primitives.test_selftest import SCRIPTED

SCRIPTED_ALL_REDUCE = "tests.llm.runtimes.primitives.scripted_all_reduce"
SCRIPTED_MODEL = "tests.llm.runtimes.primitives.scripted_model"


@pytest.fixture
def installation(tmp_path, monkeypatch):
    """Return a function that makes `sources` those of this machine."""

    def use(sources):
        monkeypatch.setattr(AscendSources, "of_this_machine", lambda: sources)

    use(machine(tmp_path))
    return use


def test_a_machine_without_a_device_is_a_sentence_and_status_1(
    tmp_path, installation, capsys
) -> None:
    installation(AscendSources(tmp_path / "none", {}, "no-npu-smi"))
    assert main(["ascend-check"]) == 1
    [_, problem] = capsys.readouterr().out.splitlines()
    assert problem.startswith("problem: this machine has no Ascend device: ")


def test_wrong_operators_are_listed_with_the_option_for_servers(
    tmp_path, installation, capsys
) -> None:
    file = tmp_path / "report.json"
    settings = AscendCheckSettings(primitives="rms_norm,rope,matmul", json=str(file), model=False)
    assert ascend_check.run(settings, module=SCRIPTED) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("note: device 1 is in use by process 4321") for line in lines)
    assert "operators on ascend910b, MindSpore 2.10.0, bfloat16" in lines
    assert lines[-1].endswith("--llm-option composed_primitives=rope,matmul")
    assert lines[-2] == "1 of 3 primitives equal numpy"
    report = json.loads(file.read_text())
    assert report["installation"]["cann"] == "8.5.0"
    assert [row["equal"] for row in report["primitives"]] == [True, False, False]
    assert report["primitives"][1]["error"] is None
    assert (report["passed"], report["composed_primitives"]) == (False, "rope,matmul")


def test_equal_operators_are_status_0(installation, capsys) -> None:
    settings = AscendCheckSettings(primitives="rms_norm", model=False)
    assert ascend_check.run(settings, module=SCRIPTED) == 0
    assert capsys.readouterr().out.endswith("1 of 1 primitives equal numpy\n")


def test_a_device_that_does_not_open_is_a_problem_of_the_report(installation, capsys) -> None:
    assert ascend_check.run(AscendCheckSettings(primitives="argmax"), module=SCRIPTED) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "problem: the device ascend cannot be opened: device 0 is busy"


@pytest.mark.mindspore
def test_composed_operators_and_a_model_are_compared_on_the_cpu(capsys) -> None:
    pytest.importorskip("mindspore")
    assert main(["ascend-check", "--device", "cpu", "--primitives", "rms_norm"]) == 0
    text = capsys.readouterr().out
    assert "operators on the CPU, MindSpore" in text
    assert "1 of 1 primitives equal numpy" in text
    assert "no device was used" in text
    assert "a small model equals numpy" in text
    assert "16 of 16 tokens equal" in text
    assert "32 streams: " in text


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("rms_norm", "small model equals numpy: error 1.0e-03 of 6e-02, 16 of 16 tokens equal"),
        ("rope", "small model DIFFERS from numpy: error 5.0e-01 of 6e-02, 9 of 16 tokens equal"),
    ],
)
def test_the_model_runs_with_the_wrong_operators_composed(
    names, words, tmp_path, installation, capsys
) -> None:
    file = tmp_path / "report.json"
    settings = AscendCheckSettings(primitives=names, json=str(file))
    status = ascend_check.run(settings, module=SCRIPTED, model_module=SCRIPTED_MODEL)
    text = capsys.readouterr().out
    assert words in text
    assert "8 streams: 100.0 tokens/s, 50% of the bandwidth of memory" in text
    report = json.loads(file.read_text())
    assert report["model"]["is_close"] == report["passed"] == (status == 0) == (names != "rope")


def test_a_model_that_crashes_is_a_problem_of_the_report(installation, capsys) -> None:
    settings = AscendCheckSettings(primitives="none")
    assert ascend_check.run(settings, module=SCRIPTED, model_module="no_such_module") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "problem: the small model failed: the process exit status 1"


@pytest.mark.parametrize(("devices", "result"), [(2, "right"), (3, "WRONG")])
@pytest.mark.usefixtures("installation")
def test_all_reduces_are_lines_of_the_report(
    devices, result, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(cluster, "start_scheduler", lambda *_: ExitStack())  # none is needed
    file = tmp_path / "report.json"
    settings = AscendCheckSettings(
        primitives="none", model=False, devices=devices, json=str(file)
    )  # fmt: skip
    modules = {"module": SCRIPTED, "all_reduce_module": SCRIPTED_ALL_REDUCE}
    assert ascend_check.run(settings, **modules) == int(result == "WRONG")
    line = f"all-reduce of 1024 KiB over {devices} ranks: {result}, 2.000 ms, 0.52 GB/s"
    assert capsys.readouterr().out.splitlines()[-1] == line
    [row] = json.loads(file.read_text())["all_reduce"]
    assert row == {"num_bytes": 1 << 20, "seconds": 0.002, "is_right": result == "right"}


@pytest.mark.long
@pytest.mark.mindspore
def test_all_reduce_of_two_processes_on_the_cpu_is_right(capsys) -> None:
    pytest.importorskip("mindspore")
    words = ["ascend-check", "--device", "cpu", "--primitives", "none", "--no-model"]
    assert main([*words, "--devices", "2"]) == 0
    assert capsys.readouterr().out.count("over 2 ranks: right") == 7


def test_an_unknown_primitive_is_status_2_with_the_names(capsys) -> None:
    assert main(["ascend-check", "--primitives", "ropes"]) == 2
    error = capsys.readouterr().err
    assert (
        "'ropes' is no primitive of the device, expected all, none or names of: rms_norm" in error
    )


def test_a_report_that_cannot_be_written_is_an_error(tmp_path, installation, capsys) -> None:
    words = ["ascend-check", "--device", "cpu", "--primitives", "none", "--no-model"]
    assert main([*words, "--json", str(tmp_path / "missing" / "report.json")]) == 1
    assert "cannot write the report" in capsys.readouterr().err
