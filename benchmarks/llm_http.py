"""What serving a language model costs: tokens per second over HTTP against the engine alone.

`python -m benchmarks.llm_http` runs the same greedy requests in rounds: once by the offline
interface in a process of its own, once as streams of OpenAI's completions from as many clients.
Both have the same model, threads and cache; server, engine and clients share the processors.

With `--vllm PYTHON`, the interpreter of an environment with vLLM (scripts/engine-environments makes
one): vLLM behind our server against `vllm serve` itself, with the same options and requests.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import llm_http_vllm
from benchmarks.llm_http_clients import NEW_TOKENS, prompts, serve_round, served
from benchmarks.llm_model import float_model
from benchmarks.processes import free_ports


def offline(model: Path) -> None:
    """The other process: answers a line with a seed and a count by seconds taken."""
    from mindspore_serving.llm import LLM, SamplingParams

    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
    with LLM(model) as llm:
        print("ready", flush=True)
        for line in sys.stdin:
            seed, count = map(int, line.split())
            began = time.perf_counter()
            answers = llm.generate(prompts(count, seed), params, use_tqdm=False)
            seconds = time.perf_counter() - began
            assert all(len(one.outputs[0].token_ids) == NEW_TOKENS for one in answers)
            print(seconds, flush=True)


def measure(model: Path, count: int, rounds: int, port: int) -> tuple[float, float]:
    """Medians of seconds: offline, served."""
    command = [sys.executable, "-m", "benchmarks.llm_http", "--offline", str(model)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with served(model, port), subprocess.Popen(command, env=dict(os.environ), **pipes) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        alone, over_http = [], []
        for seed in range(rounds + 1):
            other.stdin.write(f"{seed} {count}\n")
            other.stdin.flush()
            alone.append(float(other.stdout.readline()))
            over_http.append(asyncio.run(serve_round(port, seed, count))[0])
            print(f"  round {seed}: {alone[-1]:.2f} s, served {over_http[-1]:.2f} s", flush=True)
        other.stdin.close()
    return statistics.median(alone[1:]), statistics.median(over_http[1:])  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--offline", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help="a directory; default: the 0.25 B one")
    parser.add_argument("--vllm", metavar="PYTHON", help="compare vLLM behind us with vLLM alone")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    settings = parser.parse_args()
    if settings.offline:
        offline(settings.offline)
        return
    model = settings.model or float_model()
    if settings.vllm:
        llm_http_vllm.compare(settings.vllm, model, settings.streams, settings.rounds)
        return
    (port,) = free_ports(1)
    alone, over_http = measure(model, settings.streams, settings.rounds, port)
    tokens = settings.streams * NEW_TOKENS
    print(f"{settings.streams} streams of {NEW_TOKENS} tokens, median of {settings.rounds} rounds:")
    print(f"  engine alone  {tokens / alone:8.0f} tokens/s")
    print(f"  over HTTP     {tokens / over_http:8.0f} tokens/s   {alone / over_http:.3f} of it")


if __name__ == "__main__":
    main()
