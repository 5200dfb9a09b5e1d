"""The Ascend installation of this machine: driver, firmware, CANN, devices, and what is wrong.

Reads files, variables and the output of `npu-smi`; imports nothing and opens no device.  Not
verified on hardware.
"""

import ast
import grp
import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from mindspore_serving import extras, log
from mindspore_serving.backends import npu_smi
from mindspore_serving.errors import StartError
from mindspore_serving.process.tool import output_of

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_ASCEND = "usr/local/Ascend"
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
# Where CANN is installed by default: up to 8.3, and from 8.5 on.
_TOOLKITS = (f"{_ASCEND}/ascend-toolkit/latest", f"{_ASCEND}/cann")
_SHARED_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")  # of all devices
_VERSION = re.compile(r"^version=\[?([^\]\s]+)", re.IGNORECASE | re.MULTILINE)
_PYTHON_VERSION = re.compile(r"^__version__ = ['\"]([^'\"]+)", re.MULTILINE)
_HEALTHY = ("OK", "UNKNOWN")  # UNKNOWN: of cards that do not tell
_BUSY_MB = 1024  # of a process on a device; services of the driver take less


@dataclass(frozen=True, slots=True)
class AscendSources:
    """Sources of the facts: files below `root`, in `variables`, from the program `npu_smi`.

    `mindspore` is the installed package, None if it is missing.
    """

    root: Path = Path("/")
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    npu_smi: str = "npu-smi"
    mindspore: Path | None = None

    @classmethod
    def of_this_machine(cls) -> "AscendSources":
        spec = find_spec("mindspore")
        locations = (spec.submodule_search_locations if spec is not None else None) or ()
        return cls(mindspore=next((Path(each) for each in locations), None))


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem and next step in a sentence; `is_fatal` if nothing can run."""

    text: str
    is_fatal: bool = True


@dataclass(frozen=True, slots=True)
class AscendInstallation:
    """Facts of an installation, "" where there is none.

    `devices` are the numbers of the device files, `cann_home` the directory that the environment
    names, and `accepted_cann` the versions that the installed MindSpore accepts.
    """

    devices: tuple[int, ...]
    driver: str
    firmware: str
    cann_home: str
    cann: str
    atb_home: str
    mindspore: str
    accepted_cann: tuple[str, ...]
    chips: tuple[npu_smi.NpuChip, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def is_present(self) -> bool:
        """True if this machine has a device, its driver or CANN."""
        return bool(self.devices or self.driver or self.cann_home or self.cann)


def read_installation(sources: AscendSources | None = None) -> AscendInstallation:
    """Return the installation, with what is wrong with it."""
    sources = sources or AscendSources.of_this_machine()
    ascend = sources.root / _ASCEND
    home = next((sources.variables[name] for name in _HOMES if sources.variables.get(name)), "")
    toolkit = Path(home) if home else _default_toolkit(sources)
    facts = (
        _device_numbers(sources),
        _version_in(ascend / "driver/version.info"),
        _version_in(ascend / "firmware/version.info"),
        home,
        "" if toolkit is None else _cann_version(toolkit),
        sources.variables.get("ATB_HOME_PATH", ""),
        _mindspore_version(sources.mindspore),
        _accepted_cann(sources.mindspore),
        npu_smi.parse(output_of([sources.npu_smi, "info"])),
    )
    without = AscendInstallation(*facts)
    return AscendInstallation(*facts, findings=tuple(_findings(without, sources)))


def check_installation(sources: AscendSources | None = None) -> None:
    """Raise StartError with what keeps a server from a device, and log what else is wrong."""
    findings = read_installation(sources).findings
    if fatal := [finding.text for finding in findings if finding.is_fatal]:
        raise StartError("; ".join(fatal))
    for finding in findings:
        log.warning("Ascend: %s", finding.text)


def visible_devices(sources: AscendSources | None = None) -> tuple[int, ...]:
    """Return the numbers of the devices that a process sees."""
    sources = sources or AscendSources.of_this_machine()
    return _visible(_device_numbers(sources), sources)


def _device_numbers(sources: AscendSources) -> tuple[int, ...]:
    names = (path.name for path in (sources.root / "dev").glob("davinci[0-9]*"))
    return tuple(sorted(int(digits) for name in names if (digits := name[7:]).isdigit()))


def _default_toolkit(sources: AscendSources) -> Path | None:
    paths = (sources.root / name for name in _TOOLKITS)
    return next((path for path in paths if path.is_dir()), None)


def _version_in(file: Path, pattern: "re.Pattern[str]" = _VERSION) -> str:
    try:
        match = pattern.search(file.read_text(errors="replace"))
    except OSError:
        return ""
    return match.group(1) if match else ""


def _mindspore_version(package: Path | None) -> str:
    return "" if package is None else _version_in(package / "version.py", _PYTHON_VERSION)


def _cann_version(home: Path) -> str:
    files = [home / "compiler/version.info", *home.glob("*-linux/ascend_toolkit_install.info")]
    return next((version for file in files if (version := _version_in(file))), "")


def _accepted_cann(mindspore: Path | None) -> tuple[str, ...]:
    """Return the versions in the list that MindSpore's own check compares with, as "8.5"."""
    if mindspore is None:
        return ()
    try:
        tree = ast.parse((mindspore / "run_check/_check_version.py").read_text())
    except (OSError, SyntaxError):
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == "AscendEnvChecker":
            for line in ast.walk(node):
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "self.version":
                    return tuple(ast.literal_eval(line.value))
    return ()


def _findings(present: AscendInstallation, sources: AscendSources) -> Iterator[Finding]:
    if not present.devices:
        yield Finding(_no_device(present))
        return
    yield from _driver_findings(present, sources)
    yield from _cann_findings(present, sources)
    for chip in present.chips:
        if chip.number in _visible(present.devices, sources) and chip.number in present.devices:
            yield from _chip_findings(chip)


def _no_device(present: AscendInstallation) -> str:
    if present.driver:
        return (
            f"the driver {present.driver} is installed, but there is no device file /dev/davinci0: "
            "in a container pass --device=/dev/davinci0, on the machine itself look at `npu-smi "
            "info` and `dmesg`"
        )
    return (
        "this machine has no Ascend device: there is no file /dev/davinci0 and no driver in "
        "/usr/local/Ascend/driver; install the driver and the firmware of the card; on a "
        "CPU `mindspore-serving ascend-check --device cpu` checks what replaces its operators"
    )


def _driver_findings(present: AscendInstallation, sources: AscendSources) -> Iterator[Finding]:
    if not present.driver:
        yield Finding(
            "the driver's files are missing (/usr/local/Ascend/driver/version.info): install the "
            "driver, or in a container mount /usr/local/Ascend/driver",
            is_fatal=False,
        )
    directory = sources.root / "dev"
    missing = [name for name in _SHARED_FILES if not (directory / name).exists()]
    if missing:
        paths = [f"/dev/{name}" for name in missing]
        yield Finding(
            f"the device files {', '.join(paths)} are missing: in a container pass "
            f"{' '.join(f'--device={path}' for path in paths)}, else load the driver again",
            is_fatal=False,
        )
    names = [f"davinci{number}" for number in _visible(present.devices, sources)]
    for name in (*names, *_SHARED_FILES):
        path = directory / name
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            yield Finding(_no_permission(path, name))
            break


def _no_permission(path: Path, name: str) -> str:
    status = path.stat()
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return (
        f"user {user} cannot open /dev/{name} (mode {status.st_mode & 0o777:o}, group {group}): "
        f"run `sudo usermod -aG {group} {user}` and log in again, or in a container run as a user "
        "of that group"
    )


def _cann_findings(present: AscendInstallation, sources: AscendSources) -> Iterator[Finding]:
    accepted = ", ".join(present.accepted_cann)
    if not present.mindspore:
        yield Finding(f"MindSpore is not installed; install it with: {extras.command('mindspore')}")
    if not present.cann_home:
        toolkit = _default_toolkit(sources)
        if toolkit is None:
            versions = f" ({accepted} for MindSpore {present.mindspore})" if accepted else ""
            yield Finding(
                f"CANN is not installed: install its toolkit and kernels{versions}, and run "
                "`source /usr/local/Ascend/ascend-toolkit/set_env.sh`"
            )
            return
        script = f"/{toolkit.relative_to(sources.root)}/set_env.sh".replace("/latest/", "/")
        yield Finding(
            f"CANN {present.cann or 'of unknown version'} is installed but not in the environment "
            f"(ASCEND_HOME_PATH): run `source {script}` in the shell that starts the server"
        )
    elif not Path(present.cann_home).is_dir():
        yield Finding(
            f"ASCEND_HOME_PATH names {present.cann_home}, which does not exist: run `source` on "
            "the set_env.sh of the CANN that is installed"
        )
        return
    version = ".".join(present.cann.split(".")[:2])
    if present.cann and present.accepted_cann and version not in present.accepted_cann:
        yield Finding(
            f"CANN {present.cann} does not fit MindSpore {present.mindspore}, which accepts "
            f"{accepted}: install one of these, or the MindSpore of your CANN",
            is_fatal=False,
        )
    if not present.atb_home:
        yield Finding(
            "ATB, which has the attention kernels, is not in the environment (ATB_HOME_PATH): "
            "install CANN's NNAL and run `source /usr/local/Ascend/nnal/atb/set_env.sh`",
            is_fatal=False,
        )


def _chip_findings(chip: npu_smi.NpuChip) -> Iterator[Finding]:
    if chip.health.upper() not in _HEALTHY:
        yield Finding(
            f"device {chip.number} has the health {chip.health}: see `npu-smi info -t health -i "
            f"{chip.number}`, and use another by {VISIBLE}",
            is_fatal=False,
        )
    busy = [process for process in chip.processes if process.memory >= _BUSY_MB]
    if busy:
        names = ", ".join(f"{each.pid} ({each.name}, {each.memory} MB)" for each in busy)
        yield Finding(
            f"device {chip.number} is in use by process {names}: end it, or choose another by "
            f"{VISIBLE}",
            is_fatal=False,
        )


def _visible(devices: Sequence[int], sources: AscendSources) -> tuple[int, ...]:
    """Return the numbers of the devices that a process sees; all if the variable is not set."""
    words = sources.variables.get(VISIBLE, "").split(",")
    numbers = tuple(int(word) for word in words if word.strip().isdigit())
    return numbers or tuple(devices)


def rows(present: AscendInstallation) -> Iterator[tuple[str, str]]:
    """Iterate over the facts as names and texts, for a table."""
    yield "driver", present.driver or "missing"
    yield "firmware", present.firmware or "unknown"
    accepted = f" (MindSpore {present.mindspore} accepts {', '.join(present.accepted_cann)})"
    cann = (
        f"{present.cann or 'of unknown version'} in {present.cann_home}"
        if present.cann_home
        else ""
    )
    shown = cann or (f"{present.cann}, not in the environment" if present.cann else "missing")
    yield "CANN", shown + (accepted if present.accepted_cann else "")
    yield "ATB", present.atb_home or "missing"
    numbers = ", ".join(map(str, present.devices)) or "none"
    yield "devices", numbers
    for chip in present.chips:
        memory = f"{chip.used} of {chip.total} MB in use"
        yield f"device {chip.number}", f"{chip.name}, {chip.health}, {memory}"
