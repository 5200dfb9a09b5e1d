"""`mindspore-serving status`: show which workers run, and where."""

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
    """Print a line for each worker; return 1 if a servable has no worker that is ready.

    Raises ServingError if the server does not answer.
    """
    servables = ask(settings.server, settings)
    if settings.json:
        print(json.dumps(servables, indent=2))
    else:
        for line in lines(servables):
            print(line)
    return int(not all(servable["num_workers"] for servable in servables))


def lines(servables: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Iterate over the lines of the table, with agents and upstreams below their worker.

    `servables` are as GET /servables returns them.
    """
    rows = [
        _cells(servable, row)
        for servable in servables
        for worker in servable["workers"]
        for row in (
            worker,
            *(_as_worker(agent) for agent in worker.get("agents", ())),
            *(_upstream_row(row) for row in worker.get("upstreams", ())),
        )
    ]
    yield from table([_HEADER, *rows])


def _as_worker(agent: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an agent of a distributed servable; its worker needs all agents."""
    return {**agent, "state": f"rank {agent['rank']}"}


def _upstream_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an upstream of the worker above."""
    load = f"{row['open']} open, {row['outstanding']} tokens, {row['errors']} errors"
    state = f"{row['state']} ({load} of {row['requests']})"
    return {"node": row["name"], "pid": None, "device": None, "state": state}


def _cells(servable: dict[str, Any], row: dict[str, Any]) -> list[str]:
    node = "(here)" if row["node"] == "" else row["node"]
    state = ", ".join(filter(None, (row["state"], row.get("role"))))
    columns = (node, row["pid"], row["device"], state, row.get("python") or None)
    cells = (servable["name"], servable["version"], *columns)
    return ["-" if cell is None else str(cell) for cell in cells]


def ask(url: str, access: Access) -> list[dict[str, Any]]:
    """Return the servables of the server at `url`, as GET /servables returns them.

    Raises ServingError if it does not answer.
    """
    try:
        servables: list[dict[str, Any]] = call(access, url, "/servables")["servables"]
    except (KeyError, TypeError):
        raise ServableUnavailable(f"{url} is not a MindSpore Serving server") from None
    return servables
