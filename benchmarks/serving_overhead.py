"""What the server itself costs: requests per second and latency of adding one to 16 float32.

`python -m benchmarks.serving_overhead [--rounds N] [--seconds N] [--only NAME,NAME]`

Each server runs alone on 127.0.0.1, with the load generator beside it.  A round measures every
contender at 1, 16 and 64 requests in flight (HTTP: that many connections; gRPC: that many calls on
one connection); rounds are interleaved and start at another contender each time.  Shown are medians
over the rounds.  `us` are the microseconds of the processors that all processes of a server took
for a request, which other programs on the machine disturb less than rates.  `ours/it` is how many
times as many requests ours answered in the same round: over HTTP "ours JSON", over gRPC "ours
gRPC".
"""

import argparse
from collections import defaultdict
from dataclasses import asdict, replace
from statistics import median

from benchmarks.contenders import CONTENDERS, SERVERS, Contender, right_reply
from benchmarks.load import Load, grpc_load, http_load
from benchmarks.processes import free_ports, running
from benchmarks.processor_time import server_time
from benchmarks.report import print_json, print_table

IN_FLIGHT = (1, 16, 64)
OURS = {"http": "ours JSON", "grpc": "ours gRPC"}
Found = dict[tuple[str, int], list[Load]]


def measure(contender: Contender, seconds: int) -> list[Load]:
    """Start the contender's server, measure it at each of IN_FLIGHT, end it."""
    server = SERVERS[contender.server]
    ports = free_ports(server.ports)
    port = ports[contender.port]
    load = http_load if contender.protocol == "http" else grpc_load
    url = f"http://127.0.0.1:{port}{contender.path}"

    def ready() -> bool:
        return right_reply(contender, port) is not None

    with running(contender.name.replace(" ", "_"), server.command(ports), ready):
        reply = right_reply(contender, port)
        assert reply is not None
        load(url, contender.body, reply, 16, 1)  # warms up
        loads = []
        for count in IN_FLIGHT:
            before = server_time()
            measured = load(url, contender.body, reply, count, seconds)
            spent = (server_time() - before) / (measured.rate * seconds)
            loads.append(replace(measured, server_us=spent * 1e6))
        return loads


def run_rounds(contenders: list[Contender], rounds: int, seconds: int) -> Found:
    found: Found = defaultdict(list)
    for number in range(rounds):
        start = number % len(contenders)
        for contender in contenders[start:] + contenders[:start]:
            for count, one in zip(IN_FLIGHT, measure(contender, seconds), strict=True):
                found[contender.name, count].append(one)
                print(
                    f"round {number + 1}: {contender.name} x{count}: {one.rate:,.0f}/s", flush=True
                )
    return found


def typical(loads: list[Load]) -> Load:
    """The median of each figure; wrong replies are added up."""
    return Load(
        median(one.rate for one in loads),
        median(one.p50 for one in loads),
        median(one.p99 for one in loads),
        sum(one.wrong for one in loads),
        median(one.server_us for one in loads),
    )


def ratio(found: Found, contender: Contender, count: int) -> float | None:
    """How many times ours is as fast, the median over the rounds; None if ours was not measured."""
    ours = found.get((OURS[contender.protocol], count))
    if ours is None:
        return None
    theirs = found[contender.name, count]
    return median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))


def row(found: Found, contender: Contender) -> list[str]:
    cells = [contender.name]
    for count in IN_FLIGHT:
        one = typical(found[contender.name, count])
        times = ratio(found, contender, count)
        cells += [f"{one.rate:,.0f}", f"{one.p50:.2f}", f"{one.p99:.2f}"]
        cells.append(f"{one.server_us:.0f}")
        cells += ["-" if times is None else f"{times:.2f}", str(one.wrong)]
    return cells


def selected(only: str) -> list[Contender]:
    """The contenders that one of the comma-separated names is part of, in whatever case."""
    names = [name.strip().lower() for name in only.split(",")]
    found = [each for each in CONTENDERS if any(name in each.name.lower() for name in names)]
    if not found:
        raise SystemExit(f"--only {only}: none of {', '.join(each.name for each in CONTENDERS)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_overhead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement")
    parser.add_argument("--only", default="", help="parts of names, with commas between")
    arguments = parser.parse_args()
    contenders = selected(arguments.only)
    found = run_rounds(contenders, arguments.rounds, arguments.seconds)
    header = ["in flight"]
    for count in IN_FLIGHT:
        header += [f"x{count} req/s", "p50 ms", "p99 ms", "us", "ours/it", "wrong"]
    print()
    print_table(header, [row(found, contender) for contender in contenders])
    results = [
        {"name": each.name, "in_flight": count, **asdict(typical(found[each.name, count]))}
        | {"ours_over_it": ratio(found, each, count)}
        for each in contenders
        for count in IN_FLIGHT
    ]
    print_json(
        "serving_overhead", rounds=arguments.rounds, seconds=arguments.seconds, results=results
    )


if __name__ == "__main__":
    main()
