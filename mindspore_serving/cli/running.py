"""What the server of this process serves right now."""

from dataclasses import dataclass
from typing import Any

from mindspore_serving.server import startup


@dataclass(frozen=True, slots=True)
class Method:
    """A method that clients can call."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Servable:
    """A version of a servable that runs in `num_workers` processes."""

    name: str
    version: int
    num_workers: int
    methods: tuple[Method, ...]
    summary: str = ""  # of a language model


def servables() -> list[Servable]:
    """Everything that can be called, by name and version."""
    rows = startup.describe()
    return sorted((_to_servable(row) for row in rows), key=lambda row: (row.name, row.version))


def _to_servable(row: dict[str, Any]) -> Servable:
    methods = tuple(
        Method(name, tuple(one["inputs"]), tuple(one["outputs"]))
        for name, one in row["methods"].items()
    )
    summary = row.get("summary", "")
    return Servable(row["name"], row["version"], row["num_workers"], methods, summary)
