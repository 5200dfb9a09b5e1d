"""Directories that stand for the root of a machine with an Ascend installation."""

from pathlib import Path

from mindspore_serving.backends.ascend_installation import AscendSources

NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4-1             | OK            | 91.3        33                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3197 / 65536         |
+===========================+===============+====================================================+
| 1     910B4-1             | {health}     | 88.1        33                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          60123/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 1       0                 | 4321          | python3.11               | 56900                   |
+===========================+===============+====================================================+
"""
CHECK_VERSION = """\
class AscendEnvChecker:
    def __init__(self):
        self.version = ["8.3", "8.5"]
"""


def write(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def machine(root: Path, *, cann: str = "8.5.0", health: str = "OK       ") -> AscendSources:
    """Write a complete installation with two devices below `root`."""
    for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        write(root / "dev" / name)
    ascend = root / "usr/local/Ascend"
    write(ascend / "driver/version.info", "Version=25.2.0\nascendhal_version=7.35.23\n")
    write(ascend / "firmware/version.info", "Version=7.7.0.6.236\n")
    home = ascend / "ascend-toolkit/latest"
    write(home / "compiler/version.info", f"Version={cann}\n")
    write(root / "mindspore/version.py", "__version__ = '2.10.0'\n")
    write(root / "mindspore/run_check/_check_version.py", CHECK_VERSION)
    write(root / "table", NPU_SMI.format(health=health))
    program = root / "npu-smi"
    write(program, f"#!/bin/sh\n[ $1 = info ] && cat {root}/table\n")
    program.chmod(0o755)
    variables = {"ASCEND_HOME_PATH": str(home), "ATB_HOME_PATH": "/usr/local/Ascend/nnal/atb"}
    return AscendSources(root, variables, str(program), root / "mindspore")
