"""LoRA adapters of an engine: by name for requests, by number for steps.

A number is never used again, so that blocks cached for one adapter never serve another.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import cast

from mindspore_serving.errors import InvalidField, InvalidInputs, NotFound, Overloaded, StartError
from mindspore_serving.llm.checkpoint.lora import read_adapter
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.adapters import Changes, match_adapter
from mindspore_serving.llm.step import AdaptedRunner, Runner


class AdapterNames:
    """Numbers of the adapters that are loaded at the start, by name, counted from 1."""

    def __init__(self, names: Iterable[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}

    def find(self, name: str) -> int:
        """Return the number of the adapter `name`, 0 for "" (no adapter).  Raises InvalidField."""
        if not name:
            return 0
        number = self._numbers.get(name)
        if number is None:
            names = ", ".join(self._numbers)
            accepted = f"None or one of {names}" if names else "none: no adapter is loaded"
            raise InvalidField("adapter", f"is {name!r}, expected {accepted}")
        return number

    def read(self, name: str, path: str | Path) -> Changes:
        """Return the changes to weights in the files below `path`.  Raises InvalidInputs."""
        raise InvalidInputs("this model cannot load adapters while it runs")

    def remove(self, name: str) -> None:
        """Refuse new requests for the adapter `name`.  Raises NotFound."""
        if self._numbers.pop(name, None) is None:
            raise NotFound(f"There is no adapter '{name}'")


class EngineAdapters(AdapterNames, Collection[int]):
    """Adapters of an engine, as a collection of the numbers that new requests may have.

    An adapter that was removed keeps its memory as long as a sequence uses it, which `in_use` tells
    by its number.  `find` and `read` may be called by any thread, the other methods by the
    engine's.
    """

    def __init__(
        self, runner: Runner, config: EngineConfig, in_use: Callable[[int], bool]
    ) -> None:  # fmt: skip
        self._runner = runner
        self._config = config
        self._in_use = in_use
        super().__init__(config.adapters)
        self._unused = count(1 + len(self._numbers))
        self.leaving: set[int] = set()  # numbers of adapters removed but still in use
        self.keys: dict[str, str] = {}  # of contents, by name, if workers have roles

    def __contains__(self, number: object) -> bool:
        return number in self._runner.adapters and number not in self.leaving

    def __iter__(self) -> Iterator[int]:
        return iter([number for number in self._runner.adapters if number not in self.leaving])

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def limit(self) -> int:
        """Number of adapters that may be loaded at once."""
        return self._config.max_loras or len(self._config.adapters)

    def read(self, name: str, path: str | Path) -> Changes:
        """Return the changes to weights in the files below `path`.  Raises InvalidInputs."""
        base = getattr(self._runner, "base", None)
        if base is None:
            raise InvalidInputs(
                "the model was opened without room for adapters; set max_loras, on the runtimes "
                "openvino, torch, mindspore and native"
            )
        try:
            adapter = read_adapter(path, self._config.max_lora_rank)
            return match_adapter(adapter, base, f"adapter {name!r}")
        except StartError as error:
            raise InvalidInputs(str(error)) from None

    def add(self, name: str, changes: Changes, key: str = "") -> None:
        """Let requests name the adapter `name`, in place of an adapter that had this name before.

        `key` is that of its contents; "" if other workers need not know it.
        Raises Overloaded if too many are loaded.
        """
        before = self._numbers.get(name)
        num_loaded = len(self._runner.adapters) - (before is not None)
        if num_loaded >= self.limit:
            raise Overloaded(
                f"{num_loaded} adapters are loaded, expected at most {self.limit} (max_loras); "
                + (
                    "some were unloaded, but requests still use them; try again"
                    if self.leaving
                    else "unload one"
                )
            )
        number = next(self._unused)
        cast(AdaptedRunner, self._runner).load_adapter(number, changes)
        self._numbers[name] = number
        self.keys[name] = key
        if before is not None:
            self._leave(before)

    def remove(self, name: str) -> None:
        if not hasattr(self._runner, "unload_adapter"):
            raise InvalidInputs("adapters of a model over ranks stay loaded until it ends")
        number = self._numbers.get(name, 0)
        super().remove(name)
        self.keys.pop(name, None)
        self._leave(number)

    def free(self) -> None:
        """Free the memory of removed adapters that no sequence uses any more."""
        for number in [number for number in self.leaving if not self._in_use(number)]:
            cast(AdaptedRunner, self._runner).unload_adapter(number)
            self.leaving.discard(number)

    def _leave(self, number: int) -> None:
        self.leaving.add(number)
        self.free()
