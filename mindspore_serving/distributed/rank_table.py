"""Rank tables: which rank runs on which machine and device, in the two formats of the original.

    {"server_list": [{"server_id": IP, "device": [{"device_id": "0", "rank_id": "0"}, ...]}, ...]}
    {"group_list": [{"instance_list": [
        {"server_id": IP, "devices": [{"device_id": "0"}], "rank_id": "0"}, ...]}]}

Other fields are left to the runtimes that read the same file.  Text in, ranks out; opens no file.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore_serving.errors import InvalidInputs

MAX_BYTES = 1 << 20  # of a table
DEVICES = 8  # of one machine


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank's number, the address of its machine and the device that it has there."""

    number: int
    ip: str
    device_id: int


def parse(text: str) -> tuple[RankPlace, ...]:
    """The ranks of a table, which are numbered from 0 in the order of the file.  Raises
    InvalidInputs.
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
    for place, rank in enumerate(ranks):
        if rank.number != place:
            again = any(rank.number == other.number for other in ranks[:place])
            raise _wrong(
                f"rank_id '{rank.number}' {'is there twice' if again else 'is not in order'}: "
                f"ranks are numbered from 0 in the order of the file, expected '{place}'"
            )
    return ranks


def check(ranks: Sequence[RankPlace], rank_size: int, stage_size: int) -> None:
    """Raise InvalidInputs if a servable of this size cannot run on `ranks`."""
    if rank_size % stage_size:
        raise _wrong(f"rank_size {rank_size} is not a multiple of stage_size {stage_size}")
    if len(ranks) != rank_size:
        raise _wrong(f"it has {len(ranks)} ranks, the servable is declared with {rank_size}")
    if stage_size == 1:
        _check_devices(ranks)
    else:
        _check_machines(ranks)


def on_machine(ranks: Sequence[RankPlace], ip: str, first: int = 0) -> list[RankPlace]:
    """The ranks of the machine with address `ip`, from number `first` on."""
    return [rank for rank in ranks if rank.ip == ip and rank.number >= first]


def _of_servers(table: dict[str, Any]) -> Iterator[RankPlace]:
    for where, server in _objects(table, "server_list", ""):
        ip = _text(server, "server_id", where)
        for place, device in _objects(server, "device", where):
            yield RankPlace(
                _number(device, "rank_id", place), ip, _number(device, "device_id", place)
            )


def _of_groups(table: dict[str, Any]) -> Iterator[RankPlace]:
    for where, group in _objects(table, "group_list", ""):
        for place, instance in _objects(group, "instance_list", where):
            devices = list(_objects(instance, "devices", place))
            if len(devices) != 1:
                raise _wrong(f"'{place}.devices' has {len(devices)} items, expected 1")
            number, ip = _number(instance, "rank_id", place), _text(instance, "server_id", place)
            yield RankPlace(number, ip, _number(devices[0][1], "device_id", devices[0][0]))


def _check_devices(ranks: Sequence[RankPlace]) -> None:
    for rank in ranks:
        if rank.device_id >= DEVICES:
            raise _wrong(f"device_id '{rank.device_id}' should be less than {DEVICES}")
    for (ip, device), count in Counter((rank.ip, rank.device_id) for rank in ranks).items():
        if count > 1:
            raise _wrong(f"device_id '{device}' of server_id '{ip}' has {count} ranks, expected 1")


def _check_machines(ranks: Sequence[RankPlace]) -> None:
    """A pipeline takes whole machines: eight ranks of each, on its devices in order."""
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
    """The objects in list `name`, and where each is."""
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
