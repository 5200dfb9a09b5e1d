"""Fairness between keys: how long a light key waits while a heavy key floods one server.

    python -m benchmarks.fair_keys [--heavy 48] [--requests 20]

A small random model runs 2 requests at a time.  The light key sends one request after another,
first alone, then beside clients of a heavy key that send without a pause; the same is done with the
heavy key for all, so that requests are served in the order of their arrival.  The ratios of
medians depend little on the load of the machine, as all cases run in one server, in turns.
"""

import argparse
import http.client
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

from tests.e2e.harness import Calls, config, serving
from tests.llm import chatty

KEYS = {"light": "key-of-the-light-client", "heavy": "key-of-heavy-clients"}
BODY = json.dumps(
    {"model": "chatty", "prompt": "def build(directory)", "max_tokens": 24, "ignore_eos": True}
)


def send(calls: Calls, key: str) -> float:
    """Return the seconds of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", calls.http, timeout=600)
    started = time.perf_counter()
    try:
        headers = {"authorization": f"Bearer {KEYS[key]}"}
        connection.request("POST", "/v1/completions", BODY, headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 200, response.status
    finally:
        connection.close()
    return time.perf_counter() - started


def measure(calls: Calls, key: str, num_heavy: int, num_requests: int) -> tuple[float, float]:
    """Return the median seconds of requests with `key`, and requests per second of the others."""
    is_over, counts = threading.Event(), [0] * num_heavy

    def flood(index: int) -> None:
        while not is_over.is_set():
            send(calls, "heavy")
            counts[index] += 1

    threads = [threading.Thread(target=flood, args=(index,)) for index in range(num_heavy)]
    for thread in threads:
        thread.start()
    while num_heavy and sum(counts) < num_heavy // 2:
        time.sleep(0.01)
    before, started = sum(counts), time.perf_counter()
    seconds = [send(calls, key) for _ in range(num_requests)]
    rate = (sum(counts) - before) / (time.perf_counter() - started)
    is_over.set()
    for thread in threads:
        thread.join()
    return statistics.median(seconds), rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heavy", type=int, default=48, help="clients of the heavy key")
    parser.add_argument("--requests", type=int, default=20, help="requests in each of three rounds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        chatty.build(place)
        options = {"dtype": "f32", "kv_cache_memory": 32 << 20, "max_num_seqs": 2}
        servable = config(place, "chatty", llm_options=options)
        with serving(place, servable, api_keys=list(KEYS.values())) as calls:
            rows: dict[str, list[tuple[float, float]]] = {}
            for _ in range(3):
                for case, key, heavy in (
                    ("alone", "light", 0),
                    ("beside the heavy key", "light", arguments.heavy),
                    ("with the heavy key", "heavy", arguments.heavy),
                ):
                    result = measure(calls, key, heavy, arguments.requests)
                    rows.setdefault(case, []).append(result)
    alone = statistics.median(seconds for seconds, _ in rows["alone"])
    for case, results in rows.items():
        seconds = statistics.median(row[0] for row in results)
        rate = statistics.median(row[1] for row in results)
        print(f"{case}: {1000 * seconds:.0f} ms ({seconds / alone:.1f}), others {rate:.0f}/s")


if __name__ == "__main__":
    main()
