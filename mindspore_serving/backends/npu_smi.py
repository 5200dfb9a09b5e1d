"""The output of `npu-smi info`: the chips of this machine, and the processes that use them.

Not verified on hardware: the tables are those of published reports.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_CARD = re.compile(r"\|\s*(\d+)\s+([A-Za-z0-9]*[A-Za-z][\w-]*)\s*\|\s*(\w+)\s*\|")
_CHIP = re.compile(r"\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*\w{4}:[\w.:]+\s*\|(.*)\|")
_PROCESS = re.compile(r"\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|\s*(.*?)\s*\|\s*(\d+)\s*\|")
_USED_OF_TOTAL = re.compile(r"(\d+)\s*/\s*(\d+)")


@dataclass(frozen=True, slots=True)
class NpuProcess:
    """A process on a chip, and the MB of its memory there."""

    pid: int
    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class NpuChip:
    """A chip, numbered as its device file; `used` and `total` are MB of its memory."""

    number: int
    name: str
    health: str
    used: int
    total: int
    processes: tuple[NpuProcess, ...] = ()


def parse(text: str) -> tuple[NpuChip, ...]:
    """Return the chips in the output of `npu-smi info`; rows of other forms are skipped.

    A chip's number is its Phy-ID where the table has that column, else its position.
    """
    processes: dict[tuple[str, str], list[NpuProcess]] = {}
    for line in text.splitlines():
        if match := _PROCESS.match(line):
            card, chip, pid, name, memory = match.groups()
            process = NpuProcess(int(pid), name, int(memory))
            processes.setdefault((card, chip), []).append(process)
    return tuple(sorted(_chips(text, processes), key=lambda chip: chip.number))


def _chips(
    text: str, processes: Mapping[tuple[str, str], Sequence[NpuProcess]]
) -> Iterator[NpuChip]:
    card, name, health, position = "", "", "", 0
    for line in text.splitlines():
        if match := _CARD.match(line):
            card, name, health = match.groups()
        elif (match := _CHIP.match(line)) and card:
            chip, physical, rest = match.groups()
            pairs = [(int(used), int(total)) for used, total in _USED_OF_TOTAL.findall(rest)]
            used, total = max(pairs, key=lambda pair: pair[1], default=(0, 0))
            number = position if physical is None else int(physical)
            users = tuple(processes.get((card, chip), ()))
            yield NpuChip(number, name, health, used, total, users)
            position += 1
