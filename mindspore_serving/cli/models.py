"""`mindspore-serving models`, `load`, `unload` by protocol v2; `load-lora`, `unload-lora`."""

import json
from typing import Any
from urllib.parse import quote

from mindspore_serving.cli.calls import call
from mindspore_serving.cli.doctor import table
from mindspore_serving.cli.node_settings import (
    LoadLoraSettings,
    LoadSettings,
    ModelsSettings,
    UnloadLoraSettings,
    UnloadSettings,
)

_HEADER = ("model", "version", "state", "reason")


def load(settings: LoadSettings) -> int:
    """Load a servable; return 0 when it answers requests.  Raises ServingError."""
    parameters: dict[str, Any] = {"reload": True} if settings.reload else {}
    options = {"traffic": settings.traffic, "shadow": settings.shadow}
    if changed := {name: {"string_value": text} for name, text in options.items() if text}:
        parameters["config"] = json.dumps({"parameters": changed})
    _change(settings, "load", {"parameters": parameters} if parameters else {})
    print(f"{settings.name} is loaded")
    return 0


def unload(settings: UnloadSettings) -> int:
    """Unload a servable; return 0 when its workers have ended.  Raises ServingError."""
    _change(settings, "unload", {})
    print(f"{settings.name} is unloaded")
    return 0


def load_lora(settings: LoadLoraSettings) -> int:
    """Load an adapter; return 0 when requests can name it.  Raises ServingError."""
    body = {
        "lora_name": settings.name,
        "lora_path": settings.path,
        "load_inplace": settings.replace,
        "model": settings.model or None,
    }
    call(settings, settings.server, "/v1/load_lora_adapter", body, settings.timeout)
    print(f"{settings.name} is loaded")
    return 0


def unload_lora(settings: UnloadLoraSettings) -> int:
    """Unload an adapter; return 0 when new requests cannot name it.  Raises ServingError."""
    body = {"lora_name": settings.name}
    call(settings, settings.server, "/v1/unload_lora_adapter", body, settings.timeout)
    print(f"{settings.name} is unloaded")
    return 0


def models(settings: ModelsSettings) -> int:
    """Print a line for each model that is served or can be loaded.  Raises ServingError."""
    rows = call(settings, settings.server, "/v2/repository/index", {})
    if settings.json:
        print(json.dumps(rows, indent=2))
        return 0
    names = ("name", "version", "state", "reason")
    for line in table([_HEADER, *([row[name] or "-" for name in names] for row in rows)]):
        print(line)
    return 0


def _change(settings: LoadSettings | UnloadSettings, verb: str, body: dict[str, Any]) -> None:
    path = f"/v2/repository/models/{quote(settings.name, safe='')}/{verb}"
    call(settings, settings.server, path, body, settings.timeout)
