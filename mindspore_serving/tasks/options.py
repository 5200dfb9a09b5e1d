"""The options of a task, and what one instance asks for.  Knows no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from mindspore_serving.core.tasks import TASKS
from mindspore_serving.core.value import Value
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.loader import make_config

MOST_TOP_K = 1 << 20


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How instances are limited and answered where they do not say it themselves.

    Args:
        top_k: labels or tokens that are answered, the likeliest first; 0 for all.
        truncate: cut texts that are longer than the model takes, instead of refusing them.
        max_image_bytes: of an image as it is sent.
        max_image_pixels: width times height of an image, which are read before it is decoded.

    Raises InvalidInputs naming the option, what was given and what is accepted.
    """

    top_k: int = 5
    truncate: bool = False
    max_image_bytes: int = 20 << 20
    max_image_pixels: int = 32_000_000

    def __post_init__(self) -> None:
        for name, least in (("top_k", 0), ("max_image_bytes", 1), ("max_image_pixels", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidInputs(f"{name} is {value!r}, expected an int >= {least}")
        if type(self.truncate) is not bool:
            raise InvalidInputs(f"truncate is {self.truncate!r}, expected true or false")


def split_options(options: Mapping[str, Any]) -> tuple[TaskOptions, EngineConfig]:
    """Those of the task, and those of the engine.  Raises InvalidInputs naming a wrong one."""
    own = {field.name for field in fields(TaskOptions)}
    rest = {name: value for name, value in options.items() if name not in own}
    known = own | {field.name for field in fields(EngineConfig)}
    for name in rest:
        if name not in known:
            raise InvalidInputs(
                f"{name!r} is no option, expected one of {', '.join(sorted(known))}"
            )
    return TaskOptions(**{k: v for k, v in options.items() if k in own}), make_config(rest)


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
