"""config.json with its architecture's description: defaults below, its own words translated.

Knows no size.
"""

from typing import Any

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.architecture import Architecture, Config
from mindspore_serving.llm.descriptions.config_types import check_types
from mindspore_serving.llm.descriptions.families import FAMILIES
from mindspore_serving.llm.descriptions.settings import OPTIONAL, TrackedSettings, flattened


def described(
    config: Config, form: Architecture | None = None
) -> tuple[TrackedSettings, Architecture]:
    """Return the settings of `config` under the keys that `spec` reads, and its description.

    `form` is its row of FAMILIES.  A `config` of `TrackedSettings` records which of them are read.

    Raises StartError: a value of the wrong kind, or of a kind that is not computed.
    """
    note = config.read if isinstance(config, TrackedSettings) else None
    given = flattened(dict(config))
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise StartError("config.json has no architectures")
    check_types(dict(config))
    check_types(given)
    form = form or FAMILIES[str(names[0])]
    if form.variant is not None:
        whole = TrackedSettings({**form.defaults, **given, "architectures": names}, note)
        form = form.variant(form, whole)
    known = {*form.follows, *form.fixed}
    own = {key: one for key, one in given.items() if key not in OPTIONAL or key in known}
    defaults = {key: one for key, one in form.defaults.items() if not _is_told(key, given)}
    settings = TrackedSettings({**defaults, **own, "architectures": names}, note)
    _refuse(form, settings)
    translated: dict[str, Any] = {**settings, **(form.read(settings) if form.read else {})}
    return TrackedSettings(translated, note), form


def _is_told(key: str, given: Config) -> bool:
    """Whether config.json has the same by an older name."""
    return key == "rope_parameters" and bool(given.get("rope_scaling"))


def _refuse(form: Architecture, settings: TrackedSettings) -> None:
    """Raises StartError naming a setting that the architecture is not computed with."""
    for key, accepted in form.fixed.items():
        value = settings.get(key)
        if value is not None and value not in accepted:
            words = " or ".join(map(repr, accepted)) or "none"
            raise StartError(
                f"config.json has {key} {value!r}, of which {settings['architectures'][0]} is not "
                f"computed; expected {words}"
            )
