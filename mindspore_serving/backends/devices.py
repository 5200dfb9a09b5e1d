"""Which devices this machine has, and which of them a servable's models can use.

Looks at device files and at installed libraries; imports none of them unless asked to probe.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mindspore_serving.backends import formats
from mindspore_serving.errors import ServingError, StartError

SHOWN = {"ascend": "Ascend", "gpu": "GPU", "cpu": "CPU"}
_FILES = {"ascend": "davinci[0-9]*", "gpu": "nvidia[0-9]*"}


@dataclass(frozen=True, slots=True)
class Availability:
    """One row of the doctor's table.

    `library` is "" if the format needs none.  `problem` is None if models of this format can be
    loaded, else the reason.  `devices` are the usable device types, best first.
    """

    format: str
    library: str
    version: str
    problem: str | None
    devices: tuple[str, ...]


def present(directory: str = "/dev") -> tuple[str, ...]:
    """Device types of this machine, by their device files; "cpu" is always one."""
    found = [device for device, pattern in _FILES.items() if any(Path(directory).glob(pattern))]
    return (*found, "cpu")


def usable(format: str, directory: str = "/dev") -> tuple[str, ...]:  # noqa: A002
    """Device types that are present and that the installed library of `format` was built for."""
    built = formats.builds(format)
    return tuple(device for device in present(directory) if device in built)


def choose_device(
    requested: str | None,
    model_formats: Iterable[str],
    servable_name: str,
    *,
    directory: str = "/dev",
) -> str:
    """The device type, "ascend", "gpu" or "cpu", that the servable's models run on.

    None or "none" takes the best that all formats support.  Raises StartError.
    """
    needed = sorted(set(model_formats))
    for name in needed:
        formats.require(name)
    supported = [
        device
        for device in present(directory)
        if all(device in formats.builds(name) for name in needed)
    ]
    if not supported:
        raise StartError(
            f"No device of this machine can run the models of servable name {servable_name}, "
            f"model formats: {', '.join(needed)}, devices: {_shown(present(directory))}"
        )
    wanted = (requested or "none").lower()
    if wanted == "none":
        return supported[0]
    if wanted not in supported:
        raise StartError(
            f"The device type '{wanted}' of servable name {servable_name} is inconsistent with "
            f"current running environment, supported device type: None or {_shown(supported)}"
        )
    return wanted


def available(probe: bool = False) -> list[Availability]:
    """What can be loaded here, one row per known format, sorted by name.

    Without `probe` no library is imported and devices are what the files tell.  With it each
    library is imported and asked, which takes seconds and gigabytes of address space.
    """
    return [_row(name, probe) for name in formats.names()]


def _row(name: str, probe: bool) -> Availability:
    library, version = formats.installed(name)
    try:
        formats.require(name)
        devices = _probe(name) if probe else usable(name)
    except (ServingError, ImportError) as error:
        return Availability(name, library, version, str(error), ())
    problem = None if devices else f"runs on none of: {_shown(present())}"
    return Availability(name, library, version, problem, devices)


def _probe(name: str) -> tuple[str, ...]:
    ask = getattr(formats.backend_class(name), "device_types", None)
    return usable(name) if ask is None else tuple(ask())


def _shown(devices: Iterable[str]) -> str:
    return ", ".join(f"'{SHOWN[device]}'" for device in devices)
