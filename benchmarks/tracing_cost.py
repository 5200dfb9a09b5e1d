"""What traces cost: requests per second and CPU time per request of adding one to 16 float32.

`python -m benchmarks.tracing_cost [--rounds N] [--seconds N] [--against CHECKOUT]`

The same server with traces off, on for none of the requests, for 1 % and for all, each sent to a
collector that forgets them; with --against also that of another checkout of this repository, which
must have no traces on.  They run in turns, each alone but for wrk.  CPU time is that of all the
processes of the server, user and system: it says more than rates where something else runs too.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.contenders import CONTENDERS, right_reply
from benchmarks.load import http_load
from benchmarks.processes import HERE, ROOT, free_ports, running
from benchmarks.report import print_json, print_table

CONNECTIONS = (1, 16)
MODES = {"off": None, "on, 0 %": "0", "on, 1 %": "0.01", "on, all": "1"}
(OURS,) = [one for one in CONTENDERS if one.name == "ours JSON"]
_TICK = 1e6 / os.sysconf("SC_CLK_TCK")  # microseconds


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests per second, and microseconds of the processors for each."""

    rate: float
    cpu: float


def command(checkout: Path, ports: list[int], ratio: str | None, sink: int) -> list[str]:
    url = f"http://127.0.0.1:{sink}"
    variables = [] if ratio is None else [f"TRACE_URL={url}", f"TRACE_RATIO={ratio}"]
    program = [sys.executable, "-m", "benchmarks.servers.ours", "add_one", *map(str, ports)]
    return ["env", "-C", str(checkout), f"PYTHONPATH={checkout}", *variables, *program]


def cpu_time(port: int) -> float:
    """Microseconds that the processes of the server on `port` have had so far."""
    stats = []
    session = ""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            stats.append(fields)
            if b"benchmarks.servers.ours" in words and str(port).encode() in words:
                session = fields[3]
    mine = [fields for fields in stats if fields[3] == session]
    return sum(int(fields[11]) + int(fields[12]) for fields in mine) * _TICK


def measure(name: str, checkout: Path, ratio: str | None, seconds: int, sink: int) -> list[Cost]:
    ports = free_ports(2)
    url = f"http://127.0.0.1:{ports[0]}{OURS.path}"
    found = []
    with running(
        f"tracing_{name}".replace(" ", "_"),
        command(checkout, ports, ratio, sink),
        lambda: right_reply(OURS, ports[0]) is not None,
    ):
        reply = right_reply(OURS, ports[0])
        assert reply is not None
        http_load(url, OURS.body, reply, 16, 1)  # warms up
        for count in CONNECTIONS:
            before = cpu_time(ports[0])
            load = http_load(url, OURS.body, reply, count, seconds)
            assert not load.wrong
            spent = cpu_time(ports[0]) - before
            found.append(Cost(load.rate, spent / (load.rate * seconds)))
    return found


def _typical(costs: Sequence[Cost]) -> str:
    rate, cpu = median(one.rate for one in costs), median(one.cpu for one in costs)
    return f"{rate:,.0f}/s, {cpu:.0f} us"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    contenders = {name: (ROOT, ratio) for name, ratio in MODES.items()}
    if options.against is not None:
        contenders = {"before": (options.against.resolve(), None), **contenders}
    (sink,) = free_ports(1)
    found: dict[str, list[list[Cost]]] = defaultdict(list)
    script = HERE / "servers" / "otlp_sink.py"
    with running("otlp_sink", [sys.executable, str(script), str(sink)], lambda: True):
        for number in range(options.rounds):
            names = list(contenders)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                found[name].append(measure(name, *contenders[name], options.seconds, sink))
    rows = {}
    for name, rounds in found.items():
        columns = zip(*rounds, strict=True)
        rows[name] = [_typical(column) for column in columns]
    header = ["traces", *(f"{count} connections" for count in CONNECTIONS)]
    print_table(header, [[name, *cells] for name, cells in rows.items()])
    print_json("tracing_cost", found=rows)


if __name__ == "__main__":
    main()
