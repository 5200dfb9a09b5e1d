"""Loading of LoRA adapters while an engine runs.

A thread reads their files, and the engine takes them between two steps.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

from mindspore_serving import log
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.loader import OpenedModel
from mindspore_serving.llm.serving.engine_loop import Loop

Source: TypeAlias = tuple[str, int]  # a directory, and a count that requests it to be reloaded
Done: TypeAlias = Callable[[Mapping[str, ServingError]], None]


class AdapterLoading:
    """Loads and unloads adapters of the engine of `loop` to match what is requested."""

    def __init__(self, opened: OpenedModel, loop: Loop[Any]) -> None:
        self._engine = opened.engine
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._command: Future[None] = Future()  # the last one
        adapters = opened.config.adapters.items()
        self._loaded: dict[str, Source] = {name: (str(path), 0) for name, path in adapters}

    def set(self, requested: Mapping[str, Source], done: Done) -> None:
        """Load the adapters in `requested` and unload all other ones; may be called by any thread.

        `done` is called on another thread with the errors of adapters that could not be loaded; an
        adapter that had such a name before stays loaded.
        """
        self._thread.submit(self._set, requested, done)

    def share_keys(self) -> None:
        """Let the engine know the contents of its adapters, which other workers may have as well.

        Called before anything is loaded.
        """
        self._loop.submit(lambda engine: engine.adapters.hash_contents()).result()

    def close(self) -> None:
        """Stop loading, after the loop has ended."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._command.cancel()

    def _set(self, requested: Mapping[str, Source], done: Done) -> None:
        problems: dict[str, ServingError] = {}
        try:
            for name in self._loaded.keys() - requested.keys():
                self._run(partial(_remove, name))
                del self._loaded[name]
            for name, source in requested.items():
                if self._loaded.get(name) != source:
                    self._load(name, source, problems)
        except CancelledError:
            return  # the worker ends
        except Exception as error:
            log.error("changing adapters", exc_info=True)
            failure = ServingError(f"adapters could not be changed: {error}")
            problems = dict.fromkeys(requested, failure)
        done(problems)

    def _load(self, name: str, source: Source, problems: dict[str, ServingError]) -> None:
        engine = self._engine
        try:
            adapter = engine.adapters.read(name, source[0])
            self._run(lambda engine: engine.adapters.add(name, adapter))
            self._loaded[name] = source
        except ServingError as error:
            problems[name] = error
        except Exception:
            log.error("loading adapter %s", name, exc_info=True)
            problems[name] = ServingError(
                f"adapter {name!r} could not be loaded; see the worker's log"
            )

    def _run(self, command: Callable[[Any], None]) -> None:
        """Run `command` on the engine's thread and wait for it."""
        self._command = self._loop.submit(command)
        self._command.result()


def _remove(name: str, engine: Any) -> None:
    engine.adapters.remove(name)
