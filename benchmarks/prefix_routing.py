"""What it gives to send a prompt to the replica that has computed its beginning.

    python -m benchmarks.prefix_routing [--model DIRECTORY] [--rounds 3]

Four replicas of a model, one thread each.  Every chat begins with one of three long system prompts,
each of its turns repeats all that was said before, and all chats have a turn before one has the
next.  The caches of all replicas together hold them all, that of one does not.  Both ways of
choosing a replica get the same chats: a server each, of which one is asked at a time.  Printed are
the share of prompt tokens that were found in a cache, and the seconds to the first token.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.llm_model import PLACE
from benchmarks.processes import answers_ready, free_ports, running
from benchmarks.report import print_json, print_table

SYSTEM_TOKENS, TURN_TOKENS, NEW_TOKENS = 384, 96, 16
NUM_CHATS, NUM_TURNS, NUM_CLIENTS = 16, 4, 4
ROUTINGS = ("prefix", "fewest")


@dataclass(slots=True)
class Figures:
    """Of one way, in all rounds."""

    first: list[float] = field(default_factory=list)  # seconds to the first token, per turn
    seconds: list[float] = field(default_factory=list)  # of a round
    hits: float = 0.0
    queries: float = 0.0


def chats(seed: int) -> list[list[list[int]]]:
    """The prompts of each chat, turn by turn; others in every round."""
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(2, 30_000) for _ in range(count)]

    systems, made = [tokens(SYSTEM_TOKENS) for _ in range(3)], []
    for number in range(NUM_CHATS):
        said, turns = systems[number % 3], []
        for _ in range(NUM_TURNS):
            said = said + tokens(TURN_TOKENS)
            turns.append(said)
        made.append(turns)
    return made


async def ask(port: int, prompt: list[int], max_tokens: int = NEW_TOKENS) -> float:
    """Seconds until the first token came; the answer is read to its end."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    sent = json.dumps(body).encode()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    writer.write(head.encode() + sent)
    await reader.readuntil(b"data:")
    seconds = time.perf_counter() - began
    rest = await reader.read()
    writer.close()
    if b"[DONE]" not in rest:
        raise RuntimeError(f"the stream ended early: {rest[-200:]!r}")
    return seconds


async def play(port: int, seed: int, figures: Figures) -> None:
    """The turns of the chats of `seed`, NUM_CLIENTS at a time."""
    began = time.perf_counter()
    for turn in zip(*chats(seed), strict=True):
        prompts = iter(turn)

        async def client(prompts: Iterator[list[int]]) -> None:
            for prompt in prompts:
                figures.first.append(await ask(port, prompt))

        await asyncio.gather(*(client(prompts) for _ in range(NUM_CLIENTS)))
    figures.seconds.append(time.perf_counter() - began)


def engine(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/servables", timeout=30) as reply:
        (row,) = json.load(reply)["servables"]
    found: dict[str, float] = row.get("engine", {})
    return found


def measure(model: Path, rounds: int) -> dict[str, Figures]:
    found = {routing: Figures() for routing in ROUTINGS}
    ports = dict(zip(ROUTINGS, free_ports(2), strict=True))
    with ExitStack() as stack:
        for routing, port in ports.items():
            command = [sys.executable, "-m", "benchmarks.servers.replicas", str(model), str(port)]
            ready = partial(answers_ready, port)
            stack.enter_context(running(f"replicas_{routing}", [*command, routing], ready))
            asyncio.run(play(port, 0, Figures()))  # warms up
        for seed in range(1, rounds + 1):
            for routing, port in ports.items():
                before, figures = engine(port), found[routing]
                asyncio.run(play(port, seed, figures))
                after = engine(port)
                figures.hits += after["num_cache_hits"] - before["num_cache_hits"]
                figures.queries += after["num_cache_queries"] - before["num_cache_queries"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=PLACE / "int8", help="default: 0.25 B, int8")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not (options.model / "config.json").exists():
        sys.exit(f"{options.model} is not there: python -m benchmarks.llm_model")
    found, rows = measure(options.model, options.rounds), []
    for routing, figures in found.items():
        first = sorted(figures.first)
        p50, p90 = statistics.median(first), first[int(len(first) * 0.9)]
        share, seconds = figures.hits / figures.queries, statistics.median(figures.seconds)
        print_json("prefix_routing", routing=routing, hits=share, p50=p50, p90=p90, round=seconds)
        row = f"{share:.2f}", f"{p50:.2f}", f"{p90:.2f}", f"{seconds:.1f}"
        rows.append([routing, *row])
    print_table(["", "hits", "first token p50 s", "p90 s", "round s"], rows)


if __name__ == "__main__":
    main()
