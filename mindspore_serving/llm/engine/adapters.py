"""The LoRA adapters of an engine: by name for requests, by number for steps.

A number is never used again, so that blocks that were cached for one adapter are not another's.
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
    """Adapters that were given at the start: by name, from number 1 on."""

    def __init__(self, names: Iterable[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}

    def find(self, name: str) -> int:
        """The number of the one called `name`; 0 for "", which is none.  Raises InvalidField."""
        if not name:
            return 0
        number = self._numbers.get(name)
        if number is None:
            names = ", ".join(self._numbers)
            accepted = f"None or one of {names}" if names else "none: no adapter is loaded"
            raise InvalidField("adapter", f"is {name!r}, expected {accepted}")
        return number

    def read(self, name: str, path: str | Path) -> Changes:
        """What the files below `path` change.  Raises InvalidInputs."""
        raise InvalidInputs("this model has no adapters that are loaded while it runs")

    def remove(self, name: str) -> None:
        """No new request may name it.  Raises NotFound."""
        if self._numbers.pop(name, None) is None:
            raise NotFound(f"There is no adapter '{name}'")


class EngineAdapters(AdapterNames, Collection[int]):
    """The numbers of those that new requests may have.

    One that was removed keeps its memory as long as a sequence has it, which `in_use` tells by the
    number.  `find` and `read` may be called by any thread, the others by the engine's.
    """

    def __init__(
        self, runner: Runner, config: EngineConfig, in_use: Callable[[int], bool]
    ) -> None:  # fmt: skip
        self._runner = runner
        self._config = config
        self._in_use = in_use
        super().__init__(config.adapters)
        self._unused = count(1 + len(self._numbers))
        self.leaving: set[int] = set()  # removed, and still in use

    def __contains__(self, number: object) -> bool:
        return number in self._runner.adapters and number not in self.leaving

    def __iter__(self) -> Iterator[int]:
        return iter([one for one in self._runner.adapters if one not in self.leaving])

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def most(self) -> int:
        """That there may be at once."""
        return self._config.max_loras or len(self._config.adapters)

    def read(self, name: str, path: str | Path) -> Changes:
        """What the files below `path` change.  Raises InvalidInputs."""
        base = getattr(self._runner, "base", None)
        if base is None:
            raise InvalidInputs(
                "the model was opened without room for adapters; give max_loras, on the runtimes "
                "openvino and torch"
            )
        try:
            adapter = read_adapter(path, self._config.max_lora_rank)
            return match_adapter(adapter, base, f"adapter {name!r}")
        except StartError as error:
            raise InvalidInputs(str(error)) from None

    def add(self, name: str, changes: Changes) -> None:
        """From now on requests may name it; one of that name before is removed.  Raises Overloaded
        if there are too many.
        """
        before = self._numbers.get(name)
        held = len(self._runner.adapters) - (before is not None)
        if held >= self.most:
            raise Overloaded(
                f"{held} adapters are loaded, at most {self.most} may be (max_loras); "
                + ("requests of some that were unloaded go on" if self.leaving else "unload one")
            )
        number = next(self._unused)
        cast(AdaptedRunner, self._runner).load_adapter(number, changes)
        self._numbers[name] = number
        if before is not None:
            self._leave(before)

    def remove(self, name: str) -> None:
        number = self._numbers.get(name, 0)
        super().remove(name)
        self._leave(number)

    def free(self) -> None:
        """Give back the memory of those that nothing uses any more."""
        for number in [one for one in self.leaving if not self._in_use(one)]:
            cast(AdaptedRunner, self._runner).unload_adapter(number)
            self.leaving.discard(number)

    def _leave(self, number: int) -> None:
        self.leaving.add(number)
        self.free()
