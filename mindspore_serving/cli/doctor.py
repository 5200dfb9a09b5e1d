"""`mindspore-serving doctor`: what can be served here, on which devices, and what is missing.

It changes nothing, and imports no runtime unless --probe is given.
"""

import os
import platform
import socket
from collections.abc import Iterator, Sequence

from mindspore_serving import __version__, extras
from mindspore_serving.backends import ascend_installation, devices
from mindspore_serving.backends.devices import Availability
from mindspore_serving.cli.settings import GRPC_PORT, HTTP_PORT
from mindspore_serving.cli.tool_settings import DoctorSettings
from mindspore_serving.errors import StartError

_HEADER = ("model format", "library", "version", "runs on")
# Runtime of language models -> package, format with the same library or "", extra.
_RUNTIMES = {
    "openvino": ("openvino", "mindir_openvino", "llm"),
    "torch": ("torch", "pytorch", "torch"),
    "mindspore": ("mindspore", "mindir", "mindspore"),
    "mindir": ("mindspore", "mindir", "mindspore"),
    "native": ("llvmlite", "", "llm"),
}


def run(settings: DoctorSettings) -> int:
    """Print the findings; return 1 if no model format can be served."""
    rows = devices.available(settings.probe)
    for line in _report(rows):
        print(line)
    return int(not any(row.problem is None for row in rows if row.library))


def _report(rows: Sequence[Availability]) -> Iterator[str]:
    yield (
        f"mindspore-serving {__version__}, Python {platform.python_version()}, "
        f"numpy {extras.installed('numpy') or 'missing'}, {platform.system()} {platform.machine()}"
    )
    names = ", ".join(devices.SHOWN[device] for device in devices.present())
    yield f"devices of this machine: {names} ({os.cpu_count()} cores)"
    yield ""
    yield from table([_HEADER, *map(_cells, rows)])
    yield ""
    for row in rows:
        if row.problem is not None:
            yield f"{row.format}: {row.problem}"
    yield ""
    yield from table([("language models", "package", "version", "runs on"), *_language_rows()])
    yield ""
    yield from table([("extra", "what it installs"), *_extra_rows()])
    yield ""
    yield from _ascend_rows()
    for port, purpose in ((HTTP_PORT, "REST"), (GRPC_PORT, "gRPC")):
        yield f"port {port} ({purpose}): {port_state(port)}"
    yield f"numpy: {numpy_note(extras.installed('numpy'), extras.installed('mindspore'))}"


def _language_rows() -> Iterator[tuple[str, str, str, str]]:
    """Iterate over the rows of runtimes, with what is missing for each."""
    common = [name for name in extras.packages().get("llm", {}) if name != "openvino"]
    for runtime, (package, model_format, extra) in _RUNTIMES.items():
        missing = {
            extra: not extras.installed(package),
            "llm": not all(map(extras.installed, common)),
        }
        needed = [extras.command(name) for name, is_missing in missing.items() if is_missing]
        where = f"no: {' && '.join(needed)}" if needed else _runs_on(model_format)
        yield runtime, package, extras.installed(package) or "-", where


def _runs_on(model_format: str) -> str:
    """Return the devices of a format, or, for "", the instructions of native kernels."""
    if model_format:
        return ", ".join(devices.SHOWN[device] for device in devices.usable(model_format))
    from mindspore_serving.llm.runtimes.native.kernels.compiler import instruction_set

    try:
        return f"CPU ({instruction_set().value})"
    except StartError as error:
        return f"no: {error}"


def _extra_rows() -> Iterator[tuple[str, str]]:
    for extra, packages in extras.packages().items():
        shown = ", ".join(f"{name} {extras.installed(name) or 'MISSING'}" for name in packages)
        is_complete = all(map(extras.installed, packages))
        yield extra, shown if is_complete else f"{shown}; {extras.command(extra)}"


def _ascend_rows() -> Iterator[str]:
    """Iterate over the lines about an Ascend installation; none where there is no part of one."""
    installation = ascend_installation.read_installation()
    if installation.is_present:
        yield from table([("Ascend", ""), *ascend_installation.rows(installation)])
        for finding in installation.findings:
            yield f"Ascend: {finding.text}"
        yield ""


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Iterate over lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def port_state(port: int) -> str:
    """Return whether a server can listen on `port` of the loopback interface, as text."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return f"cannot be used ({error.strerror}): choose another with --{{http,grpc}}-port"
    return "free"


def numpy_note(numpy: str, mindspore: str) -> str:
    """Tell whether numpy fits: MindSpore's wheel accepts numpy 2 but cannot be imported with it."""
    if not numpy:
        return "missing; install it with: pip install 'numpy<2'"
    if int(numpy.split(".")[0]) < 2:
        return f"{numpy} is fine for every backend"
    if mindspore:
        return f"{numpy} breaks MindSpore {mindspore}, run: pip install 'numpy<2'"
    return f"{numpy} is fine, but MindSpore, should you install it, needs numpy < 2"


def _cells(row: Availability) -> tuple[str, str, str, str]:
    where = ", ".join(devices.SHOWN[device] for device in row.devices) or "no, see below"
    return row.format, row.library or "-", row.version or "-", where
