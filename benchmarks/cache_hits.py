"""Cost of an answer from the cache: requests per second of hits beside those of a no-op.

`python -m benchmarks.cache_hits [--rounds 5] [--seconds 2]`

One server, whose method `noop` returns its input in a worker and has no cache, and whose method
`cached` takes 20 ms and has one.  The two run in turns, over 1 and 16 connections, with 16
float32 and with 60 KB of bytes as the input.  Each answer is compared with the right one.
"""

import argparse
import base64
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

from benchmarks.load import http_load
from benchmarks.processes import free_ports
from benchmarks.report import print_json, print_table
from mindspore_serving import server

CONNECTIONS = (1, 16)
SOURCE = """
import time
from mindspore_serving.server import register

def wait(x):
    time.sleep(0.02)
    return x

def same(x):
    return x

@register.register_method(output_names=["y"], cache=False)
def noop(x):
    return register.add_stage(same, x, outputs_count=1)

@register.register_method(output_names=["y"])
def cached(x):
    return register.add_stage(wait, x, outputs_count=1)
"""


def measure(port: int, method: str, value: object, connections: int, seconds: int) -> float:
    """Return the requests per second."""
    url, body = f"http://127.0.0.1:{port}/model/toy:", json.dumps({"instances": [{"x": value}]})
    with urlopen(Request(f"{url}noop", body.encode())) as answer:
        reply = answer.read()
    load = http_load(f"{url}{method}", body.encode(), reply, connections, seconds)
    assert not load.wrong, f"{method}: {load.wrong} wrong answers"
    return load.rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    options = parser.parse_args()
    values = {
        "16 float32": [index + 0.5 for index in range(16)],
        "60 KB": {"b64": base64.b64encode(os.urandom(60_000)).decode()},
    }
    rows, ratios = [], {}
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "toy").mkdir()
        (Path(directory) / "toy" / "servable_config.py").write_text(SOURCE)
        config = server.ServableStartConfig(directory, "toy", num_parallel_workers=1, cache_mb=64)
        server.start_servables(config)
        (port,) = free_ports(1)
        server.start_restful_server(f"127.0.0.1:{port}")
        for name, value in values.items():
            for count in CONNECTIONS:
                rates: dict[str, list[float]] = {"noop": [], "cached": []}
                for number in range(options.rounds):
                    for method in sorted(rates, reverse=number % 2 == 0):
                        rate = measure(port, method, value, count, options.seconds)
                        rates[method].append(rate)
                pairs = zip(rates["cached"], rates["noop"], strict=True)
                ratio = median(cached / noop for cached, noop in pairs)
                typical = [f"{median(rates[method]):,.0f}/s" for method in ("noop", "cached")]
                rows.append([name, str(count), *typical, f"{ratio:.2f}"])
                ratios[f"{name}, {count}"] = round(ratio, 3)
        server.stop()
    print_table(["input", "connections", "no-op", "hit", "hit / no-op"], rows)
    print_json("cache_hits", found=ratios)


if __name__ == "__main__":
    main()
