"""What serving a language model costs: tokens per second over HTTP against the engine alone.

`python -m benchmarks.llm_http` runs the same greedy requests in rounds: once by the offline
interface in a process of its own, once as streams of OpenAI's completions from as many clients.
Both have the same model, threads and cache; server, engine and clients share the processors.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.llm_model import FLOAT

PROMPT_TOKENS, NEW_TOKENS = 32, 64
DEADLINE = 120.0  # seconds until the server is ready


def prompts(count: int, seed: int) -> list[list[int]]:
    """Different ones in every round, so that no prefix cache answers."""
    return [
        [(7919 * (seed * count + row) + 31 * place) % 30000 + 2 for place in range(PROMPT_TOKENS)]
        for row in range(count)
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


async def stream(port: int, prompt: list[int]) -> int:
    """One client: a stream read to its end.  The number of tokens it was told."""
    body = json.dumps(
        {
            "prompt": prompt,
            "max_tokens": NEW_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.read()
    writer.close()
    usage = answer[answer.rindex(b'"completion_tokens":') + len(b'"completion_tokens":') :]
    return int(usage[: usage.index(b",")])


async def serve_round(port: int, seed: int, count: int) -> float:
    began = time.perf_counter()
    told = await asyncio.gather(*(stream(port, prompt) for prompt in prompts(count, seed)))
    seconds = time.perf_counter() - began
    assert told == [NEW_TOKENS] * count, told
    return seconds


@contextmanager
def served(model: Path, port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "mindspore_serving", "serve", str(model), "--no-grpc"]
    command += ["--http-port", str(port), "--name", "bench"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + DEADLINE
            while not _is_ready(port):
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit("the server did not start")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


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
            over_http.append(asyncio.run(serve_round(port, seed, count)))
            print(f"  round {seed}: {alone[-1]:.2f} s, served {over_http[-1]:.2f} s", flush=True)
        other.stdin.close()
    return statistics.median(alone[1:]), statistics.median(over_http[1:])  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--offline", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, default=FLOAT, help="default: the 0.25 B one")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=1597)
    settings = parser.parse_args()
    if settings.offline:
        offline(settings.offline)
        return
    if not (settings.model / "config.json").exists():
        sys.exit(f"{settings.model} is not there: python -m benchmarks.llm_model")
    alone, over_http = measure(settings.model, settings.streams, settings.rounds, settings.port)
    tokens = settings.streams * NEW_TOKENS
    print(f"{settings.streams} streams of {NEW_TOKENS} tokens, median of {settings.rounds} rounds:")
    print(f"  engine alone  {tokens / alone:8.0f} tokens/s")
    print(f"  over HTTP     {tokens / over_http:8.0f} tokens/s   {alone / over_http:.3f} of it")


if __name__ == "__main__":
    main()
