"""What guessing tokens gives: the default against none, by how far an answer repeats earlier text.

`python -m benchmarks.speculation [--seconds 200] [--tokens 128] [--only story] [--show] [MODEL]`

Both engines are open in one process and take turns request by request; each round has other texts,
which share nothing with earlier ones.  Counted are tokens per second after the first token of each
answer; the ratio is of a pair, its interval by bootstrap over pairs.
"""

import argparse
import random
import time
from pathlib import Path
from statistics import mean, median

from benchmarks.report import print_json, print_table
from benchmarks.speculation_tasks import TASKS, params
from examples.smollm2 import INSTALL, find_model
from mindspore_serving.llm.engine.engine import Engine
from mindspore_serving.llm.loader import make_config, open_model

STREAMS = (1, 4)
Case = tuple[str, int]  # name of a task, streams


def answer(engine: Engine, prompts: list[list[int]], own: list, salt: str) -> tuple[float, list]:
    """Tokens per second when all have begun, and the answers."""
    for place, prompt in enumerate(prompts):
        engine.add(str(place), prompt, own[place], cache_salt=salt)
    answers: dict[str, list[int]] = {str(place): [] for place in range(len(prompts))}
    began, before = 0.0, 0
    while engine.has_work:
        for request_id, generated in engine.step():
            answers[request_id] += generated.token_ids
        if not began and all(answers.values()):
            began, before = time.perf_counter(), sum(map(len, answers.values()))
    count = sum(map(len, answers.values())) - before
    return count / (time.perf_counter() - began), list(answers.values())


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % of the medians of samples like this one."""
    chance = random.Random(0)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(1000))
    return medians[25], medians[974]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only", default="", help="a part of a task's name")
    parser.add_argument("--show", action="store_true", help="print answers")
    parser.add_argument("--most", type=int, help="guesses in a step")
    parser.add_argument("model", nargs="?", type=Path, default=find_model())
    given = parser.parse_args()
    if given.model is None:
        parser.error(f"no model: {INSTALL}")
    sizes = {"kv_cache_memory": 256 << 20}
    off = open_model(given.model, "openvino", make_config({**sizes, "num_speculative_tokens": 0}))
    on = open_model(
        given.model, "openvino", make_config({**sizes, "num_speculative_tokens": given.most})
    )
    assert isinstance(off.engine, Engine)
    assert isinstance(on.engine, Engine)
    assert off.tokenizer
    cases = [(name, streams) for name in TASKS if given.only in name for streams in STREAMS]
    found: dict[Case, list] = {case: [] for case in cases}
    end, number = time.monotonic() + given.seconds, 0
    while number < 2 or time.monotonic() < end:
        for name, streams in cases:
            if number >= 2 and time.monotonic() > end:
                break
            make, temperature = TASKS[name]
            texts = [make(random.Random(f"{name} {number} {place}")) for place in range(streams)]
            prompts = [off.tokenizer.encode(text) for text in texts]
            own = [params(temperature, number * 10 + i, given.tokens) for i in range(streams)]
            order = [("off", off.engine), ("on", on.engine)]
            random.Random(str((name, streams, number))).shuffle(order)
            before = on.engine.stats()
            rates, said = {}, {}
            for which, engine in order:
                rates[which], said[which] = answer(engine, prompts, own, f"{name} {number}")
            after = on.engine.stats()
            steps = after.num_steps - before.num_steps
            if number:  # the first round is to warm up
                found[name, streams].append(
                    (
                        rates["off"],
                        rates["on"],
                        said["off"] == said["on"],
                        (after.num_guesses - before.num_guesses) / steps,
                        (after.num_right_guesses - before.num_right_guesses) / steps,
                    )
                )
            if given.show:
                print(name, streams, rates, off.tokenizer.decode(said["on"][0]), flush=True)
        number += 1
    rows = []
    for (name, streams), pairs in found.items():
        ratios = [on / off for off, on, *_ in pairs]
        low, high = interval(ratios)
        rows.append(
            [
                name,
                str(streams),
                f"{median(p[0] for p in pairs):.0f}",
                f"{median(p[1] for p in pairs):.0f}",
                f"{median(ratios):.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{mean(p[3] for p in pairs):.2f}",
                f"{mean(p[4] for p in pairs):.2f}",
                str(len(pairs)),
                f"{mean(p[2] for p in pairs):.0%}",
            ]
        )
    print_table(
        [
            "task",
            "streams",
            "off, tok/s",
            "on",
            "ratio",
            "95 %",
            "guesses/step",
            "right",
            "pairs",
            "same text",
        ],
        rows,
    )
    print(
        [
            round(on.engine._speculation._cost.of(n) / on.engine._speculation._cost.of(1), 2)
            for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
        ]
    )
    print_json("speculation", found={f"{n} {s}": v for (n, s), v in found.items()})


if __name__ == "__main__":
    main()
