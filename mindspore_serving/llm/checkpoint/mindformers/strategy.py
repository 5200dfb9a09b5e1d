"""MindSpore's strategy files: which part of each parameter a rank of parallel training holds.

A strategy file is a protobuf message, or JSON, with the layout of
each parameter of one pipeline stage; a merged one has those of all stages, as 1-name for stage 1.
Knows no tensor's content.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.model_files import load_json
from mindspore_serving.mindir.wire import Damaged, read, repeated, single

MAX_BYTES = 256 * 2**20
MAX_RANKS = 2**16
_STAGE = re.compile(r"(\d{1,5})-(.+)", re.DOTALL)


@dataclass(slots=True)
class _Dims:
    dim: list[int] = repeated(1, "int")


@dataclass(slots=True)
class _Layouts:
    devices: list[_Dims] = repeated(1, _Dims)
    tensor_map: list[_Dims] = repeated(2, _Dims)
    field: int = single(5, "int")
    optimizer_size: int = single(7, "int")


@dataclass(slots=True)
class _LayoutItem:
    name: str = single(1, "text")
    layouts: _Layouts | None = single(2, _Layouts)


@dataclass(slots=True)
class _StrategyParts:
    stage: int = single(1, "int")


@dataclass(slots=True)
class _StrategyItem:
    parts: _StrategyParts | None = single(2, _StrategyParts)


@dataclass(slots=True)
class _StrategyMap:
    current_stage: int = single(1, "int")
    strategies: list[_StrategyItem] = repeated(2, _StrategyItem)
    layouts: list[_LayoutItem] = repeated(3, _LayoutItem)


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Cut of a parameter over the devices of its stage, which form a grid `devices`.

    `axes` has for each axis of the tensor the axes of the grid that cut it, outermost first. The
    first axis is cut further over `optimizer_size` devices that hold the same part (0: it is not).
    """

    devices: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    optimizer_size: int

    @property
    def num_devices(self) -> int:
        """Number of devices of a stage."""
        return prod(self.devices)

    def counts(self, num_dims: int) -> list[int]:
        """Return the number of parts along each of the tensor's axes."""
        counts = [prod(self.devices[axis] for axis in axes) for axes in self.axes]
        counts += [1] * (num_dims - len(counts))
        counts[0] *= prod(size for _, _, size in self._optimizer_axes())
        return counts

    def part_index(self, device: int, num_dims: int) -> tuple[int, ...]:
        """Return the index of a device's part along each of the tensor's axes."""
        coordinates: list[int] = []
        for size in reversed(self.devices):
            device, coordinate = divmod(device, size)
            coordinates.insert(0, coordinate)
        index = [_joined((coordinates[i], self.devices[i]) for i in axes) for axes in self.axes]
        index += [0] * (num_dims - len(index))
        inner = [(coordinates[i] % size, size) for i, _, size in self._optimizer_axes()]
        index[0] = _joined(((index[0], 0), *inner))
        return tuple(index)

    def _optimizer_axes(self) -> list[tuple[int, int, int]]:
        """Return (axis of the grid, its size, devices used of it), outermost first."""
        cutting = {axis for axes in self.axes for axis in axes}
        left = self.optimizer_size
        result: list[tuple[int, int, int]] = []
        for axis in reversed(range(len(self.devices))):
            size = self.devices[axis]
            if axis in cutting or size == 1 or left in (0, 1):
                continue
            used = size if left == -1 else min(size, left)
            if left > 0:
                left //= used
            result.insert(0, (axis, size, used))
        return result


def _joined(digits: Iterable[tuple[int, int]]) -> int:
    """Return the number of (digit, base) pairs, the most significant first."""
    number = 0
    for digit, base in digits:
        number = number * base + digit
    return number


ParameterLayouts = dict[int, dict[str, ParameterLayout]]  # stage -> parameter -> layout


def read_strategies(paths: Iterable[Path]) -> ParameterLayouts:
    """Read the layouts of each stage; files of ranks of one stage are equal.

    Raises StartError naming a file that is damaged or no strategy.
    """
    stages: ParameterLayouts = {}
    seen: set[bytes] = set()
    for path in paths:
        if path.stat().st_size > MAX_BYTES:
            raise StartError(f"{path} has over {MAX_BYTES} bytes, which no strategy file has")
        content = path.read_bytes()
        if content in seen:
            continue
        seen.add(content)
        is_json = path.suffix == ".json"
        try:
            message = (
                _of_json(load_json(path)) if is_json else read(_StrategyMap, memoryview(content))
            )
            for stage, name, layout in _layouts(message):
                stages.setdefault(stage, {}).setdefault(name, layout)
        except Damaged as error:
            raise StartError(f"{path} is damaged, or no strategy file: {error.why}") from None
    return stages


def _of_json(value: Any) -> _StrategyMap:
    """Return the message that a strategy in JSON stands for."""
    items, operators = (
        _object(_object(value).get(f"parallel_{part}_item")) for part in ("layout", "strategy")
    )
    result = _StrategyMap()
    for operator in list(operators.values())[:1]:
        parts = _StrategyParts(_size(_object(operator).get("stage")))
        result.strategies.append(_StrategyItem(parts))
    for name, item in items.items():
        fields = _object(item)
        maps = fields.get("tensor_map")
        is_nested = isinstance(maps, list) and any(isinstance(axis, list) for axis in maps)
        layouts = _Layouts(
            devices=[_Dims(_sizes(fields.get("dev_matrix")))],
            tensor_map=[_Dims(_sizes(m if isinstance(m, list) else [m])) for m in maps]
            if isinstance(maps, list) and is_nested
            else [_Dims(_sizes(maps))],
            field=_size(fields.get("field")),
            optimizer_size=_size(fields.get("opt_weight_shard_size")),
        )
        result.layouts.append(_LayoutItem(name, layouts))
    return result


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Damaged(f"{str(value)[:50]!r} is no object")
    return value


def _sizes(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise Damaged(f"{str(value)[:50]!r} is no list of sizes")
    return [_size(size) for size in value]


def _size(value: Any) -> int:
    if type(value) is not int or not -1 <= value < 2**31:
        raise Damaged(f"{str(value)[:50]!r} is no size")
    return value


def _layouts(message: _StrategyMap) -> Iterator[tuple[int, str, ParameterLayout]]:
    """Iterate over (stage, name of the parameter, layout)."""
    parts = message.strategies[0].parts if message.strategies else None
    file_stage = parts.stage if parts else 0
    for item in message.layouts:
        match = _STAGE.fullmatch(item.name)
        stage, name = (int(match[1]), match[2]) if match else (file_stage, item.name)
        if item.layouts is None:
            raise Damaged(f"parameter {item.name!r} has no layout")
        yield stage, name, _layout(item.name, item.layouts)


def _layout(name: str, stored: _Layouts) -> ParameterLayout:
    devices = tuple(stored.devices[0].dim if stored.devices else ())
    maps = stored.tensor_map
    axes = [[axis] for axis in maps[0].dim] if len(maps) == 1 else [m.dim for m in maps if m.dim]
    grid = len(devices)
    if (
        not 0 < grid <= 32
        or min(devices) < 1
        or prod(devices) > MAX_RANKS
        or any(not -1 <= axis < grid for some in axes for axis in some)
    ):
        raise Damaged(f"parameter {name!r} has devices {list(devices)} with a map {axes}")
    cut = tuple(tuple(grid - 1 - axis for axis in some if axis >= 0) for some in axes)
    used = [axis for some in cut for axis in some]
    if len(set(used)) != len(used) or not -1 <= stored.optimizer_size <= prod(devices):
        raise Damaged(
            f"parameter {name!r} is cut by {axes} and over {stored.optimizer_size} devices more"
        )
    if stored.field:
        raise Damaged(f"parameter {name!r} is cut unevenly (field {stored.field})")
    return ParameterLayout(devices, cut, stored.optimizer_size)
