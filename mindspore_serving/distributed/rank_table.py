"""Rank tables: the machine and device of each rank, in the two formats of MindSpore.

    {"server_list": [{"server_id": IP, "device": [{"device_id": "0", "rank_id": "0"}, ...]}, ...]}
    {"group_list": [{"instance_list": [
        {"server_id": IP, "devices": [{"device_id": "0"}], "rank_id": "0"}, ...]}]}

Other fields are for the runtimes that read the same file.  Text in, ranks out; opens no file.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import InvalidInputs

MAX_BYTES = 1 << 20  # of a table
DEVICES = 8  # per machine


@dataclass(frozen=True, slots=True)
class RankEntry:
    """An entry of a rank table: the rank's number, the IP of its machine, and its device there."""

    number: int
    ip: str
    device_id: int


def parse(text: str) -> tuple[RankEntry, ...]:
    """Parse the text of a rank table; its ranks have to be numbered from 0 in order.

    Raises InvalidInputs.
    """
    if len(text) > MAX_BYTES:
        raise _wrong(f"it has {len(text)} characters, at most {MAX_BYTES} are accepted")
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"it is not JSON: {error}") from None
    if not isinstance(table, dict) or ("server_list" in table) == ("group_list" in table):
        raise _wrong("expected an object with either 'server_list' or 'group_list'")
    ranks = tuple(_of_servers(table) if "server_list" in table else _of_groups(table))
    if not ranks:
        raise _wrong("it has no ranks")
    for number, rank in enumerate(ranks):
        if rank.number != number:
            is_repeated = any(rank.number == other.number for other in ranks[:number])
            raise _wrong(
                f"rank_id '{rank.number}' {'is there twice' if is_repeated else 'is not in order'}:"
                f" ranks are numbered from 0 in the order of the file, expected '{number}'"
            )
    return ranks


def check(ranks: Sequence[RankEntry], rank_size: int, stage_size: int) -> None:
    """Raise InvalidInputs if a servable of this size cannot run on `ranks`."""
    if rank_size % stage_size:
        raise _wrong(f"rank_size {rank_size} is not a multiple of stage_size {stage_size}")
    if len(ranks) != rank_size:
        raise _wrong(f"it has {len(ranks)} ranks, the servable is declared with {rank_size}")
    if stage_size == 1:
        _check_devices(ranks)
    else:
        _check_machines(ranks)


def on_machine(ranks: Sequence[RankEntry], ip: str, first: int = 0) -> list[RankEntry]:
    """Return the ranks of the machine with address `ip`, from number `first` on."""
    return [rank for rank in ranks if rank.ip == ip and rank.number >= first]


def _of_servers(table: dict[str, Any]) -> Iterator[RankEntry]:
    for where, server in _objects(table, "server_list", ""):
        ip = _text(server, "server_id", where)
        for path, device in _objects(server, "device", where):
            yield RankEntry(
                _number(device, "rank_id", path), ip, _number(device, "device_id", path)
            )


def _of_groups(table: dict[str, Any]) -> Iterator[RankEntry]:
    for where, group in _objects(table, "group_list", ""):
        for path, instance in _objects(group, "instance_list", where):
            devices = list(_objects(instance, "devices", path))
            if len(devices) != 1:
                raise _wrong(f"'{path}.devices' has {len(devices)} items, expected 1")
            number, ip = _number(instance, "rank_id", path), _text(instance, "server_id", path)
            yield RankEntry(number, ip, _number(devices[0][1], "device_id", devices[0][0]))


def _check_devices(ranks: Sequence[RankEntry]) -> None:
    for rank in ranks:
        if rank.device_id >= DEVICES:
            raise _wrong(f"device_id '{rank.device_id}' should be less than {DEVICES}")
    for (ip, device), count in Counter((rank.ip, rank.device_id) for rank in ranks).items():
        if count > 1:
            raise _wrong(f"device_id '{device}' of server_id '{ip}' has {count} ranks, expected 1")


def _check_machines(ranks: Sequence[RankEntry]) -> None:
    """Check that a pipeline uses whole machines: 8 ranks of each, on its devices in order."""
    if len(ranks) < DEVICES:
        raise _wrong(f"a servable of several stages needs {DEVICES} ranks, it has {len(ranks)}")
    for rank in ranks:
        first = ranks[rank.number - rank.number % DEVICES]
        if rank.ip != first.ip:
            raise _wrong(
                f"with several stages, {DEVICES} ranks in a row have one server_id: rank "
                f"{rank.number} is on '{rank.ip}', rank {first.number} on '{first.ip}'"
            )
        if rank.device_id != rank.number % DEVICES:
            raise _wrong(
                f"with several stages, rank {rank.number} should have device_id "
                f"'{rank.number % DEVICES}', but it has '{rank.device_id}'"
            )


def _objects(holder: dict[str, Any], name: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the objects in list `name`, with the path of each.  Raises InvalidInputs."""
    path = f"{where}.{name}" if where else name
    items = holder.get(name)
    if not isinstance(items, list):
        raise _wrong(f"'{path}' should be a list of objects, but {_shown(holder, name)}")
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise _wrong(f"'{path}[{index}]' should be an object, but is {_short(item)}")
        yield f"{path}[{index}]", item


def _text(holder: dict[str, Any], name: str, where: str) -> str:
    value = holder.get(name)
    if not isinstance(value, str) or not value:
        text = f"should be a str that is not empty, but {_shown(holder, name)}"
        raise _wrong(f"'{where}.{name}' {text}")
    return value


def _number(holder: dict[str, Any], name: str, where: str) -> int:
    value = holder.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    text = f'should be a decimal str such as "0", but {_shown(holder, name)}'
    raise _wrong(f"'{where}.{name}' {text}")


def _shown(holder: dict[str, Any], name: str) -> str:
    return f"is {_short(holder[name])}" if name in holder else "is missing"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _wrong(text: str) -> InvalidInputs:
    return InvalidInputs(f"The rank table is wrong: {text}")
