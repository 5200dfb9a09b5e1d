"""An `UpstreamModel` in this process, and what it answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mindspore_serving.core.llm_messages import Chunk, Event, Generate, LLMRequest
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.upstream.engine import UpstreamModel
from mindspore_serving.llm.upstream.options import read_options
from tests.waiting import PATIENCE

QUICK = {"health_interval": 0.05, "retries": 0}


class Asking:
    """Collects on the thread of the test."""

    def __init__(self, config: EngineConfig, **options: Any) -> None:
        self._woken = threading.Event()
        self.model = UpstreamModel(read_options({**QUICK, **options}), config, self._woken.set)

    def until(self, condition: Any) -> None:
        """Collect until `condition` is true."""
        while not condition():
            assert self._woken.wait(PATIENCE), "nothing has come"
            self._woken.clear()
            self.model.collect()

    def ask(self, request: LLMRequest) -> list[Event] | ServingError:
        """All events, or the error."""
        events: list[Event] = []
        ends: list[Any] = []

        def sink(found: list[Event] | ServingError, is_last: bool) -> None:
            if isinstance(found, ServingError):
                ends.append(found)
                return
            events.extend(found)
            if is_last:
                ends.append(events)

        self.model.accept(request, sink)
        self.until(lambda: ends)
        found: list[Event] | ServingError = ends[0]
        return found

    def fails(self, request: LLMRequest) -> str:
        found = self.ask(request)
        assert isinstance(found, ServingError), found
        return str(found)


@contextmanager
def asking(config: EngineConfig | None = None, **options: Any) -> Iterator[Asking]:
    found = Asking(config or EngineConfig(), **options)
    try:
        yield found
    finally:
        found.model.close()


def prompt(text: str = "Hello", *, is_stream: bool = True, **given: Any) -> Generate:
    given = {"max_tokens": 8, **given}
    has_tokens = "logprobs" in given
    params = SamplingParams(**given)
    return Generate(prompt=text, params=params, is_stream=is_stream, has_tokens=has_tokens)


def text_of(events: list[Event] | ServingError) -> str:
    assert not isinstance(events, ServingError), events
    return "".join(one.text for one in events if isinstance(one, Chunk))
