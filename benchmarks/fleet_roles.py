"""Real servers with roles of workers, to which the predictions of `benchmarks.fleet` are held.

    python -m benchmarks.fleet_roles [NUMBER OF PROCESSES ...]

Prompts of many lengths that nobody has computed, from three clients for each worker that decodes:
which of them are handed off depends on their lengths, and on the prompts under way.
"""

import asyncio
import random
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.fleet import Fleet, Turn
from benchmarks.fleet_plan import Costs, Plan
from benchmarks.prefix_routing import ask, engine
from benchmarks.processes import served
from benchmarks.report import print_json, print_table
from examples.smollm2 import find_model

PROCESSES = (2, 4, 6)
CLIENTS, PROMPTS, ANSWER = 3, 16, 8  # for each worker that decodes
SHORTEST, LONGEST = 48, 768  # tokens of a prompt
COSTS = Costs(  # of docs/machines.md
    dispatch=0.00036, reply=0.000059, step=0.0113, sequence=0.00105, prompt=0.00076,
    fetch=0.000021, transfer=0.000015,
)  # fmt: skip


def draw_prompts(num: int, seed: int) -> Iterator[list[int]]:
    """Iterate over the prompts for `num` workers."""
    draw = random.Random(seed)
    for _ in range(num // 2 * PROMPTS):
        length = draw.randrange(SHORTEST, LONGEST)
        yield [draw.randrange(9, 30_000) for _ in range(length)]


def predict(costs: Costs, num: int, seed: int = 1) -> float:
    """Return the share of prompts that are handed off."""
    fleet = Fleet(costs, Plan("roles", num, num // 2, has_prefixes=False, max_running=64))
    prompts = draw_prompts(num, seed)

    def ask_next(now: float, _: Turn | None = None) -> None:
        prompt = next(prompts, None)
        if prompt is not None:
            marks = [hash((prompt[0], prompt[1], index)) for index in range(len(prompt) // 64)]
            fleet.submit(Turn(marks, len(prompt), ANSWER, now))

    fleet.on_answered = ask_next
    for _ in range(CLIENTS * num // 2):
        ask_next(0.0)
    fleet.run(1e9)
    return fleet.num_handed_off / (fleet.num_handed_off + fleet.num_local)


def measure(num: int) -> float:
    """Return the share of a server with `num` workers, which has measured its costs before."""
    roles = f"prefill={num // 2},decode={num // 2}"
    options = ["--llm-option", "num_threads=1", "--llm-option", "kv_cache_memory=600e6"]
    with served(str(find_model()), "--roles", roles, *options, seconds=300.0) as (port, _):
        before: dict[str, float] = {}
        for seed in (2, 1):
            before = engine(port)
            prompts = draw_prompts(num, seed)

            async def client(prompts: Iterator[list[int]] = prompts) -> None:
                for prompt in prompts:
                    await ask(port, prompt, ANSWER)

            async def play() -> None:
                await asyncio.gather(*(client() for _ in range(CLIENTS * num // 2)))

            asyncio.run(play())
            time.sleep(1.5)  # until the engines have reported
        after = engine(port)
    names = ("num_handoffs", "num_handoffs_failed", "num_handoffs_local")
    counts = [after[name] - before.get(name, 0) for name in names]
    return (counts[0] + counts[1]) / sum(counts)


def check(costs: Costs, processes: Sequence[int] = PROCESSES) -> None:
    """Print predictions and measurements."""
    rows = []
    for num in processes:
        predicted, measured = predict(costs, num), measure(num)
        print_json("fleet_roles", processes=num, predicted=predicted, measured=measured)
        error = (predicted - measured) / (measured or 1)
        rows.append([f"{num}", f"{predicted:.2f}", f"{measured:.2f}", f"{error:+.0%}"])
    print_table(["processes", "predicted", "measured", "error"], rows)


if __name__ == "__main__":
    check(COSTS, [int(argument) for argument in sys.argv[1:]] or PROCESSES)
