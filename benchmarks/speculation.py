"""What guessing tokens gives: at most 16 against none, by how far an answer repeats earlier text.

`python -m benchmarks.speculation [--seconds 200] [--tokens 96] [--only story] [--draft D] [MODEL]`

Both engines are open in one process and take turns request by request.  Every round has other
texts, which share nothing with those of earlier rounds; the first one warms up.  Counted are tokens
per second after the first token of each answer; a ratio is of a pair, with guesses over none, and
its interval is that of the median, by bootstrap over pairs.
"""

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from benchmarks.llm_figures import interval
from benchmarks.report import print_json, print_table
from benchmarks.speculation_tasks import TASKS, params
from examples.smollm2 import INSTALL, find_model
from mindspore_serving.core.generation import SamplingParams
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.loader import make_config, open_model
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

STREAMS = (1, 4)
CACHE = 256 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """Prompts, and how each is answered."""

    prompts: list[list[int]]
    params: list[SamplingParams]
    salt: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Tokens per second without guesses and with; of the latter, tokens per step and stream."""

    off: float
    on: float
    per_step: float
    is_same: bool  # the text

    @property
    def ratio(self) -> float:
        return self.on / self.off


def answer(engine: Engine, case: Case) -> tuple[float, float, list[list[int]]]:
    """Tokens per second and per step and stream, when all have begun; and the answers."""
    for place, prompt in enumerate(case.prompts):
        engine.add(str(place), prompt, case.params[place], cache_salt=case.salt)
    answers: dict[str, list[int]] = {str(place): [] for place in range(len(case.prompts))}
    began, before, steps = 0.0, 0, 0
    while engine.has_work:
        steps += len(answers) if began else 0
        for request_id, generated in engine.step():
            answers[request_id] += generated.token_ids
        if not began and all(answers.values()):
            began, before = time.perf_counter(), sum(map(len, answers.values()))
    seconds = time.perf_counter() - began
    count = sum(map(len, answers.values())) - before
    return count / seconds, count / steps, list(answers.values())


def make_case(name: str, streams: int, number: int, tokens: int, tokenizer: Tokenizer) -> Case:
    """The same for the same numbers."""
    make, temperature = TASKS[name]
    texts = [make(random.Random(f"{name} {number} {place}")) for place in range(streams)]
    return Case(
        [tokenizer.encode(text) for text in texts],
        [params(temperature, 10 * number + place, tokens) for place in range(streams)],
        f"{name} {streams} {number}",
    )


def compare(off: Engine, on: Engine, case: Case) -> tuple[Pair, list[list[int]]]:
    """Both engines, in an order that chance decides."""
    order = [off, on]
    random.Random(case.salt).shuffle(order)
    found = {id(engine): answer(engine, case) for engine in order}
    (slow, _, plain), (fast, per_step, guessed) = found[id(off)], found[id(on)]
    return Pair(slow, fast, per_step, plain == guessed), guessed


def row(name: str, streams: int, pairs: list[Pair]) -> list[str]:
    ratios = [pair.ratio for pair in pairs]
    low, high = interval(ratios)
    return [
        name,
        str(streams),
        f"{median(pair.off for pair in pairs):.0f}",
        f"{median(pair.on for pair in pairs):.0f}",
        f"{median(ratios):.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{mean(pair.per_step for pair in pairs):.2f}",
        f"{sum(pair.is_same for pair in pairs)} of {len(pairs)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation")
    parser.add_argument("--seconds", type=float, default=200, help="after two rounds")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--only", default="", help="a part of a task's name")
    parser.add_argument("--show", action="store_true", help="print answers")
    parser.add_argument("--draft", type=Path, help="a smaller model that guesses as well")
    parser.add_argument("model", nargs="?", type=Path, default=find_model())
    given = parser.parse_args()
    if given.model is None:
        parser.error(f"no model: {INSTALL}")
    options = [{"num_speculative_tokens": 0}, {"draft": given.draft}]
    options = [{"kv_cache_memory": CACHE, **one} for one in options]
    off, on = (open_model(given.model, "openvino", make_config(one)) for one in options)
    assert isinstance(off.engine, Engine)
    assert isinstance(on.engine, Engine)
    assert on.tokenizer is not None
    kinds = [(name, streams) for name in TASKS if given.only in name for streams in STREAMS]
    found: dict[tuple[str, int], list[Pair]] = {kind: [] for kind in kinds}
    end, number = time.monotonic() + given.seconds, 0
    while number < 2 or time.monotonic() < end:
        for name, streams in kinds:
            if number > 1 and time.monotonic() > end:
                break
            case = make_case(name, streams, number, given.tokens, on.tokenizer)
            pair, answers = compare(off.engine, on.engine, case)
            if number:
                found[name, streams].append(pair)
            if given.show:
                print(f"{name}, {streams}: {pair}\n{on.tokenizer.decode(answers[0])}", flush=True)
        number += 1
    print_table(
        ["task", "streams", "off, tok/s", "on", "ratio", "95 %", "tok/step", "same text"],
        [row(*kind, pairs) for kind, pairs in found.items()],
    )
    ratios = {
        f"{name}, {streams}": [one.ratio for one in found[name, streams]] for name, streams in kinds
    }
    print_json("speculation", ratios=ratios)


if __name__ == "__main__":
    main()
