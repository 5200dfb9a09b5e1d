"""Adapters of models that have none.  Imports nothing heavy."""

from collections.abc import Callable, Mapping
from typing import Any

from mindspore_serving.errors import InvalidInputs


class NoAdapters:
    """Stand-in for `AdapterLoading` of models without adapters, for a `reason`."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def set(self, adapters: Mapping[str, Any], done: Callable[[Mapping[str, Any]], None]) -> None:
        """Report each of `adapters` as refused."""
        done(dict.fromkeys(adapters, InvalidInputs(self._reason)))
