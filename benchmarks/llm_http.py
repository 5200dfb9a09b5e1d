"""What serving a language model costs: tokens per second over HTTP against the engine alone.

`python -m benchmarks.llm_http` runs the same greedy requests in rounds: once by the offline
interface in a process of its own, once as streams of OpenAI's completions from as many clients.
Both have the same model, threads and cache; server, engine and clients share the processors.

With `--vllm PYTHON`, the interpreter of an environment with vLLM (scripts/engine-environments makes
one): vLLM behind our server against `vllm serve` itself, with the same options and requests.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.llm_model import float_model
from benchmarks.processes import free_ports, running

PROMPT_TOKENS, NEW_TOKENS = 32, 64
DEADLINE = 300.0  # seconds until the server is ready
NAME = "bench"  # of the model


def prompts(count: int, seed: int) -> list[list[int]]:
    """Different ones in every round, so that no prefix cache answers; token ids are up to 4,001."""
    return [
        [
            (7919 * number + (31 + number // 4000) * place) % 4000 + 2
            for place in range(PROMPT_TOKENS)
        ]
        for number in range(seed * count, (seed + 1) * count)
    ]


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


@dataclass(frozen=True, slots=True)
class Told:
    """What a client was told: how many tokens, the first after so many seconds."""

    tokens: int
    first: float


async def stream(port: int, prompt: list[int], tokens: int = NEW_TOKENS) -> Told:
    """One client: a stream read to its end."""
    body = json.dumps(
        {
            "model": NAME,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.readuntil(b"data: ")
    first = time.perf_counter() - began
    answer += await reader.read()
    writer.close()
    return Told(int(re.findall(rb'"completion_tokens": ?(\d+)', answer)[-1]), first)


async def serve_round(port: int, seed: int, count: int) -> tuple[float, list[float]]:
    """Seconds of the round, and those to the first token of each stream."""
    began = time.perf_counter()
    told = await asyncio.gather(*(stream(port, prompt) for prompt in prompts(count, seed)))
    seconds = time.perf_counter() - began
    assert [one.tokens for one in told] == [NEW_TOKENS] * count, told
    return seconds, [one.first for one in told]


def served(model: Path, port: int, *options: str) -> AbstractContextManager[float]:
    """Our server."""
    command = [sys.executable, "-m", "mindspore_serving", "serve", str(model), "--no-grpc"]
    command += ["--http-port", str(port), "--name", NAME, *options]
    return running("llm_http", command, lambda: is_ready(port), DEADLINE)


def is_ready(port: int) -> bool:
    """Raises OSError while nobody listens."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
        return bool(reply.status == 200)


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
        from benchmarks import llm_http_vllm

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
