"""Facts of an Ascend installation, and what is wrong with it, from directories of files."""

import os
import shutil
from dataclasses import replace

import pytest

from mindspore_serving.backends import npu_smi
from mindspore_serving.backends.ascend_installation import (
    AscendSources,
    check_installation,
    read_installation,
    rows,
)
from mindspore_serving.errors import StartError
from tests.backends.ascend_files import machine, write


def findings(sources):
    return [finding.text for finding in read_installation(sources).findings]


def test_a_complete_installation_has_all_facts(tmp_path) -> None:
    installation = read_installation(machine(tmp_path))
    assert (installation.devices, installation.driver, installation.firmware) == (
        (0, 1),
        "25.2.0",
        "7.7.0.6.236",
    )
    assert (installation.cann, installation.mindspore) == ("8.5.0", "2.10.0")
    assert installation.accepted_cann == ("8.3", "8.5")
    assert [(chip.number, chip.used, chip.total) for chip in installation.chips] == [
        (0, 3197, 65536), (1, 60123, 65536),
    ]  # fmt: skip
    shown = dict(rows(installation))
    assert shown["CANN"].endswith("latest (MindSpore 2.10.0 accepts 8.3, 8.5)")
    assert shown["device 0"] == "910B4-1, OK, 3197 of 65536 MB in use"


def test_a_device_in_use_names_the_process_and_is_not_fatal(tmp_path) -> None:
    [finding] = read_installation(machine(tmp_path)).findings
    assert not finding.is_fatal
    assert finding.text == (
        "device 1 is in use by process 4321 (python3.11, 56900 MB): end it, or choose another by "
        "ASCEND_RT_VISIBLE_DEVICES"
    )


def test_a_device_that_is_not_visible_is_not_reported(tmp_path) -> None:
    sources = machine(tmp_path)
    variables = {**sources.variables, "ASCEND_RT_VISIBLE_DEVICES": "0"}
    assert findings(replace(sources, variables=variables)) == []


def test_a_device_that_is_not_healthy_is_told(tmp_path) -> None:
    [first, _] = findings(machine(tmp_path, health="Critical "))
    assert first.startswith("device 1 has the health Critical: see `npu-smi info -t health -i 1`")


def test_a_machine_without_devices_gets_a_sentence_and_the_next_step(tmp_path) -> None:
    installation = read_installation(AscendSources(tmp_path, {}, "no-npu-smi"))
    assert not installation.is_present
    [finding] = installation.findings
    assert "no file /dev/davinci0 and no driver" in finding.text
    assert "install the driver and the firmware" in finding.text
    assert "ascend-check --device cpu" in finding.text


def without(path):
    def change(root, variables):
        shutil.rmtree(root / path) if (root / path).is_dir() else (root / path).unlink()

    return change


def no_cann(root, variables):
    variables.clear()
    shutil.rmtree(root / "usr/local/Ascend/ascend-toolkit")


def not_sourced(root, variables):
    del variables["ASCEND_HOME_PATH"]


def elsewhere(root, variables):
    variables["ASCEND_HOME_PATH"] = "/nowhere"


def wrong_cann(root, variables):
    write(root / "usr/local/Ascend/ascend-toolkit/latest/compiler/version.info", "Version=7.0.0")


def no_atb(root, variables):
    del variables["ATB_HOME_PATH"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (no_cann, "CANN is not installed: install its toolkit and kernels (8.3, 8.5 for MindSpore"),
        (not_sourced, "CANN 8.5.0 is installed but not in the environment (ASCEND_HOME_PATH): run "
                      "`source /usr/local/Ascend/ascend-toolkit/set_env.sh`"),
        (elsewhere, "ASCEND_HOME_PATH names /nowhere, which does not exist"),
        (wrong_cann, "CANN 7.0.0 does not fit MindSpore 2.10.0, which accepts 8.3, 8.5: install"),
        (no_atb, "`source /usr/local/Ascend/nnal/atb/set_env.sh`"),
        (without("mindspore"), "MindSpore is not installed; install it with: pip install "),
        (without("usr/local/Ascend/driver"), "in a container mount /usr/local/Ascend/driver"),
        (without("dev/hisi_hdc"), "in a container pass --device=/dev/hisi_hdc"),
    ],
)  # fmt: skip
def test_each_part_that_is_missing_is_a_sentence_with_the_next_step(
    change, words, tmp_path
) -> None:
    sources = machine(tmp_path)
    variables = dict(sources.variables)
    change(tmp_path, variables)
    first = findings(replace(sources, variables=variables))[0]
    assert words in first


def test_a_driver_without_a_device_file_is_told(tmp_path) -> None:
    sources = machine(tmp_path)
    for name in ("davinci0", "davinci1"):
        (tmp_path / "dev" / name).unlink()
    [text] = findings(sources)
    assert text.startswith("the driver 25.2.0 is installed, but there is no device file")


def test_a_driver_without_permission_names_group_and_command(tmp_path, monkeypatch) -> None:
    sources = machine(tmp_path)
    (tmp_path / "dev/davinci0").chmod(0o440)
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "davinci0")  # root may all
    text = findings(sources)[0]
    assert "cannot open /dev/davinci0 (mode 440, group" in text
    assert "sudo usermod -aG" in text


def test_a_table_with_physical_ids_and_memory_alone_is_read() -> None:
    [first, second] = npu_smi.parse("""
| 0     310P3               | OK            | NA          54                0     / 0            |
| 0     0                   | 0000:01:00.0  | 0           1850 / 21534                           |
| 0     310P3               | OK            | NA          54                0     / 0            |
| 1     1                   | 0000:01:00.0  | 0           1850 / 21534                           |
| 0     1                   | 77            | python                   | 2000                    |
""")
    assert (first.name, first.used, first.total, first.processes) == ("310P3", 1850, 21534, ())
    assert (second.number, second.processes[0].pid) == (1, 77)


def test_a_server_is_refused_by_fatal_findings_alone(tmp_path) -> None:
    sources = machine(tmp_path, cann="7.0.0")
    check_installation(sources)  # MindSpore itself only warns
    with pytest.raises(StartError, match=r"^CANN 7.0.0 is installed but not in the environment"):
        check_installation(replace(sources, variables={}))
