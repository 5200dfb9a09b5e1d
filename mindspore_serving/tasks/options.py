"""Options of a task, and parameters among the inputs of an instance.  Knows no model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindspore_serving.core.tasks import TASK_OPTIONS, TASKS, TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.config import OPTIONS, EngineConfig
from mindspore_serving.llm.options import check_names, make_config

MAX_TOP_K = 1 << 20


def split_options(options: Mapping[str, Any]) -> tuple[TaskOptions, EngineConfig]:
    """Split options into those of the task and those of the engine.  Raises InvalidInputs."""
    check_names(options, {**TASK_OPTIONS, **OPTIONS})
    task_options = {name: value for name, value in options.items() if name in TASK_OPTIONS}
    engine_options = {name: value for name, value in options.items() if name not in TASK_OPTIONS}
    return TaskOptions(**task_options), make_config(engine_options)


def named_inputs(task: str, row: Sequence[Value]) -> dict[str, Value]:
    """Return the inputs of an instance by name, without those that are empty texts."""
    pairs = zip(TASKS[task].inputs, row, strict=False)
    return {name: value for name, value in pairs if not (isinstance(value, str) and not value)}


def read_text(inputs: Mapping[str, Value], name: str) -> str:
    """Return the input `name`.  Raises InvalidInputs unless it is a text that is not blank."""
    value = inputs.get(name, "")
    if not isinstance(value, str):
        raise InvalidInputs(f"{name} is {_shown(value)}, expected a text")
    if not value.strip():
        raise InvalidInputs(f"{name} is empty, expected a text")
    return str(value)


def read_int(inputs: Mapping[str, Value], name: str, default: int) -> int:
    """Return the input `name`.  Raises InvalidInputs unless it is an integer from 0 on."""
    value = inputs.get(name)
    if value is None:
        return default
    number = _single(value, "iu")
    if number is None or not 0 <= number <= MAX_TOP_K:
        raise InvalidInputs(f"{name} is {_shown(value)}, expected an integer of 0 to {MAX_TOP_K}")
    return int(number)


def read_number(inputs: Mapping[str, Value], name: str, default: float, largest: float) -> float:
    """Return the input `name`.  Raises InvalidInputs unless it is a number of 0 to `largest`."""
    value = inputs.get(name)
    if value is None:
        return default
    number = _single(value, "iuf")
    if number is None or not 0 <= number <= largest:
        raise InvalidInputs(f"{name} is {_shown(value)}, expected a number of 0 to {largest:g}")
    return float(number)


def read_flag(inputs: Mapping[str, Value], name: str, default: bool) -> bool:
    """Return the input `name`.  Raises InvalidInputs unless it is true or false."""
    value = inputs.get(name)
    if value is None:
        return default
    flag = _single(value, "b")
    if flag is None:
        raise InvalidInputs(f"{name} is {_shown(value)}, expected true or false")
    return bool(flag)


def read_choice(inputs: Mapping[str, Value], name: str, choices: Sequence[str]) -> str:
    """Return the input `name`, by default the first choice.  Raises InvalidInputs."""
    value = inputs.get(name, choices[0])
    if not isinstance(value, str) or value not in choices:
        raise InvalidInputs(f"{name} is {_shown(value)}, expected {' or '.join(choices)}")
    return str(value)


def _single(value: Value, kinds: str) -> Any:
    is_single = isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in kinds
    return value.item() if isinstance(value, np.ndarray) and is_single else None


def _shown(value: Value) -> str:
    if isinstance(value, np.ndarray):
        if value.size == 1:
            return repr(value.item())
        return f"an array of {value.dtype} {list(value.shape)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return repr(value if len(value) <= 64 else value[:64] + "...")
