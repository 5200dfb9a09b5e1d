"""The options of a task, and what one instance asks for.  Knows no model."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindspore_serving.core.tasks import TASK_OPTIONS, TASKS, TaskOptions
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.config import OPTIONS, EngineConfig
from mindspore_serving.llm.options import check_names, make_config

MOST_TOP_K = 1 << 20


def split_options(options: Mapping[str, Any]) -> tuple[TaskOptions, EngineConfig]:
    """Those of the task, and those of the engine.  Raises InvalidInputs naming a wrong one."""
    check_names(options, {**TASK_OPTIONS, **OPTIONS})
    own = {name: value for name, value in options.items() if name in TASK_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in TASK_OPTIONS}
    return TaskOptions(**own), make_config(rest)


def named(task: str, row: Sequence[Value]) -> dict[str, Value]:
    """The inputs of an instance by name, those alone that were given."""
    pairs = zip(TASKS[task].inputs, row, strict=False)
    return {name: value for name, value in pairs if not (isinstance(value, str) and not value)}


def read_text(given: Mapping[str, Value], name: str) -> str:
    """Raises InvalidInputs unless it is a text that is not blank."""
    value = given.get(name, "")
    if not isinstance(value, str):
        raise InvalidInputs(f"{name} is {_shown(value)}, expected a text")
    if not value.strip():
        raise InvalidInputs(f"{name} is empty, expected a text")
    return str(value)


def read_int(given: Mapping[str, Value], name: str, default: int) -> int:
    """Raises InvalidInputs unless it is an integer from 0 on."""
    value = given.get(name)
    if value is None:
        return default
    number = _single(value, "iu")
    if number is None or not 0 <= number <= MOST_TOP_K:
        raise InvalidInputs(f"{name} is {_shown(value)}, expected an integer of 0 to {MOST_TOP_K}")
    return int(number)


def read_flag(given: Mapping[str, Value], name: str, default: bool) -> bool:
    """Raises InvalidInputs unless it is true or false."""
    value = given.get(name)
    if value is None:
        return default
    flag = _single(value, "b")
    if flag is None:
        raise InvalidInputs(f"{name} is {_shown(value)}, expected true or false")
    return bool(flag)


def read_choice(given: Mapping[str, Value], name: str, choices: Sequence[str]) -> str:
    """The first choice if nothing was given.  Raises InvalidInputs."""
    value = given.get(name, choices[0])
    if not isinstance(value, str) or value not in choices:
        raise InvalidInputs(f"{name} is {_shown(value)}, expected {' or '.join(choices)}")
    return str(value)


def _single(value: Value, kinds: str) -> Any:
    is_one = isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in kinds
    return value.item() if isinstance(value, np.ndarray) and is_one else None


def _shown(value: Value) -> str:
    if isinstance(value, np.ndarray):
        if value.size == 1:
            return repr(value.item())
        return f"an array of {value.dtype} {list(value.shape)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return repr(value if len(value) <= 64 else value[:64] + "...")
