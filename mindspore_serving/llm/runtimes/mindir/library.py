"""MindSpore itself, imported with its log at errors only, and set up for the device of its steps.

The tests run it on CPUs alone; of Ascend they can check the calls, not the results.
"""

from mindspore_serving.backends.mindir import import_mindspore
from mindspore_serving.backends.source import words
from mindspore_serving.errors import StartError

mindspore = import_mindspore()
from mindspore import mint, ops  # noqa: E402

__all__ = ["ASCEND", "CPU", "mindspore", "mint", "ops", "use_device"]

CPU, ASCEND = "CPU", "Ascend"  # what MindSpore calls them


def use_device(target: str) -> None:
    """Compute on `target`, `CPU` or `ASCEND`.  Raises StartError in a process that computes
    elsewhere already, and where this MindSpore or this machine has no such device.
    """
    refused = ""
    try:
        mindspore.set_device(target)
    except Exception as error:  # after the first operation not even the same device can be set
        refused = f": {words(error)}"
    current = mindspore.get_context("device_target")
    if current != target:
        raise StartError(f"MindSpore here computes on {current}, expected {target}{refused}")
    if target == CPU:
        # Without it each operation waits for a scheduler's turn, and errors surface in a later
        # call.  On Ascend operations are queued to the device, and waiting is what costs.
        mindspore.runtime.launch_blocking()
