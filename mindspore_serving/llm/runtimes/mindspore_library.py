"""MindSpore itself, imported with its log at errors only, and set up for eager steps on a CPU."""

import os
from contextlib import suppress

from mindspore_serving.errors import StartError

# MindSpore reads its log level when it is imported.  The variable is other libraries' too, so what
# the user has not set does not stay set.
_is_quiet = "GLOG_v" not in os.environ
if _is_quiet:
    os.environ["GLOG_v"] = "3"  # noqa: SIM112
try:
    import mindspore
    from mindspore import ops
finally:
    if _is_quiet:
        del os.environ["GLOG_v"]  # noqa: SIM112

__all__ = ["mindspore", "ops", "use_cpu"]


def use_cpu() -> None:
    """Compute on the CPU.  Raises StartError in a process that computes elsewhere already."""
    with suppress(Exception):  # once anything has run, it may not be set, even to what it is
        mindspore.set_device("CPU")
    target = mindspore.get_context("device_target")
    if target != "CPU":
        raise StartError(f"MindSpore in this process computes on {target}, expected CPU")
    # Without it each operation waits for a scheduler's turn, and errors surface in a later call.
    mindspore.runtime.launch_blocking()
