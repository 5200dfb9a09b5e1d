"""Seconds from starting the process to the first right answer of a Python function over REST.

`python -m benchmarks.start_time [--rounds N]`

The servable is add_one; the answer is asked for every 10 ms.
"""

import argparse
from statistics import median

from benchmarks.contenders import CONTENDERS, SERVERS, right_reply
from benchmarks.processes import free_ports, running
from benchmarks.report import print_json, print_table

CONTENDER = next(each for each in CONTENDERS if each.name == "ours JSON")


def start() -> float:
    server = SERVERS[CONTENDER.server]
    ports = free_ports(server.ports)

    def ready() -> bool:
        return right_reply(CONTENDER, ports[CONTENDER.port]) is not None

    with running("start_time", server.command(ports), ready) as seconds:
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start_time")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found = [start() for _ in range(rounds)]
    typical = {"median": median(found), "best": min(found), "worst": max(found)}
    print_table(
        ["start to first answer", *typical],
        [["seconds", *(f"{value:.2f}" for value in typical.values())]],
    )
    print_json("start_time", rounds=rounds, **typical)


if __name__ == "__main__":
    main()
