"""The variable by which a process of vLLM sees one device of several.  Knows no engine."""

import os

from mindspore_serving.errors import StartError

VARIABLES = {  # by vLLM's device types
    "cuda": "CUDA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}


def show_device(kind: str, number: str) -> None:
    """Make device `number` of `kind` the only one that is visible to this process.

    If the variable is set already, it is the one at that position in it. Raises StartError if there
    is none, or no such variable.
    """
    variable = VARIABLES.get(kind)
    if variable is None:
        known = ", ".join(VARIABLES)
        raise StartError(f"device is '{kind}:{number}', expected {kind!r}: numbers are for {known}")
    value = os.environ.get(variable, "")
    visible = [text.strip() for text in value.split(",")] if value else []
    if not number.isdigit() or (visible and int(number) >= len(visible)):
        raise StartError(
            f"device is '{kind}:{number}', but {variable} is {value!r}: expected a number below "
            f"{len(visible)}"
            if visible
            else f"device is '{kind}:{number}', expected a number behind the colon"
        )
    os.environ[variable] = visible[int(number)] if visible else number
