"""Merging of several configurations of one servable into one per version.

Plain data in and out; of the file system it reads only which version directories exist.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from mindspore_serving import log
from mindspore_serving.core.servable_options import SERVABLE, ServableOptions
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.servable.check import as_int_tuple
from mindspore_serving.servable.repository import versions

_Options = TypeVar("_Options", bound=ServableOptions)
_UNITED = ("device_ids", "num_parallel_workers", "alias")


def merge(configs: Iterable[_Options]) -> list[_Options]:
    """Return one configuration for each version of each servable, in order of first appearance.

    Version 0 is replaced by the newest directory, if there is one. For one version, device ids are
    united, the largest number of workers is taken, and all else must agree. The device type of a
    servable is that of its first configuration. Raises InvalidInputs if configurations of a
    servable contradict each other, or two use one device of type "ascend".
    """
    first: dict[str, _Options] = {}
    merged: dict[tuple[str, int], _Options] = {}
    for config in configs:
        leader = first.setdefault(config.name, config)
        config = _follow(leader, config)
        key = (config.name, config.version_number)
        merged[key] = _unite(merged[key], config) if key in merged else config
    _check_ascend_devices(merged.values())
    return list(merged.values())


def _follow(leader: _Options, config: _Options) -> _Options:
    """Resolve the version of `config`, and take what it shares with the servable's first one."""
    name = config.servable_name
    if leader.servable_directory != config.servable_directory:
        raise InvalidInputs(
            f"The servable directory of servable name {name} is different in multiple "
            f"configurations, servable directory: {leader.servable_directory} and "
            f"{config.servable_directory}"
        )
    if leader.servable_name != name:
        raise InvalidInputs(
            f"'{leader.servable_name}' and '{name}' would both be called {leader.name}: set an "
            "alias (serve: --name)"
        )
    if leader.device_type != config.device_type:
        log.warning(
            "the device type of servable %s is %s, as in its first configuration; %s is ignored",
            name,
            leader.device_type,
            config.device_type,
        )
    available = versions(config.servable_directory, name)
    newest = available[-1] if available else 0
    version = config.version_number or newest
    return replace(config, version_number=version, device_type=leader.device_type)


def _unite(old: _Options, new: _Options) -> _Options:
    name = new.servable_name
    if (old.dec_key, old.dec_mode) != (new.dec_key, new.dec_mode):
        raise InvalidInputs(
            f"The dec key or dec mode of servable name {name} is different in multiple "
            "configurations."
        )
    shared = [option for option in SERVABLE if option not in _UNITED]
    if wrong := [option for option in shared if getattr(old, option) != getattr(new, option)]:
        raise InvalidInputs(
            f"The {' and '.join(wrong)} of servable name {name} is different in multiple "
            "configurations."
        )
    devices = [i for each in (old, new) for i in as_int_tuple("device_ids", each.device_ids)]
    number = max(old.num_parallel_workers, new.num_parallel_workers)
    return replace(old, device_ids=tuple(dict.fromkeys(devices)), num_parallel_workers=number)


def _check_ascend_devices(configs: Iterable[ServableOptions]) -> None:
    """Check that no Ascend device has two processes; other devices may be shared."""
    used: set[int] = set()
    for config in configs:
        if config.device_type != "ascend":
            continue
        for device_id in as_int_tuple("device_ids", config.device_ids):
            if device_id in used:
                raise InvalidInputs(
                    f"Ascend 910 device id {device_id} is used repeatedly in servable "
                    f"{config.servable_name}"
                )
            used.add(device_id)
