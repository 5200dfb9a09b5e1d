"""Load from outside the interpreter: wrk for HTTP, h2load for gRPC; every wrong reply is counted.

Both are Debian packages (wrk, nghttp2-client).  Knows nothing of the servers.
"""

import json
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

WRK_SCRIPT = Path(__file__).with_name("post.lua")


@dataclass(frozen=True, slots=True)
class Load:
    """Result of a run: right and wrong replies per second together, latencies in milliseconds.

    `server_us` are the microseconds of the processors that the server took for a reply, if known.
    """

    rate: float
    p50: float
    p99: float
    wrong: int
    server_us: float = 0.0


def http_load(url: str, body: bytes, reply: bytes, connections: int, seconds: int) -> Load:
    """POST `body` over `connections` connections, one request at a time on each.

    A reply is wrong if its status is not 200 or its body is not `reply`, byte for byte; so is a
    request that met a socket error or a timeout.
    """
    with tempfile.TemporaryDirectory() as folder:
        body_file, reply_file = Path(folder, "body"), Path(folder, "reply")
        body_file.write_bytes(body)
        reply_file.write_bytes(reply)
        command = [_tool("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(WRK_SCRIPT)]
        output = _run([*command, url, "--", str(body_file), str(reply_file)])
    found = json.loads(output.splitlines()[-1])
    return Load(found["rate"], found["p50_us"] / 1e3, found["p99_us"] / 1e3, found["wrong"])


def frame(message: bytes) -> bytes:
    """A message as gRPC sends it: not compressed, its length, itself."""
    return struct.pack(">BI", 0, len(message)) + message


def grpc_load(url: str, body: bytes, reply: bytes, concurrency: int, seconds: int) -> Load:
    """Call with message `body`, `concurrency` calls at a time, on one HTTP/2 connection.

    A right reply carries one framed message as long as `reply`; a failed call carries none.
    h2load does not show bodies, so wrong replies are found in the count of data bytes: any
    difference makes at least one wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        body_file, log = Path(folder, "body"), Path(folder, "log")
        body_file.write_bytes(frame(body))
        command = [_tool("h2load"), "-t1", "-c1", f"-m{concurrency}", f"-D{seconds}"]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        output = _run([*command, f"--log-file={log}", "-d", str(body_file), url])
        latencies = sorted(int(line.split(b"\t")[2]) for line in log.read_bytes().splitlines())
    done = _number(r"(\d+) done", output)
    failed = done - _number(r"(\d+) 2xx", output) + _number(r"(\d+) errored", output)
    data = _number(r"\((\d+)\) data", output)
    missing = abs(done * len(frame(reply)) - data)
    wrong = failed + -(-missing // len(frame(reply)))
    p50, p99 = (latencies[int(len(latencies) * q)] / 1e3 for q in (0.50, 0.99))
    return Load(len(latencies) / seconds, p50, p99, wrong)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"h2load printed nothing like {pattern!r}:\n{text}")
    return int(found[1])


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"{name} is not installed (Debian: apt-get install wrk nghttp2-client)")
    return path


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
