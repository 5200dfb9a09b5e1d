"""`mindspore-serving load`, `unload`, `models`, by protocol v2; `load-lora` and `unload-lora`."""

import json
from urllib.parse import quote

from mindspore_serving.cli.doctor import table
from mindspore_serving.cli.node_settings import (
    LoadLoraSettings,
    LoadSettings,
    ModelsSettings,
    UnloadLoraSettings,
    UnloadSettings,
)
from mindspore_serving.cli.v2_calls import call, call_path

_HEADER = ("model", "version", "state", "reason")


def load(settings: LoadSettings) -> int:
    """Returns 0 when requests are answered by what was loaded.  Raises ServingError."""
    body = {"parameters": {"reload": True}} if settings.reload else {}
    call(
        settings,
        settings.http,
        f"/repository/models/{_path(settings.name)}/load",
        body,
        settings.timeout,
    )
    print(f"{settings.name} is loaded")
    return 0


def unload(settings: UnloadSettings) -> int:
    """Returns 0 when its workers have ended.  Raises ServingError."""
    call(
        settings,
        settings.http,
        f"/repository/models/{_path(settings.name)}/unload",
        {},
        settings.timeout,
    )
    print(f"{settings.name} is unloaded")
    return 0


def load_lora(settings: LoadLoraSettings) -> int:
    """Returns 0 when requests can name the adapter.  Raises ServingError."""
    body = {
        "lora_name": settings.name,
        "lora_path": settings.path,
        "load_inplace": settings.replace,
        "model": settings.model or None,
    }
    call_path(settings, settings.http, "/v1/load_lora_adapter", body, settings.timeout)
    print(f"{settings.name} is loaded")
    return 0


def unload_lora(settings: UnloadLoraSettings) -> int:
    """Returns 0 when new requests cannot name the adapter.  Raises ServingError."""
    body = {"lora_name": settings.name}
    call_path(settings, settings.http, "/v1/unload_lora_adapter", body, settings.timeout)
    print(f"{settings.name} is unloaded")
    return 0


def models(settings: ModelsSettings) -> int:
    """Print a line for each model that is served or can be loaded.  Raises ServingError."""
    rows = call(settings, settings.http, "/repository/index", {})
    if settings.json:
        print(json.dumps(rows, indent=2))
        return 0
    names = ("name", "version", "state", "reason")
    for line in table([_HEADER, *([row[name] or "-" for name in names] for row in rows)]):
        print(line)
    return 0


def _path(name: str) -> str:
    return quote(name, safe="")
