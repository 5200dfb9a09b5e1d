"""How far one server scales: a simulation from measured costs, and real runs that check it.

    python -m benchmarks.scale_simulation [--seconds 5] [--front-ends 1,2,4,8]
    python -m benchmarks.scale_simulation --fleet [--replicas 1000]

Measured: the processor time that the master takes for a request that shares no message with others;
a stage takes 20 ms, of sleep, so that the processors of this machine do not matter.  Simulated: as
many front ends and replicas, of which every request visits a front end, the dispatcher, and the
replica with the fewest requests; clients ask again when they are answered.  With one front end,
that and the dispatcher are one loop.  With more they are processes; what a request costs in them
and in the master is measured with two: on a machine of few cores that is all that can be.
Checked: 1, 2 and 4 replicas.

With --fleet: language models by several plans (which replica, a store of blocks, prefill and decode
apart), with what each costs.  See `fleet`, `fleet_checks` (costs and real runs) and `fleet_plans`.
"""

import argparse
import heapq
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import CONTENDERS, right_reply
from benchmarks.load import http_load
from benchmarks.processes import HERE, served
from benchmarks.report import print_json, print_table

STAGE = 0.02  # seconds, of slow_add_one
CLIENTS_PER_REPLICA = 4
REPLICAS = (1, 4, 10, 100, 1000)
CHECKED = (1, 2, 4)
BODY, REPLY = b'{"instances":[{"x":1}]}', b'{"instances":[{"y":2}]}'


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds per request."""

    front: float  # in a front end
    dispatch: float  # in the one dispatcher; 0 if that is in the front end's
    stage: float


class Station:
    """A server of one request at a time, in order of arrival."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.num_here = 0
        self._free_at = 0.0

    def enter(self, now: float) -> float:
        """When a request that comes `now` leaves."""
        self.num_here += 1
        self._free_at = max(now, self._free_at) + self.seconds
        return self._free_at


class Simulation:
    """`num_replicas` behind `num_front_ends`; with `lost` of them lost half-way."""

    def __init__(self, costs: Costs, num_front_ends: int, num_replicas: int, lost: int = 0) -> None:
        self._fronts = [Station(costs.front) for _ in range(num_front_ends)]
        self._dispatcher = Station(costs.dispatch)
        self._replicas = [Station(costs.stage) for _ in range(num_replicas)]
        self._loads = [(0, index) for index in range(num_replicas)]  # a heap, lazily right
        self._lost = lost
        self.num_again = 0  # requests that lost replicas had

    def run(self, seconds: float) -> list[float]:
        """The times at which requests were answered."""
        count = CLIENTS_PER_REPLICA * len(self._replicas)
        spread = STAGE / count
        events: list[tuple[float, int, int, int]] = [
            (number * spread, number, 0, -1) for number in range(count)
        ]  # (when, client, steps done, replica)
        heapq.heapify(events)
        answered, is_lost = [], False
        while events[0][0] < seconds:
            now, client, step, replica = heapq.heappop(events)
            if self._lost and not is_lost and now >= seconds / 2:
                is_lost = True
                gone, self._replicas = self._replicas[-self._lost :], self._replicas[: -self._lost]
                self.num_again = sum(one.num_here for one in gone)
            if step == 0:
                leaves = self._fronts[client % len(self._fronts)].enter(now)
            elif step == 1:
                leaves = self._dispatcher.enter(now)
            elif step == 2:
                replica = self._freest()
                leaves = self._replicas[replica].enter(now)
                heapq.heappush(self._loads, (self._replicas[replica].num_here, replica))
            elif replica >= len(self._replicas):
                heapq.heappush(events, (now, client, 2, -1))  # it is run again elsewhere
                continue
            else:
                self._replicas[replica].num_here -= 1
                heapq.heappush(self._loads, (self._replicas[replica].num_here, replica))
                answered.append(now)
                heapq.heappush(events, (now, client, 0, -1))
                continue
            heapq.heappush(events, (leaves, client, step + 1, replica))
        return answered

    def _freest(self) -> int:
        while True:
            load, index = heapq.heappop(self._loads)
            if index < len(self._replicas) and self._replicas[index].num_here == load:
                return index


def throughput(answered: list[float], start: float, end: float) -> float:
    return sum(start <= when < end for when in answered) / (end - start)


def predict(costs: Costs, num_front_ends: int, num_replicas: int) -> float:
    """Answers per second, once it has settled."""
    answered = Simulation(costs, num_front_ends, num_replicas).run(2.0)
    return throughput(answered, 1.0, 2.0)


def lose_a_tenth(costs: Costs, num_replicas: int) -> list[str]:
    """A row: what is left when a tenth of the replicas is lost, and what it costs."""
    lost = max(1, num_replicas // 10)
    simulation = Simulation(costs, 1, num_replicas, lost)
    answered = simulation.run(4.0)
    before, after = throughput(answered, 1.0, 2.0), throughput(answered, 3.0, 4.0)
    again = simulation.num_again
    return [f"{num_replicas:,}", f"{lost}", f"{before:,.0f}", f"{after:,.0f}", f"{again}"]


def serving(
    servable: str, num_replicas: int, num_front_ends: int = 1
) -> AbstractContextManager[tuple[int, int]]:
    """Serve a servable of the benchmarks: the port and the process id."""
    words = ["--num-parallel-workers", str(num_replicas), "--front-ends", str(num_front_ends)]
    return served(str(HERE / "servables" / servable), *words)


def measure_rate(num_replicas: int, seconds: int) -> float:
    """Answers per second of slow_add_one with as many replicas."""
    with serving("slow_add_one", num_replicas) as (port, _):
        url = f"http://127.0.0.1:{port}/model/slow_add_one:add_one"
        clients = CLIENTS_PER_REPLICA * num_replicas
        http_load(url, BODY, REPLY, clients, 1)
        load = http_load(url, BODY, REPLY, clients, seconds)
    if load.wrong:
        raise RuntimeError(f"{load.wrong} wrong replies per second")
    return load.rate


@dataclass(frozen=True, slots=True)
class Measured:
    """Processor seconds for a request, and answers per second."""

    master: float
    front_ends: float  # together; 0 without such processes
    rate: float


def measure(clients: int, seconds: int, num_front_ends: int = 1) -> Measured:
    """With so many clients, and one worker that only adds one."""
    ours = next(one for one in CONTENDERS if one.name == "ours JSON")
    with serving("add_one", 1, num_front_ends) as (port, pid):
        url, reply = f"http://127.0.0.1:{port}{ours.path}", right_reply(ours, port)
        assert reply is not None
        http_load(url, ours.body, reply, clients, 1)
        fronts = _front_ends(pid)
        before = _cpu_seconds(pid), sum(map(_cpu_seconds, fronts))
        load = http_load(url, ours.body, reply, clients, seconds)
        count = load.rate * seconds
        master = (_cpu_seconds(pid) - before[0]) / count
        return Measured(master, (sum(map(_cpu_seconds, fronts)) - before[1]) / count, load.rate)


def _front_ends(pid: int) -> list[int]:
    """The processes of the server `pid` that are front ends."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for one in tasks for child in one.read_text().split()]
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in found}
    return [child for child, command in commands.items() if b"server.processes" in command]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show_costs(seconds: int) -> list[Measured]:
    """What a request that comes alone costs with one front end and with two, measured in turns."""
    found, rows = [], []
    for clients in (1, 64):
        for num_front_ends in (1, 2):
            one = measure(clients, seconds, num_front_ends)
            found.append(one)
            micros = 1e6 * one.master, 1e6 * one.front_ends
            print_json(
                "scale_costs",
                clients=clients,
                front_ends=num_front_ends,
                master_us=micros[0],
                front_end_us=micros[1],
                rate=one.rate,
            )
            shown = f"{micros[0]:.0f}", f"{micros[1]:.0f}", f"{one.rate:,.0f}"
            rows.append([f"{clients}", f"{num_front_ends}", *shown])
    print_table(["clients", "front ends", "master us", "front end us", "measured/s"], rows)
    print("what a request costs that comes alone, with one client, is what is simulated")
    return found[:2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=5, help="of each real run")
    parser.add_argument("--front-ends", type=lambda t: [int(x) for x in t.split(",")])
    parser.add_argument("--fleet", action="store_true", help="language models, by plan")
    parser.add_argument("--replicas", type=int, default=1000, help="of --fleet")
    options = parser.parse_args()
    if options.fleet:
        from benchmarks import fleet_checks, fleet_plans  # they need a model

        fleet_plans.show(fleet_checks.run_all(), options.replicas, 30.0)
        return
    alone = show_costs(options.seconds)
    one_loop = Costs(alone[0].master, 0.0, STAGE)
    rows = []
    for number in CHECKED:
        predicted, found = predict(one_loop, 1, number), measure_rate(number, options.seconds)
        print_json("scale_check", replicas=number, predicted=predicted, measured=found)
        rows.append([f"{number}", f"{predicted:,.0f}", f"{found:,.0f}", f"{found / predicted:.2f}"])
    print_table(["replicas", "predicted/s", "measured/s", "of it"], rows)
    rows = []
    for front_ends in options.front_ends or (1, 2, 4, 8):
        costs = one_loop
        if front_ends > 1:
            costs = Costs(alone[1].front_ends, alone[1].master, STAGE)
        rates = [predict(costs, front_ends, number) for number in REPLICAS]
        print_json("scale", front_ends=front_ends, rates=dict(zip(REPLICAS, rates, strict=True)))
        rows.append([f"{front_ends}", *(f"{rate:,.0f}" for rate in rates)])
    print_table(["front ends", *(f"{number:,} replicas" for number in REPLICAS)], rows)
    lost = [lose_a_tenth(one_loop, number) for number in (10, 100, 1000)]
    print_table(["replicas", "lost", "before/s", "after/s", "run again"], lost)


if __name__ == "__main__":
    main()
