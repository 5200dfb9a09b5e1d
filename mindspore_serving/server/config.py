"""`ServableStartConfig`: the configuration of a servable in a start-up script, and its merging.

Checks arguments; of the file system it only looks at which directories exist.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mindspore_serving.core.core_sets import parse_core_sets
from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.network import parse_spec
from mindspore_serving.core.params import documented
from mindspore_serving.core.roles import check_roles
from mindspore_serving.core.servable_options import SERVABLE, ServableOptions
from mindspore_serving.core.traffic import check_traffic
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.hub.reference import parse_reference
from mindspore_serving.hub.resolve import resolve, resolve_options
from mindspore_serving.servable.bare import file_alias
from mindspore_serving.servable.check import (
    as_int_tuple,
    check_dec,
    check_option,
    check_servable_name,
    check_str,
)
from mindspore_serving.servable.foreign import formats
from mindspore_serving.servable.loader import CONFIG_FILE
from mindspore_serving.servable.merging import merge
from mindspore_serving.servable.repository import check_servable
from mindspore_serving.server.language_options import (
    check_declared_options,
    check_language_options,
    check_task_options,
)

__all__ = ["ServableStartConfig", "get_abs_path", "merge_config", "to_deployments"]

_DEVICE_TYPES = ("none", "ascend", "gpu", "cpu")
_OTHER_NAMES = {"cuda": "GPU", "nvidia": "GPU", "npu": "Ascend", "davinci": "Ascend"}


@documented(SERVABLE)
@dataclass(frozen=True, eq=False)
class ServableStartConfig(ServableOptions):
    """The configuration of one version of a servable, for `start_servables`.

    Args:
        {}

    All arguments are readable attributes and cannot be changed.

    Raises:
        RuntimeError: an argument is invalid.
    """

    servable_directory: str
    servable_name: str

    def __post_init__(self) -> None:
        directory = get_abs_path(check_str("servable_directory", self.servable_directory))
        name = check_servable_name("servable_name", self.servable_name)
        if parse_reference(self.servable_directory, _base()):
            object.__setattr__(self, "alias", self.alias or name)
            directory, name = os.path.split(resolve(self.servable_directory, base=_base()))
        described = formats.read(os.path.join(directory, name))
        for option, value in formats.complete(described, _values(self)).items():
            object.__setattr__(self, option, value)
        devices = self.device_ids
        devices = () if devices is None else as_int_tuple("device_ids", devices, 0)
        check_dec(self.dec_key, self.dec_mode)
        checked: dict[str, Any] = {
            "servable_directory": os.path.realpath(directory),
            "servable_name": name,
            "device_ids": devices,
            "dec_key": self.dec_key,
            "device_type": _check_device_type(self.device_type),
            **check_traffic(self),
        }
        for option, row in SERVABLE.items():
            if option not in checked:
                checked[option] = check_option(row, getattr(self, option))
        alias = self.alias or file_alias(directory, name)
        if described is not None and described.language_options:
            checked["llm_options"] = _completed(
                described.language_options, checked["llm_options"] or {}, alias or name
            )
        parse_core_sets(checked["cores"])
        _check_levels(checked)
        check_language_options(checked["llm_options"])
        checked["weights"] = _checked_weights(checked, name, self.servable_directory)
        checked["llm_options"] = resolve_options(checked["llm_options"])
        checked["alias"] = check_servable_name("alias", alias) if alias else ""
        if os.sep in self.python:  # else a name in PATH
            checked["python"] = _absolute(self.python)
        if self.environment:
            checked["environment"] = _absolute(self.environment)
        checked["cache_store_key"] = _checked_store_key(checked)
        self._check_scaling(devices)
        checked["num_parallel_workers"] = self._num_workers(checked["roles"], len(devices))
        for option, value in checked.items():
            object.__setattr__(self, option, value)

    def _check_scaling(self, devices: tuple[int, ...]) -> None:
        if not self.max_workers:
            return
        if self.min_workers > self.max_workers:
            raise InvalidInputs(
                f"Parameter 'min_workers' is {self.min_workers}, expected at most 'max_workers', "
                f"{self.max_workers}"
            )
        if self.num_parallel_workers:
            raise InvalidInputs(
                f"Parameter 'num_parallel_workers' is {self.num_parallel_workers}, expected 0 with "
                "'max_workers'"
            )
        if devices and self.max_workers > len(devices):
            raise InvalidInputs(
                f"Parameter 'max_workers' is {self.max_workers}, expected at most one for each of "
                f"{len(devices)} 'device_ids'"
            )

    def _num_workers(self, roles: Mapping[str, int], num_devices: int) -> int:
        """Return `num_parallel_workers`, or its default.

        Raises InvalidInputs unless there is a worker for each of `roles`.
        """
        check_roles(roles)
        if not roles:
            is_counted = num_devices or self.max_workers or self.num_parallel_workers
            return self.num_parallel_workers if is_counted else 1
        if self.max_workers:
            raise InvalidInputs(
                f"Parameter 'max_workers' is {self.max_workers}, expected 0 with 'roles', which "
                "have a fixed number of workers"
            )
        if self.rank_machines > 1:
            raise InvalidInputs(
                f"Parameter 'rank_machines' is {self.rank_machines}, expected 1 with 'roles'"
            )
        count, set_number = sum(roles.values()), num_devices or self.num_parallel_workers
        if set_number not in (0, count):
            name = "device_ids" if num_devices else "num_parallel_workers"
            raise InvalidInputs(
                f"Parameter 'roles' has {count} workers, but '{name}' {set_number}: leave that "
                "out, or set as many"
            )
        return self.num_parallel_workers if num_devices else count


def _completed(
    described: Mapping[str, Any], options: Mapping[str, Any], alias: str
) -> dict[str, Any]:
    """Return the options of a language model with those of its description, and both's adapters.

    A described adapter with the name of the model, `alias`, is called NAME-lora.
    """
    adapters = {
        f"{name}-lora" if name == alias else name: path
        for name, path in described.get("adapters", {}).items()
    }
    adapters |= options.get("adapters") or {}
    return {**described, **options, **({"adapters": adapters} if adapters else {})}


def _values(config: ServableOptions) -> dict[str, Any]:
    return {name: getattr(config, name) for name in SERVABLE}


def _checked_weights(values: Mapping[str, Any], name: str, directory: str) -> str:
    """Return the absolute path of a network's weights; "" if there are none.

    Raises InvalidInputs for a network of a file that is no Python, and options without a network.
    """
    if values["network"]:
        if parse_reference(directory, _base()):
            raise InvalidInputs(
                f"Parameter 'network' is for code of this machine, but the servable is of a model "
                f"hub, '{directory}': code in repositories is never run"
            )
        if not name.endswith(".py") or not values["network"].isidentifier():
            raise InvalidInputs(
                f"Parameter 'network' is {values['network']!r} of '{name}', expected a class or "
                "function of a Python file"
            )
        for input_name, text in values["inputs"].items():
            parse_spec(input_name, text)
        return get_abs_path(values["weights"]) if values["weights"] else ""
    for option in ("weights", "arguments", "inputs", "mode"):
        if values[option]:
            raise InvalidInputs(
                f"Parameter '{option}' is for a network in code, but '{name}' is none: serve "
                "net.py:Net, or set 'network' to the class of a Python file"
            )
    return ""


def _checked_store_key(values: Mapping[str, Any]) -> str:
    """Return the absolute path of the secret of the store of answers; "" if there is none.

    Raises InvalidInputs for a store without a cache, or that is no URL.
    """
    store = values["cache_store"]
    if store and not store.partition("://")[2]:
        raise InvalidInputs(
            "Parameter 'cache_store' is no URL, expected one as rediss://HOST:6379/0, "
            "file:///DIRECTORY or s3://BUCKET/PREFIX"
        )
    if store and not values["cache_mb"]:
        raise InvalidInputs("Parameter 'cache_store' is set, which needs 'cache_mb'")
    return _absolute(values["cache_store_key"]) if values["cache_store_key"] else ""


def _check_levels(values: Mapping[str, Any]) -> None:
    """Raise InvalidInputs for limits of levels that do not exist, and numbers of resources."""
    for option in ("resources", "resource_counts"):
        if wrong := {name: count for name, count in values[option].items() if count < 1}:
            raise InvalidInputs(f"Parameter '{option}' has {wrong}, expected numbers from 1")
    count = values["priority_levels"]
    if values["default_priority"] > count:
        raise InvalidInputs(
            f"Parameter 'default_priority' is {values['default_priority']}, expected at most "
            f"'priority_levels', {count}"
        )
    for option in ("level_queue_ms", "level_queue_sizes"):
        for level, value in values[option].items():
            if not (level.isdecimal() and 1 <= int(level[:9]) <= count and value >= 1):
                raise InvalidInputs(
                    f"Parameter '{option}' has {level!r:.100}: {value}, expected levels from 1 to "
                    f"'priority_levels', {count}, and numbers from 1"
                )


def _check_device_type(device_type: str | None) -> str:
    if device_type is None:
        return "none"
    name = check_str("device_type", device_type).lower()
    if name not in _DEVICE_TYPES:
        shown = _OTHER_NAMES.get(name)
        raise InvalidInputs(
            f"Unsupported device type '{device_type}', only support 'Ascend', 'GPU', 'CPU' and "
            f"None, case ignored{f'; {device_type!r} is {shown!r} here' if shown else ''}"
        )
    return name


def get_abs_path(path: str) -> str:
    """Return `path` as an absolute path with links resolved.

    A relative path is relative to the directory of the start-up script, or to the working directory
    if there is no script (a notebook, `python -c`).
    """
    return os.path.realpath(_absolute(path))


def _absolute(path: str) -> str:
    """Return a path as `get_abs_path`, but keep links: those of an environment lead out of it."""
    return os.path.abspath(os.path.join(_base(), os.path.expanduser(path)))


def _base() -> str:
    """Return the directory that paths are relative to."""
    script = sys.argv[0] if sys.argv else ""
    has_script = hasattr(sys.modules["__main__"], "__file__") and os.path.isfile(script)
    return os.path.dirname(os.path.realpath(script)) if has_script else os.getcwd()


def merge_config(configs: Iterable[ServableStartConfig]) -> list[ServableStartConfig]:
    """Merge configs to one for each version of each servable, see `servable.merging.merge`.

    Raises InvalidInputs if configs contradict each other, StartError if a servable does not exist
    or declares a language model with an unknown option.
    """
    merged = merge(configs)
    for config in merged:
        check_servable(
            config.servable_directory,
            config.servable_name,
            config.llm_options or {},
            allow_pickle=config.allow_pickle,
            network=config.network,
        )
        path = os.path.join(config.servable_directory, config.servable_name)
        check_task_options(path, config.llm_options or {})
        check_declared_options(os.path.join(path, CONFIG_FILE))
    return merged


def to_deployments(
    configs: Iterable[ServableStartConfig], *, enable_lite: bool = False
) -> list[Deployment]:
    """Merge `configs` and convert them to deployments."""
    return [
        Deployment(**{name: getattr(config, name) for name in SERVABLE}, enable_lite=enable_lite)
        for config in merge_config(configs)
    ]
