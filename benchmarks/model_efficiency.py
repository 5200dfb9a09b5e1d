"""How much of a backend's speed is left through the server: ResNet-50 over gRPC.

`python -m benchmarks.model_efficiency [--format FORMATS] [--rounds N] [--seconds N]`

FORMATS are names of `models.BACKENDS`; all by default.

The direct loop is the same backend on the same file in a process of its own, called with a ready
array again and again.  Through the server, one client of this process sends one request after
another, of as many instances as the batch, and waits for each answer.  The two, and the formats,
alternate within a round, and what is at rest only waits.  Shown are medians over the rounds of
images per second, and of the ratio server/direct in the same round.  Before anything is measured,
the answers of the two must be equal to within 1e-4 of the largest logit.
"""

import argparse
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

from benchmarks.contenders import ours
from benchmarks.models import BACKENDS, config_of, path_of
from benchmarks.processes import ROOT, free_ports, running
from benchmarks.report import print_json, print_table

BATCHES = (1, 8, 32)
Array = np.ndarray[Any, Any]
Run = Callable[[Array], Array]


def images(batch: int) -> Array:
    """float32 (batch, 3, 224, 224), the same each time."""
    return np.random.default_rng(batch).standard_normal((batch, 3, 224, 224), np.float32)


def rate(run: Run, batch: int, seconds: float) -> float:
    """Images per second of calling `run` for at least `seconds` and at least twice."""
    inputs = images(batch)
    calls, started = 0, time.perf_counter()
    while calls < 2 or time.perf_counter() - started < seconds:
        run(inputs)
        calls += 1
    return calls * batch / (time.perf_counter() - started)


def direct_loop(model_format: str, pipe: Connection) -> None:
    """The other process: load, then answer (batch, seconds) with a rate, or (batch, 0) with logits.

    Ends at None.
    """
    from mindspore_serving.backends.base import ModelSource
    from mindspore_serving.backends.formats import open_backend
    from mindspore_serving.core.declaration import DeclaredModel

    path, config = path_of(model_format), config_of(model_format)
    spec = DeclaredModel(key="resnet50", format=BACKENDS[model_format].name, files=(path.name,))
    source = ModelSource(spec, (str(path),), config_file=str(config) if config else None)
    backend = open_backend(source)

    def run(inputs: Array) -> Array:
        return backend.run([inputs])[0]

    while (task := pipe.recv()) is not None:
        batch, seconds = task
        pipe.send(rate(run, batch, seconds) if seconds else np.array(run(images(batch))))
    backend.close()


@contextmanager
def direct(model_format: str) -> Iterator[Callable[[int, float], Any]]:
    """Gives a function that sends a task to direct_loop and waits for the answer."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=direct_loop, args=(model_format, there), daemon=True)
    process.start()
    there.close()  # so that a dead process is an EOFError here, not a wait

    def ask(batch: int, seconds: float) -> Any:
        here.send((batch, seconds))
        return here.recv()

    yield ask
    here.send(None)
    process.join()


@contextmanager
def served(model_format: str) -> Iterator[Run]:
    """Gives a function that sends images as one request of our own server and waits."""
    from mindspore_serving.client import Client

    ports = free_ports(2)
    name = f"resnet50_{model_format}"
    client = Client(f"127.0.0.1:{ports[1]}", name, "predict")

    def run(inputs: Array) -> Array:
        reply = client.infer([{"image": image} for image in inputs])
        if not isinstance(reply, list) or any("logits" not in each for each in reply):
            raise OSError(f"the server answered {str(reply)[:200]}")
        return np.stack([each["logits"] for each in reply])

    def ready() -> bool:
        with socket.create_connection(("127.0.0.1", ports[1])):  # before gRPC starts to back off
            pass
        return run(images(1)).shape == (1, 1000)

    with running(name, [sys.executable, *ours(name)(ports)], ready):
        yield run


def check(ask: Callable[[int, float], Any], run: Run) -> None:
    for batch in BATCHES:
        expected = ask(batch, 0)
        difference = np.abs(run(images(batch)) - expected).max() / np.abs(expected).max()
        if not difference < 1e-4:
            raise SystemExit(f"batch {batch}: the server's answers are off by {difference:.1e}")


Pairs = dict[int, list[tuple[float, float]]]  # by batch: (direct, served) in images per second


def measure(model_formats: Sequence[str], rounds: int, seconds: float) -> dict[str, Pairs]:
    """By format the rates of each round.  The formats take turns within a round."""
    for model_format in model_formats:
        if not path_of(model_format).exists():
            write = [sys.executable, "-m", "benchmarks.models", model_format]
            subprocess.run(write, cwd=ROOT, check=True)
    found: dict[str, Pairs] = {name: {batch: [] for batch in BATCHES} for name in model_formats}
    with ExitStack() as stack:
        ready = {
            name: (stack.enter_context(direct(name)), stack.enter_context(served(name)))
            for name in model_formats
        }
        for ask, run in ready.values():
            check(ask, run)
        for number in range(rounds):
            for batch in BATCHES:
                for name, (ask, run) in ready.items():
                    pair = (ask(batch, seconds), rate(run, batch, seconds))
                    found[name][batch].append(pair)
                    print(
                        f"{name}, round {number + 1}, batch {batch}: "
                        f"direct {pair[0]:.1f}/s, served {pair[1]:.1f}/s",
                        flush=True,
                    )
    return found


def summary(model_format: str, batch: int, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "format": model_format,
        "batch": batch,
        "direct": median(direct for direct, _ in pairs),
        "served": median(served for _, served in pairs),
        "ratio": median(served / direct for direct, served in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_efficiency")
    parser.add_argument("--format", default=",".join(BACKENDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    arguments = parser.parse_args()
    found = measure(arguments.format.split(","), arguments.rounds, arguments.seconds)
    results = [
        summary(model_format, batch, pairs)
        for model_format, by_batch in found.items()
        for batch, pairs in by_batch.items()
    ]
    print()
    print_table(
        ["ResNet-50", "direct img/s", "served img/s", "served/direct"],
        [
            [f"{one['format']} batch {one['batch']}"]
            + [f"{one['direct']:.1f}", f"{one['served']:.1f}", f"{one['ratio']:.3f}"]
            for one in results
        ],
    )
    print_json("model_efficiency", rounds=arguments.rounds, results=results)


if __name__ == "__main__":
    main()
