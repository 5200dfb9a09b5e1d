"""Language models without a server: how long one waits for the start and for tokens, and memory.

`python -m benchmarks.llm_latency [--quick] [--rounds N] [--only ours,genai] [--form float,int8]`

Requests with the alpaca lengths arrive at random (Poisson), the same for every engine, whether or
not it keeps up.  Shown are medians over the rounds, each in new processes: milliseconds to the
first token and from token to token, for half of the requests and for all but one in a hundred;
seconds from starting the process to the first token, the file being in the page cache; and the
memory that the process has for itself (mapped files excepted) after all that, as a multiple of what
the weights take in the file and the keys and values of the requests in 16 bits.
"""

import argparse
from pathlib import Path

from benchmarks import llm_figures as figures
from benchmarks import llm_workloads as workloads
from benchmarks.llm_contenders import FORMS, Contender, chosen
from benchmarks.llm_model import key_value_bytes, model
from benchmarks.llm_process import Process, running
from benchmarks.llm_tables import Found, table
from benchmarks.processes import end_on_sigterm
from benchmarks.report import print_json, print_table

RATES = (0.5, 1.5)  # requests per second
SECONDS = 40.0
START, MEMORY = "start, s", "memory, x"
KINDS = {
    "first_p50": "first p50, ms",
    "first_p99": "p99",
    "token_p50": "next p50, ms",
    "token_p99": "p99 ",
}


def names(rates: tuple[float, ...]) -> list[str]:
    """Of what is measured, in order."""
    return [START, MEMORY, *(_name(rate, kind) for rate in rates for kind in KINDS)]


def _name(rate: float, kind: str) -> str:
    return f"{rate:g}/s {KINDS[kind]}"


def latencies(process: Process, rate: float, seconds: float, seed: int) -> dict[str, float]:
    """What `figures.latencies` has, in milliseconds, under a column's name."""
    task = workloads.poisson(rate, seconds, seed)
    reply = process.ask(task)
    wanted = [talk["turns"][0][1] for talk in task["conversations"]]
    found = figures.latencies(reply, wanted)
    return {_name(rate, kind): 1000 * found[kind] for kind in KINDS}


def start_seconds(process: Process, seed: int) -> float:
    """From the start of the process to the first token of a short prompt."""
    ((turn,),) = process.ask(workloads.one(seed))["turns"]
    first_token: float = turn[2]
    return process.started + first_token


def memory_share(process: Process, num_tokens: int) -> float:
    """Own bytes of the process for each of its weights and of the keys and values it computed."""
    own: int = process.ask(workloads.one(0))["memory"]["own"]
    return own / (file_bytes(process.contender) + num_tokens * key_value_bytes())


def file_bytes(contender: Contender) -> int:
    """What the weights take where `contender` loads them from."""
    path = model(contender.engine, contender.form)
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*model.bin")]
    return sum(file.stat().st_size for file in files)


def num_tokens(rates: tuple[float, ...], seconds: float, seed: int) -> int:
    """Of all prompts and answers of a round."""
    tasks = [workloads.poisson(rate, seconds, seed) for rate in rates]
    turns = [turn for task in tasks for talk in task["conversations"] for turn in talk["turns"]]
    return sum(len(prompt) + answer for prompt, answer in turns)


def measure(
    contenders: list[Contender], rates: tuple[float, ...], rounds: int, lock: Path | None
) -> Found:
    found: Found = {each.name: {name: [] for name in names(rates)} for each in contenders}
    for number in range(rounds):
        for form in FORMS:
            alike = [each for each in contenders if each.form == form]
            turn = number % max(1, len(alike))
            with running(alike[turn:] + alike[:turn], lock) as processes:
                _round(processes, rates, number, found)
    return found


def _round(processes: list[Process], rates: tuple[float, ...], number: int, found: Found) -> None:
    for process in processes:
        _add(process, {START: start_seconds(process, number)}, found)
        process.ask(workloads.warm_up(number))
    for rate in rates:
        for process in processes:
            _add(process, latencies(process, rate, SECONDS, number), found)
    for process in processes:
        _add(process, {MEMORY: memory_share(process, num_tokens(rates, SECONDS, number))}, found)


def _add(process: Process, values: dict[str, float], found: Found) -> None:
    for name, value in values.items():
        found[process.contender.name][name].append(value)
        print(f"{process.contender.name}, {name}: {value:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_latency")
    parser.add_argument("--quick", action="store_true", help="one round at one rate: minutes")
    parser.add_argument("--rounds", type=int, help="3, with --quick 1")
    parser.add_argument("--only", default="", help="engines, by commas")
    parser.add_argument("--form", default="float,int8", help="float, int8, int4, by commas")
    parser.add_argument("--lock", type=Path, help="a file whose lock is held while measuring")
    given = parser.parse_args()
    rates = RATES[:1] if given.quick else RATES
    rounds = given.rounds or (1 if given.quick else 3)
    contenders = [each for each in chosen(given.only, given.form) if not each.is_static]
    end_on_sigterm()
    found = measure(contenders, rates, rounds, given.lock)
    print()
    columns = dict.fromkeys(names(rates), False)
    print_table(["engine", *columns], table(contenders, columns, found))
    print_json("llm_latency", rounds=rounds, seconds=SECONDS, found=found)


if __name__ == "__main__":
    main()
