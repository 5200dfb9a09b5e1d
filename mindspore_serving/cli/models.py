"""`mindspore-serving load`, `unload`, `models`: the models of a server, by protocol v2."""

import json
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from mindspore_serving.cli.doctor import table
from mindspore_serving.cli.endpoint import to_endpoint
from mindspore_serving.cli.node_settings import LoadSettings, ModelsSettings, UnloadSettings
from mindspore_serving.cli.settings import Access
from mindspore_serving.errors import ServableUnavailable, ServingError

_HEADER = ("model", "version", "state", "reason")
_TIMEOUT = 10.0


def load(settings: LoadSettings) -> int:
    """Returns 0 when requests are answered by what was loaded.  Raises ServingError."""
    body = {"parameters": {"reload": True}} if settings.reload else {}
    _post(settings, settings.http, f"/models/{_path(settings.name)}/load", body, settings.timeout)
    print(f"{settings.name} is loaded")
    return 0


def unload(settings: UnloadSettings) -> int:
    """Returns 0 when its workers have ended.  Raises ServingError."""
    _post(settings, settings.http, f"/models/{_path(settings.name)}/unload", {}, settings.timeout)
    print(f"{settings.name} is unloaded")
    return 0


def models(settings: ModelsSettings) -> int:
    """Print a line for each model that is served or can be loaded.  Raises ServingError."""
    rows = _post(settings, settings.http, "/index", {}, _TIMEOUT)
    if settings.json:
        print(json.dumps(rows, indent=2))
        return 0
    names = ("name", "version", "state", "reason")
    for line in table([_HEADER, *([row[name] or "-" for name in names] for row in rows)]):
        print(line)
    return 0


def _path(name: str) -> str:
    return quote(name, safe="")


def _post(access: Access, http: str, path: str, body: Any, timeout: float) -> Any:
    """The answer to a POST below /v2/repository.  Raises ServingError."""
    endpoint = to_endpoint(http, access)
    connection = endpoint.connect(timeout)
    try:
        headers = {**endpoint.headers, "content-type": "application/json"}
        where = f"{endpoint.base}/v2/repository{path}"
        connection.request("POST", where, json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        found = json.loads(data) if data else None
    except (OSError, HTTPException, ValueError) as error:
        raise ServableUnavailable(f"{endpoint.url} does not answer: {error}") from None
    finally:
        connection.close()
    if answer.status != 200:
        text = found.get("error") if isinstance(found, dict) else None
        raise ServingError(text or f"{endpoint.url} answers {answer.status}: {data[:200]!r}")
    return found
