"""Devices of this machine, and which of them the models of a servable can use.

Looks at device files and installed libraries; imports a library only to probe it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters

from mindspore_serving.backends import formats
from mindspore_serving.errors import ServingError, StartError

SHOWN = {"ascend": "Ascend", "gpu": "GPU", "cpu": "CPU"}
_FILES = {"ascend": "davinci[0-9]*", "gpu": "nvidia[0-9]*"}


@dataclass(frozen=True, slots=True)
class Availability:
    """A row of the doctor's table.

    `library` is "" if the format needs none.  `problem` is None if models of this format can be
    loaded, else the reason.  `devices` are the usable device types, best first.
    """

    format: str
    library: str
    version: str
    problem: str | None
    devices: tuple[str, ...]


def present(directory: str = "/dev") -> tuple[str, ...]:
    """Return the device types of this machine, by their device files; "cpu" is always included."""
    devices = [device for device, pattern in _FILES.items() if any(Path(directory).glob(pattern))]
    return (*devices, "cpu")


def usable(format: str, directory: str = "/dev") -> tuple[str, ...]:  # noqa: A002
    """Return the device types that are present and that the library of `format` was built for."""
    built = formats.builds(format)
    return tuple(device for device in present(directory) if device in built)


def choose_device(
    requested: str | None,
    model_formats: Iterable[str],
    servable_name: str,
    *,
    directory: str = "/dev",
) -> str:
    """Return the device type, "ascend", "gpu" or "cpu", on which the servable's models run.

    `requested` None or "none" means the best device that all formats support.

    Raises StartError.
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
    chosen = (requested or "none").lower()
    if chosen == "none":
        return supported[0]
    if chosen not in supported:
        raise StartError(
            f"The device type '{chosen}' of servable name {servable_name} is inconsistent with "
            f"current running environment, supported device type: None or {_shown(supported)}; "
            f"{_why_not(chosen, needed, directory)}"
        )
    return chosen


def check_device_id(
    device_type: str, device_id: int | None, servable_name: str, *, directory: str = "/dev"
) -> None:
    """Raise StartError if this machine has no device `device_id` of `device_type`.

    On CPUs the numbers only distinguish workers, as in MindSpore Serving 1 and 2.
    """
    pattern = _FILES.get(device_type)
    if pattern is None or device_id is None:
        return
    names = [path.name for path in Path(directory).glob(pattern)]
    numbers = sorted(
        int(digits) for name in names if (digits := name.lstrip(ascii_letters)).isdigit()
    )
    if device_id >= len(numbers) and device_id not in numbers:
        devices = f"{len(numbers)} {SHOWN[device_type]} device{'s' * (len(numbers) != 1)}"
        raise StartError(
            f"device_ids of servable name {servable_name} has {device_id}, but this machine has "
            f"{devices} (files {directory}/{pattern}): expected numbers below {len(numbers)}"
        )


def _why_not(device: str, needed: Iterable[str], directory: str) -> str:
    """Return why models of the `needed` formats cannot run on `device`, and what to do."""
    shown = SHOWN.get(device, device)
    if device not in present(directory):
        return (
            f"this machine has no {shown} device (no file {directory}/{_FILES[device]}): leave the "
            "device type out to run on another, and see `mindspore-serving doctor`"
        )
    texts = []
    for name in needed:
        built = formats.builds(name)
        if device not in built:
            library, version = formats.installed(name)
            texts.append(
                f"{library or 'the backend'} {version}".strip()
                + f", which runs models of format {name}, is installed for {_shown(built)}"
            )
    return f"{', '.join(texts)}: install its build for {shown}"


def available(probe: bool = False) -> list[Availability]:
    """Return which formats can be loaded here, one row per known format, sorted by name.

    Without `probe` no library is imported, and devices are found by files.  With `probe` each
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
