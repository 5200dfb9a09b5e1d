"""Throughput of a model over two machines in comparison with one: the share of the ideal.

    python -m benchmarks.rank_machines [--model DIRECTORY] [--runtime openvino] [--rounds 5]

The machines are processes of this one, at 127.0.0.2 and 127.0.0.3, that compute with a thread each,
in float32.  One server has the model on one machine, the other has two stages on both, which TLS
connects.  They are asked in turns.  Two machines are at best twice as fast.  Printed are tokens a
second, medians over the rounds, and the median, the least and the most of the rounds' shares of
that.  Other work on two cores takes more from two machines than from one.
"""

import argparse
import http.client
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.llm_model import FLOAT
from benchmarks.processes import free_ports, running
from benchmarks.report import print_json, print_table

# name -> (requests at once, tokens of each prompt, tokens of each answer)
WORK = {
    "4 prompts of 512 tokens": (4, 512, 1),
    "1 answer of 48": (1, 4, 48),
    "8 answers of 24": (8, 4, 24),
}
OPTIONS = {
    "dtype": "f32", "num_threads": 1, "kv_cache_memory": 256 << 20, "max_num_seqs": 8,
    "enable_prefix_caching": False, "max_model_len": 1024, "num_speculative_tokens": 0,
}  # fmt: skip
SERVING = [sys.executable, "-m", "mindspore_serving"]


def answer(port: int, prompt: list[int], count: int) -> None:
    """Have the server answer a prompt with `count` tokens."""
    body = {
        "model": "m", "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body))
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    if reply.status != 200:
        raise OSError(text.decode())


def rate(port: int, count: int, num_prompt: int, num_new: int) -> float:
    """Tokens a second, of prompts if there is one new token, else of answers."""
    prompts = [[2 + (7 * i + j) % 1000 for j in range(num_prompt)] for i in range(count)]
    began = time.perf_counter()
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(lambda prompt: answer(port, prompt, num_new), prompts))
    elapsed = time.perf_counter() - began
    return count * (num_prompt if num_new == 1 else num_new) / elapsed


@contextmanager
def serving(model: Path, runtime: str, count: int, token: Path) -> Iterator[int]:
    """A server whose model is on `count` machines; gives its port."""
    port, joining = free_ports(2)
    where = f"127.0.0.1:{joining}"
    common = ["--insecure", "--token-file", str(token)]
    options = {**OPTIONS, "pipeline_parallel": count}
    words = [f"--llm-option={name}={json.dumps(value)}" for name, value in options.items()]
    command = [
        *SERVING, "serve", str(model), "--name", "m", "--runtime", runtime, "--no-grpc",
        "--http-port", str(port), "--worker-address", where, "--local-slots", "0",
        "--rank-machines", str(count), *common, *words,
    ]  # fmt: skip
    with ExitStack() as stack:
        for number in range(count):
            name = f"machines{count}-{number}"
            joins = [*SERVING, "worker", "--join", where, "--name", name, "--slots", "1"]
            joins += ["--address", f"127.0.0.{number + 2}", *common]
            stack.enter_context(running(name, joins, lambda: True))

        def is_ready() -> bool:
            answer(port, [5], 1)
            return True

        stack.enter_context(running(f"machines{count}", command, is_ready, 300))
        yield port


def compared(rounds: list[list[float]]) -> str:
    """The share of twice the rate of one machine."""
    shares = [two / (2 * one) for one, two in rounds]
    return f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=FLOAT)
    parser.add_argument("--runtime", choices=("openvino", "torch"), default="openvino")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        token = Path(stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".token")).name)
        token.write_text(secrets.token_hex())
        ports = [
            stack.enter_context(serving(arguments.model, arguments.runtime, count, token))
            for count in (1, 2)
        ]
        for name, work in WORK.items():
            rounds = [[rate(port, *work) for port in ports] for _ in range(arguments.rounds + 1)]
            rounds = rounds[1:]  # the first one compiles
            rates = [f"{statistics.median(column):,.1f}" for column in zip(*rounds, strict=True)]
            rows.append([name, *rates, compared(rounds)])
    header = [f"tokens/s, {arguments.runtime}", "one machine", "two machines", "share of twice"]
    print_table(header, rows)
    print_json("rank_machines", runtime=arguments.runtime, **{row[0]: row[1:] for row in rows})


if __name__ == "__main__":
    main()
