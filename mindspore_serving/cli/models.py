"""`mindspore-serving load`, `unload`, `models`, by protocol v2; `load-lora` and `unload-lora`."""

import json
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from mindspore_serving.cli.doctor import table
from mindspore_serving.cli.endpoint import to_endpoint
from mindspore_serving.cli.node_settings import (
    LoadLoraSettings,
    LoadSettings,
    ModelsSettings,
    UnloadLoraSettings,
    UnloadSettings,
)
from mindspore_serving.errors import ServableUnavailable, ServingError

_HEADER = ("model", "version", "state", "reason")
_TIMEOUT = 10.0
_V2 = "/v2/repository"


def load(settings: LoadSettings) -> int:
    """Returns 0 when requests are answered by what was loaded.  Raises ServingError."""
    body = {"parameters": {"reload": True}} if settings.reload else {}
    _post(settings, f"{_V2}/models/{_path(settings.name)}/load", body)
    print(f"{settings.name} is loaded")
    return 0


def unload(settings: UnloadSettings) -> int:
    """Returns 0 when its workers have ended.  Raises ServingError."""
    _post(settings, f"{_V2}/models/{_path(settings.name)}/unload", {})
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
    _post(settings, "/v1/load_lora_adapter", body)
    print(f"{settings.name} is loaded")
    return 0


def unload_lora(settings: UnloadLoraSettings) -> int:
    """Returns 0 when new requests cannot name the adapter.  Raises ServingError."""
    _post(settings, "/v1/unload_lora_adapter", {"lora_name": settings.name})
    print(f"{settings.name} is unloaded")
    return 0


def models(settings: ModelsSettings) -> int:
    """Print a line for each model that is served or can be loaded.  Raises ServingError."""
    rows = _post(settings, f"{_V2}/index", {}, _TIMEOUT)
    if settings.json:
        print(json.dumps(rows, indent=2))
        return 0
    names = ("name", "version", "state", "reason")
    for line in table([_HEADER, *([row[name] or "-" for name in names] for row in rows)]):
        print(line)
    return 0


def _path(name: str) -> str:
    return quote(name, safe="")


def _post(settings: Any, path: str, body: Any, timeout: float | None = None) -> Any:
    """The answer to a POST, None if it is no JSON.  Raises ServingError."""
    endpoint = to_endpoint(settings.http, settings)
    connection = endpoint.connect(timeout or settings.timeout)
    try:
        headers = {**endpoint.headers, "content-type": "application/json"}
        connection.request("POST", endpoint.base + path, json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        found = json.loads(data) if data and is_json else None
    except (OSError, HTTPException, ValueError) as error:
        raise ServableUnavailable(f"{endpoint.url} does not answer: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        text = found.get("error") if isinstance(found, dict) else None
        text = text.get("message") if isinstance(text, dict) else text
        raise ServingError(text or f"{endpoint.url} answers {answer.status}: {data[:200]!r}")
    return found
