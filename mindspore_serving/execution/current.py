"""Which requests this thread runs: their ids stand in front of what it logs."""

from collections.abc import Iterable

from mindspore_serving import log
from mindspore_serving.execution.job import Item


def enter(item: Item) -> None:
    """The thread runs instances of `item` alone, until `leave`."""
    log.request_id.set(item.request_id)


def enter_all(items: Iterable[Item]) -> None:
    """The thread runs instances of all of `items`."""
    log.request_id.set(",".join(dict.fromkeys([item.request_id for item in items])))


def leave() -> None:
    """It runs none."""
    log.request_id.set("")
