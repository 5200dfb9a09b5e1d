"""Capabilities of OpenVINO's CPU plugin on this processor.

Imports OpenVINO only where it has to be asked, as that takes 0.2 s.
"""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from mindspore_serving.llm.checkpoint.built_files import key_of, read_or_build

# Beginnings of lines of /proc/cpuinfo that tell processors apart, on x86 and Arm.
PROCESSOR_LINES = ("vendor", "cpu family", "model", "stepping", "flags", "CPU ", "Features")
WITH_BF16 = ("BF16", "FP16", "AMX", "AVX10", "VNNI_2")  # parts of ISA names that include bf16


def capabilities(num_threads: int | None = None) -> list[str]:
    """Return the plugin's OPTIMIZATION_CAPABILITIES with `num_threads`; None: one thread per core.

    The plugin reports BF16 even where its kernels fail, so it is left out here if
    ONEDNN_MAX_CPU_ISA forbids them, or with one thread, among which a fused block cannot be divided
    (SIGFPE).
    """
    import openvino as ov

    reported: list[str] = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    isa_limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    is_allowed = isa_limit in ("", "ALL", "DEFAULT") or any(kind in isa_limit for kind in WITH_BF16)
    cores = len(os.sched_getaffinity(0))
    has_kernels = is_allowed and min(num_threads or cores, cores) > 1
    return [capability for capability in reported if capability != "BF16" or has_kernels]


def kept_capabilities(num_threads: int | None = None) -> list[str]:
    """Return `capabilities` without asking the plugin again on this processor."""
    case = repr(("capabilities", num_threads, *plugin_identity()))
    stored = read_or_build(key_of((case.encode(),)), lambda: _joined(capabilities(num_threads)))
    return stored.decode().split()


def _joined(names: list[str]) -> bytes:
    return " ".join(names).encode()


def plugin_identity() -> tuple[str, ...]:
    """Return all that the choice of kernels depends on, besides properties and shapes."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        lines = [platform.processor()]
    processor = [line for line in lines if line.startswith(PROCESSOR_LINES)] or lines
    cores = str(len(os.sched_getaffinity(0)))
    isa_limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    return (version("openvino"), platform.machine(), isa_limit, cores, *processor)
