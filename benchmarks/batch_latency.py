"""Time to the first token of single requests, without and beside a batch that runs.

    python -m benchmarks.batch_latency [--model DIRECTORY] [--requests 20] [--rounds 3]

Both are measured in turns on one server: requests alone, then as many while a batch has work.
"""

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from typing import Any

from benchmarks.processes import running

PORT = 18_480
LINES = 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="examples/tiny_llm/model")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=int, default=80, help="of the prompt of a single request")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "mindspore_serving", "serve", options.model]
        command += ["--name", "model", "--state", directory, "--no-grpc", "--http-port", str(PORT)]
        with running("batch_latency", command, _is_ready):
            for _ in range(options.rounds):
                alone = _measure(options.requests, options.words)
                batch = _start_batch()
                beside = _measure(options.requests, options.words)
                counts = _call("GET", f"/v1/batches/{batch}")["request_counts"]
                _call("POST", f"/v1/batches/{batch}/cancel")
                _wait_for_end(batch)
                ratio = statistics.median(beside) / statistics.median(alone)
                print(
                    f"alone {_shown(alone)}; beside a batch {_shown(beside)}; ratio {ratio:.3f}; "
                    f"{counts['completed']} of {counts['total']} lines done meanwhile",
                    flush=True,
                )


def _shown(seconds: list[float]) -> str:
    deciles = statistics.quantiles(seconds, n=10)
    return f"median {statistics.median(seconds) * 1e3:.1f} ms, 90 % {deciles[-1] * 1e3:.1f} ms"


def _measure(count: int, num_words: int) -> list[float]:
    """Return the seconds to the first token of requests one after another."""
    measured = []
    for number in range(count):
        prompt = f"{time.time()} " + " ".join(f"word{number + i}" for i in range(num_words))
        body = {"model": "model", "prompt": prompt, "max_tokens": 4, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        line = response.readline()
        assert response.status == 200, line
        measured.append(time.perf_counter() - began)
        response.read()
        connection.close()
        time.sleep(0.1)  # steps of the batch begin meanwhile
    return measured


def _start_batch() -> str:
    """Start a batch that does not end during the measurement, and wait until it runs."""
    lines = (
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"Story {number}. " + "Once upon a time " * 8, "max_tokens": 128},
        }
        for number in range(LINES)
    )
    content = "\n".join(map(json.dumps, lines))
    form = (
        '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        f"{content}\r\n--b--\r\n"
    )
    file = _call("POST", "/v1/files", form, "multipart/form-data; boundary=b")["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = _call("POST", "/v1/batches", json.dumps(body))
    while batch["status"] == "validating" or not batch["request_counts"]["completed"]:
        time.sleep(0.1)
        batch = _call("GET", f"/v1/batches/{batch['id']}")
    return str(batch["id"])


def _wait_for_end(batch: str) -> None:
    while _call("GET", f"/v1/batches/{batch}")["status"] in ("in_progress", "cancelling"):
        time.sleep(0.1)


def _call(verb: str, path: str, body: str | None = None, kind: str = "application/json") -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    try:
        connection.request(verb, path, body, {"Content-Type": kind})
        response = connection.getresponse()
        found = json.loads(response.read())
        assert response.status == 200, found
        return found
    finally:
        connection.close()


def _is_ready() -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main()
