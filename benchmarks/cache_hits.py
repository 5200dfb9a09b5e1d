"""Cost of an answer from the cache: requests per second of hits beside those of a no-op.

`python -m benchmarks.cache_hits [--rounds 5] [--seconds 2]`

One server, whose method `noop` returns its input in a worker and has no cache, and whose method
`cached` takes 20 ms and has one.  The two run in turns, over 1 and 16 connections, with 16
float32 and with 60 KB of bytes as the input.  Each answer is compared with the right one.

Then, with a Valkey or Redis server of the system, requests of different contents go one after
another to `noop` and to `cached`, whose answers an earlier server has put into a store.
"""

import argparse
import base64
import json
import os
import shutil
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.request import Request, urlopen

from benchmarks.load import http_load
from benchmarks.prefix_cache_store import listens
from benchmarks.processes import free_ports, running
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


def store_ratio(directory: str, value: object, count: int) -> tuple[float, float]:
    """Return the median seconds of a no-op and of a hit in the store, over one connection."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        raise SystemExit("expected valkey-server or redis-server")
    (store,) = free_ports(1)
    command = [program, "--port", str(store), "--bind", "127.0.0.1", "--save", ""]
    values = [differing(value, number) for number in range(count)]
    with running("store", command, lambda: listens(store)):
        url = f"redis://127.0.0.1:{store}"
        for state in ("miss", "hit-store"):
            port = start(directory, cache_mb=64, cache_store=url, cache_store_timeout=1)
            while (
                b"serving_cache_store_total"
                not in urlopen(f"http://127.0.0.1:{port}/metrics").read()
            ):
                time.sleep(0.05)
            noop, hit = (times(port, method, values) for method in ("noop", "cached"))
            assert {header for _, header, _ in hit} == {state}
            assert [answer for *_, answer in hit] == [answer for *_, answer in noop]
            server.stop()  # writes what is queued
    return tuple(median(seconds for seconds, *_ in rows) for rows in (noop, hit))


def differing(value: object, number: int) -> object:
    """Return a value that another `number` does not have."""
    if isinstance(value, list):
        return [float(number), *value[1:]]
    data = base64.b64decode(value["b64"])
    return {"b64": base64.b64encode(number.to_bytes(4, "big") + data[4:]).decode()}


def times(port: int, method: str, values: list[object]) -> list[tuple[float, str | None, bytes]]:
    """Return the seconds of each request, the header x-cache of its answer, and its body."""
    connection, rows = HTTPConnection("127.0.0.1", port), []
    for value in values:
        body = json.dumps({"instances": [{"x": value}]})
        began = time.perf_counter()
        connection.request("POST", f"/model/toy:{method}", body)
        reply = connection.getresponse()
        answer = reply.read()
        assert reply.status == 200
        assert b"instances" in answer
        rows.append((time.perf_counter() - began, reply.headers["x-cache"], answer))
    connection.close()
    return rows


def start(directory: str, **options: object) -> int:
    """Start a server of the servable; return its port."""
    config = server.ServableStartConfig(directory, "toy", num_parallel_workers=1, **options)
    server.start_servables(config)
    (port,) = free_ports(1)
    server.start_restful_server(f"127.0.0.1:{port}")
    return port


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
        port = start(directory, cache_mb=64)
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
        pairs = [store_ratio(directory, value, 200) for value in values.values() for _ in range(3)]
    print_table(["input", "connections", "no-op", "hit", "hit / no-op"], rows)
    shown = {}
    for index, name in enumerate(values):
        noop, hit = (median(each) * 1e3 for each in zip(*pairs[3 * index :][:3], strict=True))
        shown[name] = [f"{noop:.2f} ms", f"{hit:.2f} ms", f"{noop / hit:.2f}"]
        ratios[f"{name}, store"] = round(noop / hit, 3)
    print_table(
        ["input", "no-op", "hit in the store", "no-op / hit"], [[n, *s] for n, s in shown.items()]
    )
    print_json("cache_hits", found=ratios)


if __name__ == "__main__":
    main()
