"""Our engine, in this environment: ours DIRECTORY [OPTIONS as JSON]."""

import json
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.runners.driving import Engine, serve
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm import LLM


class Ours:
    def __init__(self, llm: LLM, sampling: dict[str, Any]) -> None:
        self.computing = 0.0
        self._engine = llm._open_engine()
        self._engine.runner = _Timed(self._engine.runner, self)
        self._sampling = {"temperature": 0.0, **sampling}

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **self._sampling)
        self._engine.add(str(number), prompt, params)

    def step(self) -> Iterable[tuple[int, list[int]]]:
        for name, generated in self._engine.step():
            if generated.stop_reason is not None:
                raise RuntimeError(f"request {name}: {generated.stop_reason}")
            yield int(name), list(generated.token_ids)


class _Timed:
    """A runner, with a clock around its steps."""

    def __init__(self, runner: Any, clock: Ours) -> None:
        self._runner, self._clock = runner, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, step: Any) -> Any:
        began = time.perf_counter()
        logits = self._runner.run(step)
        self._clock.computing += time.perf_counter() - began
        return logits


def load(arguments: list[str]) -> tuple[Engine, dict[str, Any]]:
    options = json.loads(arguments[1]) if len(arguments) > 1 else {}
    sampling = options.pop("sampling", {})
    began = time.perf_counter()
    llm = LLM(arguments[0], **options)
    return Ours(llm, sampling), {"loaded": time.perf_counter() - began}


if __name__ == "__main__":
    serve(load)
