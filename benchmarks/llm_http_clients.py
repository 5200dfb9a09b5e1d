"""The server and the clients of `benchmarks.llm_http`: prompts, streams of completions, rounds."""

import asyncio
import json
import re
import sys
import time
import urllib.request
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import running

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
