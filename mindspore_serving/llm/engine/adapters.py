"""LoRA adapters of an engine: by name for requests, by number for steps.

A number is never used again, so that blocks cached for one adapter never serve another.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import cast

from mindspore_serving.errors import InvalidField, InvalidInputs, NotFound, Overloaded, StartError
from mindspore_serving.llm.checkpoint.lora import read_adapter
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.adapters import Changes, match_adapter
from mindspore_serving.llm.step import AdaptedRunner, Runner


@dataclass(frozen=True, slots=True)
class ReadAdapter:
    """Changes of an adapter to weights, and a hash of its contents; b"" if that is not needed."""

    changes: Changes
    digest: bytes


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

    def read(self, name: str, path: str | Path) -> ReadAdapter:
        """Read the files below `path`.  Raises InvalidInputs."""
        raise InvalidInputs("this model cannot load adapters while it runs")

    def remove(self, name: str) -> None:
        """Refuse new requests for the adapter `name`.  Raises NotFound."""
        if self._numbers.pop(name, None) is None:
            raise NotFound(f"There is no adapter '{name}'")


class EngineAdapters(AdapterNames, Collection[int]):
    """Adapters of an engine, as a collection of the numbers that new requests may have.

    An adapter that was removed keeps its memory as long as a sequence uses it, which `in_use` tells
    by its number.  `digests` are hashes of the contents by numbers, if blocks go to other
    processes, which may number adapters otherwise.  `find` and `read` may be called by any thread,
    the other methods by the engine's.
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
        self._is_hashed, self.digests = False, dict[int, bytes]()
        if config.prefix_cache_dir or config.prefix_cache_store:
            self.hash_contents()

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

    def hash_contents(self) -> None:
        """Keep `digests` from now on, before adapters are added."""
        self._is_hashed = True
        for number, path in enumerate(self._config.adapters.values(), 1):
            self.digests[number] = read_adapter(path, self._config.max_lora_rank).digest()

    def key_of(self, name: str) -> str:
        """Return the hash of the contents of the adapter `name`; "" if it is not loaded."""
        return self.digests.get(self._numbers.get(name, 0), b"").hex()

    def read(self, name: str, path: str | Path) -> ReadAdapter:
        base = getattr(self._runner, "base", None)
        if base is None:
            raise InvalidInputs(
                "the model was opened without room for adapters; set max_loras, on the runtimes "
                "openvino, torch, mindspore and native"
            )
        try:
            adapter = read_adapter(path, self._config.max_lora_rank)
            changes = match_adapter(adapter, base, f"adapter {name!r}")
            return ReadAdapter(changes, adapter.digest() if self._is_hashed else b"")
        except StartError as error:
            raise InvalidInputs(str(error)) from None

    def add(self, name: str, adapter: ReadAdapter) -> None:
        """Let requests name the adapter `name`, in place of an adapter that had this name before.

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
        cast(AdaptedRunner, self._runner).load_adapter(number, adapter.changes)
        self._numbers[name] = number
        self.digests[number] = adapter.digest
        if before is not None:
            self._leave(before)

    def remove(self, name: str) -> None:
        if not hasattr(self._runner, "unload_adapter"):
            raise InvalidInputs("adapters of a model over ranks stay loaded until it ends")
        number = self._numbers.get(name, 0)
        super().remove(name)
        self._leave(number)

    def free(self) -> None:
        """Free the memory of removed adapters that no sequence uses any more."""
        for number in [number for number in self.leaving if not self._in_use(number)]:
            cast(AdaptedRunner, self._runner).unload_adapter(number)
            self.leaving.discard(number)
            self.digests.pop(number, None)

    def _leave(self, number: int) -> None:
        self.leaving.add(number)
        self.free()
