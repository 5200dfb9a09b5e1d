"""Throughput of a model over two machines in comparison with one: the share of the ideal.

    python -m benchmarks.rank_machines [--model DIRECTORY] [--runtime openvino] [--rounds 5]
        [--delay-ms 10] [--answers 4,8]

The machines are processes of this one, at 127.0.0.2 and 127.0.0.3, that compute with a thread each,
on a core each (taskset), in float32.  One server has the model on one machine, two others have two
stages on both, which TLS connects: one of these computes the steps of answers one after the other,
the other in groups where that is faster.  They are asked in turns.  Two machines are at best twice
as fast.  Printed are tokens a second, medians over the rounds, and the median, the least and the
most of the rounds' shares of that.  Other work on two cores takes more from two machines than from
one.  --delay-ms delays what a machine writes to the other.  --answers leaves out prompts,
and answers of other numbers of streams.
"""

import argparse
import http.client
import json
import os
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
    "1 answer of 32": (1, 4, 32),
    "4 answers of 32": (4, 4, 32),
    "8 answers of 32": (8, 4, 32),
    "16 answers of 32": (16, 4, 32),
}
WARM = 2  # rounds before those that count: they compile, and try numbers of groups
SERVERS = {  # number of machines, options
    "one machine": (1, {}),
    "steps one by one": (2, {"pipeline_parallel": 2, "pipeline_groups": 1}),
    "steps in groups": (2, {"pipeline_parallel": 2}),
}
DELAY = """\
import sys
if {{"mindspore_serving.llm.parallel.bridge_process",
     "mindspore_serving.llm.parallel.host_process"}} & set(sys.orig_argv):
    import asyncio
    from mindspore_serving.llm.parallel.peer import Peer
    write = Peer._write
    def later(self, head, content):
        asyncio.get_running_loop().call_later({seconds}, write, self, head, content)
    Peer._write = later
"""
OPTIONS = {
    "dtype": "f32", "num_threads": 1, "kv_cache_memory": 256 << 20, "max_num_seqs": 16,
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
def delaying(seconds: float) -> Iterator[None]:
    """Delay what processes that are started meanwhile write from machine to machine."""
    with tempfile.TemporaryDirectory() as directory:
        if seconds:
            (Path(directory) / "sitecustomize.py").write_text(DELAY.format(seconds=seconds))
            os.environ["PYTHONPATH"] = directory
        yield


@contextmanager
def serving(label: str, model: Path, runtime: str, token: Path) -> Iterator[int]:
    """A server of `SERVERS`; gives its port."""
    count, division = SERVERS[label]
    port, joining = free_ports(2)
    where = f"127.0.0.1:{joining}"
    common = ["--insecure", "--token-file", str(token)]
    options = {**OPTIONS, **division}
    words = [f"--llm-option={name}={json.dumps(value)}" for name, value in options.items()]
    command = [
        *SERVING, "serve", str(model), "--name", "m", "--runtime", runtime, "--no-grpc",
        "--http-port", str(port), "--worker-address", where, "--local-slots", "0",
        "--rank-machines", str(count), *common, *words,
    ]  # fmt: skip
    with ExitStack() as stack:
        for number in range(count):
            name = f"{label} {number}".replace(" ", "-")
            joins = [
                "taskset",
                "-c",
                f"{number}",
                *SERVING,
                "worker",
                "--join",
                where,
                "--name",
                name,
                "--slots",
                "1",
            ]
            joins += ["--address", f"127.0.0.{number + 2}", *common]
            stack.enter_context(running(name, joins, lambda: True))

        def is_ready() -> bool:
            answer(port, [5], 1)
            return True

        stack.enter_context(running(label, command, is_ready, 300))
        yield port


def compared(ratios: list[float]) -> str:
    """The median of ratios, the least and the most."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=FLOAT)
    parser.add_argument("--runtime", choices=("openvino", "torch"), default="openvino")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--answers", default="")
    arguments = parser.parse_args()
    streams = {int(number) for number in arguments.answers.split(",") if number}
    rows = []
    with ExitStack() as stack:
        token = Path(stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".token")).name)
        token.write_text(secrets.token_hex())
        stack.enter_context(delaying(arguments.delay_ms / 1000))
        ports = [
            stack.enter_context(serving(label, arguments.model, arguments.runtime, token))
            for label in SERVERS
        ]
        for name, work in WORK.items():
            if streams and (work[0] not in streams or work[2] == 1):
                continue
            count = arguments.rounds + WARM
            rounds = [[rate(port, *work) for port in ports] for _ in range(count)][WARM:]
            rates = [f"{statistics.median(column):,.1f}" for column in zip(*rounds, strict=True)]
            shares = [[row[index] / (2 * row[0]) for row in rounds] for index in (1, 2)]
            gains = [groups / single for _, single, groups in rounds]
            rows.append([name, *rates, *map(compared, [*shares, gains])])
            print(*rows[-1], sep=" | ", flush=True)
    header = [f"tokens/s, {arguments.runtime}", *SERVERS]
    header += ["share of twice, one by one", "share of twice, in groups", "gain of groups"]
    print_table(header, rows)
    print_json("rank_machines", runtime=arguments.runtime, **{row[0]: row[1:] for row in rows})


if __name__ == "__main__":
    main()
