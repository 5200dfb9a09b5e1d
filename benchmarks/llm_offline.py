"""Language models without a server: how fast engines decode, read prompts, and share them.

`python -m benchmarks.llm_offline [--quick] [--rounds N] [--turns N] [--only ours,genai]
[--form float,int8]`

Every engine computes the same tasks through all of itself (scheduler, sampling, detokenising),
greedy and to a fixed number of tokens, in a process that is started anew in every round; within a
round all are open and take turns task by task, in another order each time.  Shown are medians;
ratios are medians of the ratios of a turn, with the interval of that median by bootstrap: nothing
is said of who is faster if 1 is in it, or of fewer than five turns.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import llm_figures as figures
from benchmarks import llm_workloads as workloads
from benchmarks.llm_contenders import FORMS, Contender, chosen
from benchmarks.llm_machine import measured
from benchmarks.llm_model import num_multiplied
from benchmarks.llm_process import Process, running
from benchmarks.llm_tables import Found, table, verdicts
from benchmarks.processes import end_on_sigterm
from benchmarks.report import print_json, print_table


@dataclass(frozen=True, slots=True)
class Measure:
    """A task, and the figure of its reply.  `is_rate`: more is better."""

    name: str
    task: Callable[[int], workloads.Task]
    figure: Callable[[figures.Reply], float]
    is_rate: bool
    for_static: bool  # whether engines without continuous batching take part
    streams: int = 0  # answers that are computed together throughout


def _decode(streams: int) -> Measure:
    return Measure(
        f"decode {streams}, ms",
        lambda seed: workloads.decode(streams, seed),
        lambda reply: figures.step_ms(reply, streams),
        is_rate=False,
        for_static=True,
        streams=streams,
    )


def _prefill(length: int) -> Measure:
    return Measure(
        f"prefill {length}, tok/s",
        lambda seed: workloads.prefill(length, seed),
        figures.prompt_rate,
        is_rate=True,
        for_static=True,
    )


def measures(is_quick: bool) -> list[Measure]:
    streams = (1, 8, 32) if is_quick else (1, 4, 8, 16, 32, 64)
    lengths = (1024,) if is_quick else (128, 1024)
    requests, conversations = (16, 8) if is_quick else (64, 16)
    return [
        *map(_decode, streams),
        *map(_prefill, lengths),
        Measure(
            "mixed, tok/s",
            lambda seed: workloads.mixed(requests, seed),
            figures.token_rate,
            is_rate=True,
            for_static=False,
        ),
        Measure(
            "chat, tok/s",
            lambda seed: workloads.chat(conversations, seed),
            figures.token_rate,
            is_rate=True,
            for_static=False,
        ),
    ]


def measure(
    contenders: list[Contender], wanted: list[Measure], rounds: tuple[int, int], lock: Path | None
) -> Iterator[Found]:
    """What is found, after each round with more.  `rounds`, and turns in each of them."""
    found: Found = {each.name: {one.name: [] for one in wanted} for each in contenders}
    for number in range(rounds[0]):
        for form in FORMS:
            with running([each for each in contenders if each.form == form], lock) as processes:
                for process in processes:
                    if not process.contender.is_static:
                        process.ask(workloads.warm_up(number))
                for turn in range(rounds[1]):
                    _turn(processes, wanted, number * rounds[1] + turn, found)
        yield found


def _turn(processes: list[Process], wanted: list[Measure], number: int, found: Found) -> None:
    order = processes[:]
    for place, one in enumerate(wanted):
        task = one.task(1000 * number + place)
        random.Random(1000 * number + place).shuffle(order)
        for process in order:
            contender = process.contender
            if contender.is_static and not one.for_static:
                continue
            reply = process.ask(task)
            figure = one.figure(reply)
            found[contender.name][one.name].append(figure)
            told = f"turn {number + 1}: {contender.name}, {one.name}: {figure:.1f}"
            if any(reply["computing"]) and one.streams > 1:
                told += f", {figures.glue_share(reply, one.streams):.1%} outside of the model"
            print(told, flush=True)


def shares(contenders: list[Contender], found: Found, machine: dict[str, Any]) -> list[list[str]]:
    """Of what the machine can do: bytes of weights read per second by one stream, floating-point
    operations of the matrices while prompts are read."""
    rows = []
    for each in contenders:
        steps = found[each.name].get("decode 1, ms", [])
        prompts = found[each.name].get("prefill 1024, tok/s", [])
        if not steps or not prompts:
            continue
        read = num_multiplied() * each.weight_bytes * 1000 / median(steps) / machine["read"]
        flops = 2 * num_multiplied() * median(prompts) / machine["flops"]
        rows.append([each.name, f"{read:.0%}", f"{flops:.0%}" if each.form == "float" else "-"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_offline")
    parser.add_argument("--quick", action="store_true", help="one round, few sizes: minutes")
    parser.add_argument("--rounds", type=int, help="5, with --quick 1")
    parser.add_argument("--turns", type=int, default=1, help="of each engine in a round")
    parser.add_argument("--only", default="", help="engines, by commas")
    parser.add_argument("--form", default="", help="float, int8, int4, by commas")
    parser.add_argument("--lock", type=Path, help="a file whose lock is held while measuring")
    given = parser.parse_args()
    contenders, wanted = chosen(given.only, given.form), measures(given.quick)
    rounds = given.rounds or (1 if given.quick else 5)
    end_on_sigterm()
    machine = measured(given.lock)
    *_, found = measure(contenders, wanted, (rounds, given.turns), given.lock)
    print()
    kinds = {one.name: one.is_rate for one in wanted}
    print_table(["engine", *kinds], table(contenders, kinds, found))
    print()
    print_table(["ours over", "measure", "times as fast"], verdicts(contenders, kinds, found))
    print()
    print_table(["share of the machine", "read", "FLOP/s"], shares(contenders, found, machine))
    print(f"features: {machine['features']}")
    print_json("llm_offline", rounds=rounds, machine=machine, found=found)


if __name__ == "__main__":
    main()
