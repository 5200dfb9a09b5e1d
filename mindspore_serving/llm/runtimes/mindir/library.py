"""MindSpore itself, imported with logging of errors only, and set up for the device of its steps.

Tests run it on CPUs only; for Ascend they check the calls, not the results.
"""

from typing import Any

from mindspore_serving.backends.mindir import import_mindspore
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import StartError

mindspore = import_mindspore()
from mindspore import mint, ops  # noqa: E402
from mindspore.common.np_dtype import bfloat16  # noqa: E402

__all__ = [
    "ASCEND", "CPU", "bfloat16", "in_fractal_format", "mindspore", "mint", "ops", "soc_version",
    "use_device",
]  # fmt: skip

CPU, ASCEND = "CPU", "Ascend"  # MindSpore's names
_FRACTAL_NZ = 29  # tiles of 16 * 16 elements, as CANN numbers formats


def use_device(target: str, number: int = 0) -> None:
    """Compute on device `number` of `target`, `CPU` or `ASCEND`.

    Raises StartError in a process that already computes on another device, and if this MindSpore or
    this machine has no such device.
    """
    refused = ""
    try:
        mindspore.set_device(*((target,) if target == CPU else (target, number)))
    except Exception as error:  # after the first operation not even the same device can be set
        refused = f": {error_text(error)}"
    current = mindspore.get_context("device_target")
    if current != target:
        raise StartError(f"MindSpore here computes on {current}, expected {target}{refused}")
    if target == CPU:
        # Without it each operation waits for the scheduler, and errors surface in a later call.
        # On Ascend operations are queued to the device, and blocking would cost time.
        mindspore.runtime.launch_blocking()


def in_fractal_format(tensor: Any) -> Any:
    """Return a copy of `tensor` on the device in the format that its products read."""
    from mindspore.ops.auto_generate import format_cast

    return format_cast(tensor, _FRACTAL_NZ)


def soc_version() -> str:
    """Return the name of the Ascend device in use, as "ascend910b"; it is opened for that."""
    context = mindspore.context.MSContext.get_instance()
    return str(context.get_ascend_soc_version()).lower()
