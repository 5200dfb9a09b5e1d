"""Requests per second of a pipeline of three servables, beside one servable with the same stages.

`python -m benchmarks.pipelines [--rounds N] [--seconds N] [--products 0,20,100]`

A stage multiplies the vectors of a batch (at most 16) with a matrix of 256 x 256 float32, as often
as `--products` says.  Both methods answer in one server, in turns, by 1 and 16 connections of wrk;
each process computes on one thread.  The ratio is pipeline / servable: median, least and greatest
of the rounds.
"""

import argparse
import http.client
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.load import http_load
from benchmarks.processes import free_ports, running
from benchmarks.report import print_json, print_table

CONNECTIONS = (1, 16)
STAGE = """
import os
import numpy as np
from mindspore_serving.server import register

matrix = np.eye(256, dtype=np.float32)


def product(instances):
    x = np.stack([x for (x,) in instances])
    for _ in range({products}):
        x = x @ matrix
    yield from x + 1
"""
METHOD = """

@register.register_method(output_names=["y"])
def run(x):
    return register.add_stage(product, x, outputs_count=1, batch_size=16)
"""
WHOLE = """

def again(instances):
    yield from product(instances)


def at_last(instances):
    yield from product(instances)


@register.register_method(output_names=["y"])
def run(x):
    for stage in (product, again, at_last):
        x = register.add_stage(stage, x, outputs_count=1, batch_size=16)
    return x
"""
CHAIN = """
from mindspore_serving.server import register


@register.register_method(output_names=["y"])
def run(x):
    for name in ("first", "second", "third"):
        x = register.add_stage(register.method(f"{name}.run"), x, outputs_count=1)
    return x
"""


def write_servables(directory: Path, products: int) -> list[str]:
    """Write the servables, and return their paths."""
    stage = STAGE.format(products=products)
    sources = dict.fromkeys(("first", "second", "third"), stage + METHOD)
    sources |= {"whole": stage + WHOLE, "chain": CHAIN}
    for name, source in sources.items():
        (directory / name).mkdir()
        (directory / name / "servable_config.py").write_text(source)
    return [str(directory / name) for name in sources]


def answer(port: int, servable: str, body: bytes) -> bytes:
    """Return the answer of a method."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", f"/model/{servable}:run", body)
    return connection.getresponse().read()


def measure(products: int, rounds: int, seconds: int) -> list[tuple[int, float, list[float]]]:
    """Return connections, the servable's rate, and the ratios of the rounds."""
    body = json.dumps({"instances": [{"x": [0.5] * 256}]}).encode()
    with tempfile.TemporaryDirectory() as folder:
        paths = write_servables(Path(folder), products)
        port, grpc = free_ports(2)
        ports = ["--http-port", str(port), "--grpc-port", str(grpc)]
        serve = [sys.executable, "-m", "mindspore_serving", "serve", *paths, *ports]

        def ready() -> bool:
            return b"3.5" in answer(port, "chain", body)

        measured = []
        command = ["env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", *serve]
        with running("pipelines", command, ready):
            for connections in CONNECTIONS:
                rates: dict[str, list[float]] = {"chain": [], "whole": []}
                for number in range(rounds):
                    for name in sorted(rates, reverse=number % 2 == 1):
                        url = f"http://127.0.0.1:{port}/model/{name}:run"
                        reply = answer(port, name, body)
                        load = http_load(url, body, reply, connections, seconds)
                        assert not load.wrong, f"{load.wrong} wrong replies of {name}"
                        rates[name].append(load.rate)
                pairs = zip(rates["chain"], rates["whole"], strict=True)
                ratios = [chain / whole for chain, whole in pairs]
                measured.append((connections, median(rates["whole"]), ratios))
        return measured


def main() -> None:
    formatter = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--products", default="0,20,100")
    options = parser.parse_args()
    rows, results = [], []
    for products in map(int, options.products.split(",")):
        for connections, rate, ratios in measure(products, options.rounds, options.seconds):
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            rows.append([f"{products} products", str(connections), f"{rate:,.0f}", spread])
            results.append(
                {"products": products, "connections": connections, "rate": rate, "ratios": ratios}
            )
            print(*rows[-1], flush=True)
    print_table(["stage", "connections", "requests/s of one servable", "ratio"], rows)
    print_json("pipelines", results=results)


if __name__ == "__main__":
    main()
