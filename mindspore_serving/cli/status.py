"""`mindspore-serving status`: which workers run, and where."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from mindspore_serving.cli.calls import call
from mindspore_serving.cli.doctor import table
from mindspore_serving.cli.node_settings import StatusSettings
from mindspore_serving.cli.settings import Access
from mindspore_serving.errors import ServableUnavailable

_HEADER = ("servable", "version", "node", "pid", "device", "state", "python")


def run(settings: StatusSettings) -> int:
    """Print a line for each worker; 1 if a servable has none that is ready.

    Raises ServingError if the server does not answer.
    """
    servables = ask(settings.http, settings)
    if settings.json:
        print(json.dumps(servables, indent=2))
    else:
        for line in lines(servables):
            print(line)
    return int(not all(one["num_workers"] for one in servables))


def lines(servables: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The table, agents below their worker; `servables` as GET /servables gives them."""
    rows = [
        _cells(one, row)
        for one in servables
        for worker in one["workers"]
        for row in (worker, *(_as_worker(agent) for agent in worker.get("agents", ())))
    ]
    yield from table([_HEADER, *rows])


def _as_worker(agent: dict[str, Any]) -> dict[str, Any]:
    """The agent of a distributed servable, whose worker is ready only with all of them."""
    return {**agent, "state": f"rank {agent['rank']}"}


def _cells(servable: dict[str, Any], row: dict[str, Any]) -> list[str]:
    node = "(here)" if row["node"] == "" else row["node"]
    where = (node, row["pid"], row["device"], row["state"], row.get("python") or None)
    cells = (servable["name"], servable["version"], *where)
    return ["-" if cell is None else str(cell) for cell in cells]


def ask(url: str, access: Access) -> list[dict[str, Any]]:
    """The servables of the server at `url`, as GET /servables gives them.

    Raises ServingError if it does not answer.
    """
    try:
        found: list[dict[str, Any]] = call(access, url, "/servables")["servables"]
    except (KeyError, TypeError):
        raise ServableUnavailable(f"{url} is no server of servables") from None
    return found
