"""LoRA adapters that come and go while an engine runs: a thread reads their files, and the engine
takes them between two steps.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.loader import Opened
from mindspore_serving.llm.serving.engine_loop import Loop

Source: TypeAlias = tuple[str, int]  # a directory, and how often it was to be loaded anew
Done: TypeAlias = Callable[[Mapping[str, ServingError]], None]


class AdapterLoading:
    """Has the engine of `loop` have the adapters that are wanted."""

    def __init__(self, opened: Opened, loop: Loop[Any]) -> None:
        self._engine = opened.engine
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._command: Future[None] = Future()  # the last one
        found = opened.config.adapters.items()
        self._loaded: dict[str, Source] = {name: (str(path), 0) for name, path in found}

    def set(self, wanted: Mapping[str, Source], done: Done) -> None:
        """From any thread: have those in `wanted` and no others.  `done` is called on another
        thread with what could not be loaded; of that name there is then what there was.
        """
        self._thread.submit(self._set, wanted, done)

    def close(self) -> None:
        """The loop has ended."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._command.cancel()

    def _set(self, wanted: Mapping[str, Source], done: Done) -> None:
        problems: dict[str, ServingError] = {}
        try:
            for name in self._loaded.keys() - wanted.keys():
                self._run(partial(_remove, name))
                del self._loaded[name]
            for name, source in wanted.items():
                if self._loaded.get(name) != source:
                    self._load(name, source, problems)
        except CancelledError:
            return  # the worker ends
        except Exception as error:
            log.error("changing adapters", exc_info=True)
            failure = ServingError(f"adapters could not be changed: {error}")
            problems = dict.fromkeys(wanted, failure)
        done(problems)

    def _load(self, name: str, source: Source, problems: dict[str, ServingError]) -> None:
        engine = self._engine
        try:
            changes = engine.adapters.read(name, source[0])
            self._run(lambda engine: engine.adapters.add(name, changes))
            self._loaded[name] = source
        except ServingError as error:
            problems[name] = error
        except Exception:
            log.error("loading adapter %s", name, exc_info=True)
            problems[name] = ServingError(
                f"adapter {name!r} could not be loaded; the worker's log says why"
            )

    def _run(self, command: Callable[[Any], None]) -> None:
        """Have the engine's thread do it, and wait."""
        self._command = self._loop.ask(command)
        self._command.result()


def _remove(name: str, engine: Any) -> None:
    engine.adapters.remove(name)
