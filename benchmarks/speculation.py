"""What guessing tokens gives: at most 16 against none, by how far an answer repeats earlier text.

`python -m benchmarks.speculation [--seconds 200] [--tokens 96] [--only story] [--draft D]
[--runtime combined] [--against genai | itself] [MODEL]`

Both engines are open in one process and take turns request by request.  Every round has other
texts, which share nothing with those of earlier rounds; the first one warms up.  Counted are tokens
per second while all answers go on: from the first token of the last one that begins to the last
token of the first one that ends, as a server has others to compute then.  A ratio is of a pair,
with guesses over none, and its interval is that of the median, by bootstrap over pairs; which of
the two is first changes from round to round.  With `--against itself` neither guesses: what the
ratios of equal engines are.  With `--against genai` the other one is OpenVINO GenAI with its prompt
lookup, of what is not sampled, in a process of its own; and the model is the same in Q8_0, as of
Q4_1 GenAI computes another one (`gguf_models`).
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

from benchmarks import speculation_peer
from benchmarks.gguf_models import real_model
from benchmarks.llm_figures import interval
from benchmarks.report import print_json, print_table
from benchmarks.speculation_tasks import TASKS, params
from examples.smollm2 import INSTALL, find_model
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

STREAMS = (1, 4)
CACHE = 256 << 20
Answered = tuple[float, float, list[list[int]]]


@dataclass(frozen=True, slots=True)
class Case:
    """Prompts, and how each is answered."""

    prompts: list[list[int]]
    params: list[SamplingParams]
    salt: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Tokens per second of the other and of ours, and tokens per step and stream."""

    off: float
    on: float
    off_per_step: float
    per_step: float
    is_same: bool  # the text

    @property
    def ratio(self) -> float:
        return self.on / self.off


def answer(engine: Engine, case: Case) -> Answered:
    """Tokens per second and per step and stream while all answers go on; and the answers."""
    for place, prompt in enumerate(case.prompts):
        engine.add(str(place), prompt, case.params[place], cache_salt=case.salt)
    answers: dict[str, list[int]] = {str(place): [] for place in range(len(case.prompts))}
    wanted = case.params[0].max_tokens or 0
    began, before, steps = 0.0, 0, 0
    found: tuple[float, float] | None = None
    while engine.has_work:
        steps += len(answers) if began else 0
        for request_id, generated in engine.step():
            answers[request_id] += generated.token_ids
        count = sum(map(len, answers.values())) - before
        if not began and all(answers.values()):
            began, before = time.perf_counter(), count
        elif began and found is None and any(len(one) >= wanted for one in answers.values()):
            found = count / (time.perf_counter() - began), count / steps
    assert found is not None
    return *found, list(answers.values())


def make_case(name: str, streams: int, number: int, tokens: int, tokenizer: Tokenizer) -> Case:
    """The same for the same numbers."""
    make, temperature = TASKS[name]
    texts = [make(random.Random(f"{name} {number} {place}")) for place in range(streams)]
    return Case(
        [tokenizer.encode(text) for text in texts],
        [params(temperature, 10 * number + place, tokens) for place in range(streams)],
        f"{name} {streams} {number}",
    )


def compare(
    off: Callable[[Case], Answered], on: Callable[[Case], Answered], case: Case, *, is_first: bool
) -> tuple[Pair, list[list[int]]]:
    """Both engines; `is_first` is whether the one that guesses is."""
    order = [on, off] if is_first else [off, on]
    found = {id(each): each(case) for each in order}
    (slow, off_per_step, plain), (fast, per_step, guessed) = found[id(off)], found[id(on)]
    return Pair(slow, fast, off_per_step, per_step, plain == guessed), guessed


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
        f"{mean(pair.off_per_step for pair in pairs):.2f}",
        f"{mean(pair.per_step for pair in pairs):.2f}",
        f"{sum(pair.is_same for pair in pairs)} of {len(pairs)}",
    ]


def open_ours(model: Path, runtime: str, **options: object) -> tuple[Engine, Tokenizer]:
    opened = open_model(model, runtime, make_config({"kv_cache_memory": CACHE, **options}))
    assert isinstance(opened.engine, Engine)
    assert opened.tokenizer is not None
    packing = getattr(opened.engine.runner, "packing", None)
    while packing is not None and not packing.is_done:
        time.sleep(0.1)
    return opened.engine, opened.tokenizer


@contextmanager
def other(given: argparse.Namespace) -> Iterator[Callable[[Case], Answered]]:
    if given.against != "genai":
        engine, _ = open_ours(given.model, given.runtime, num_speculative_tokens=0)
        yield lambda case: answer(engine, case)
        return
    with speculation_peer.running(given.model, given.guesses) as process:
        yield lambda case: speculation_peer.ask(process, case.prompts, given.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation")
    parser.add_argument("--seconds", type=float, default=200, help="after two rounds")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--only", default="", help="a part of a task's name")
    parser.add_argument("--show", action="store_true", help="print answers")
    parser.add_argument("--runtime", default="openvino", help="of ours")
    parser.add_argument("--draft", type=Path, help="a smaller model that guesses as well")
    parser.add_argument(
        "--against", choices=("none", "itself", "genai"), default="none", help="guesses"
    )
    parser.add_argument("--guesses", type=int, default=speculation_peer.GUESSES, help="of genai")
    parser.add_argument("model", nargs="?", type=Path)
    given = parser.parse_args()
    if given.model is None and find_model() is None:
        parser.error(f"no model: {INSTALL}")
    given.model = given.model or (real_model() if given.against == "genai" else find_model())
    names = [name for name in TASKS if given.only in name]
    if given.against == "genai":
        names = [name for name in names if not TASKS[name][1]]
    kinds = [(name, streams) for name in names for streams in STREAMS]
    found: dict[tuple[str, int], list[Pair]] = {kind: [] for kind in kinds}
    with other(given) as off:
        measure(off, given, found)
    titles = [f"{given.against}, tok/s", "ours", "ratio", "95 %", "tok/step", "ours", "same text"]
    print_table(["task", "streams", *titles], [row(*kind, pairs) for kind, pairs in found.items()])
    ratios = {
        f"{name}, {streams}": [p.ratio for p in found[name, streams]] for name, streams in kinds
    }
    print_json("speculation", against=given.against, ratios=ratios)


def measure(
    off: Callable[[Case], Answered],
    given: argparse.Namespace,
    found: dict[tuple[str, int], list[Pair]],
) -> None:
    """Add pairs to `found`, until the time is over."""
    without = {"num_speculative_tokens": 0} if given.against == "itself" else {}
    engine, tokenizer = open_ours(given.model, given.runtime, draft=given.draft, **without)
    end, number = time.monotonic() + given.seconds, 0
    while number < 2 or time.monotonic() < end:
        for (name, streams), pairs in found.items():
            if number > 1 and time.monotonic() > end:
                break
            case = make_case(name, streams, number, given.tokens, tokenizer)
            on = partial(answer, engine)
            pair, answers = compare(off, on, case, is_first=number % 2 == 0)
            if number:
                pairs.append(pair)
            if given.show:
                print(f"{name}, {streams}: {pair}\n{tokenizer.decode(answers[0])}", flush=True)
        number += 1


if __name__ == "__main__":
    main()
