"""config.json merged with its architecture's defaults and translated to the keys that `spec` reads.

Knows no size.
"""

from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import Architecture, Config
from mindspore_serving.llm.descriptions.config_types import check_types
from mindspore_serving.llm.descriptions.families import FAMILIES
from mindspore_serving.llm.descriptions.settings import OPTIONAL, TrackedSettings, flattened


def translate_config(
    config: Config, architecture: Architecture | None = None
) -> tuple[TrackedSettings, Architecture]:
    """Return the settings of `config` in the keys that `spec` reads, and the architecture.

    `architecture` is the row of FAMILIES, by default that of config.json's name.  A `config` that
    is `TrackedSettings` notes which keys are read.

    Raises StartError: a value of the wrong type, or a value that the architecture does not support.
    """
    note = config.read if isinstance(config, TrackedSettings) else None
    flat = flattened(dict(config))
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise StartError("config.json has no architectures")
    check_types(dict(config))
    check_types(flat)
    architecture = architecture or FAMILIES[str(names[0])]
    if architecture.variant is not None:
        merged = TrackedSettings({**architecture.defaults, **flat, "architectures": names}, note)
        architecture = architecture.variant(architecture, merged)
    known = {*architecture.follows, *architecture.fixed}
    accepted = {key: flat[key] for key in flat if key not in OPTIONAL or key in known}
    defaults = {
        key: value for key, value in architecture.defaults.items() if not _has_older_name(key, flat)
    }
    settings = TrackedSettings({**defaults, **accepted, "architectures": names}, note)
    _refuse(architecture, settings)
    translated: dict[str, Any] = {
        **settings,
        **(architecture.read(settings) if architecture.read else {}),
    }
    return TrackedSettings(translated, note), architecture


def _has_older_name(key: str, flat: Config) -> bool:
    """Return whether config.json has the same setting by an older name."""
    return key == "rope_parameters" and bool(flat.get("rope_scaling"))


def _refuse(architecture: Architecture, settings: TrackedSettings) -> None:
    """Raise StartError naming a setting whose value the architecture does not support."""
    for key, accepted in architecture.fixed.items():
        value = settings.get(key)
        if value is not None and value not in accepted:
            expected = " or ".join(map(repr, accepted)) or "none"
            raise StartError(
                f"config.json has {key} {value!r}, which is not supported for "
                f"{settings['architectures'][0]}; expected {expected}"
            )
