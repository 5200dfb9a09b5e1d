"""`mindspore-serving bench`: measure how fast a running server answers under load.

The server first gets one or two requests that are not measured: what cannot work fails at once.
"""

import asyncio
import itertools
import json
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mindspore_serving import __version__
from mindspore_serving.cli import bench_load, bench_prompts, bench_protocols, bench_summary, openai
from mindspore_serving.cli.bench_client import Connections
from mindspore_serving.cli.bench_load import Outcome, Run, Target
from mindspore_serving.cli.bench_prompts import Lengths, Mix, Prompt
from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.cli.endpoint import to_endpoint
from mindspore_serving.errors import InvalidInputs, ServingError

_CLASSIC = "/model/"

_LEAST = 8  # requests of a run, unless their number is given
_PER_CLIENT = 4
_SECONDS = 30  # of a rate


def run(settings: BenchSettings) -> int:
    """Print a table; 1 if a request failed.  Raises ServingError if it cannot begin."""
    _check(settings)
    target, model = _to_target(settings)
    rows = [bench_summary.summarize(one) for one in _run(_measure(settings, target))]
    for line in bench_summary.table(rows):
        print(line)
    for row in rows:
        for note in bench_summary.notes(row):
            print(note, file=sys.stderr)
    if settings.json:
        _write(settings.json, settings, model, rows)
    return int(any(row["errors"] for row in rows))


async def _measure(settings: BenchSettings, target: Target) -> list[Run]:
    prompts = await _to_prompts(settings, target)
    runs = []
    for load in settings.rate or settings.concurrency:
        each = _SECONDS if settings.rate else _PER_CLIENT
        count = settings.requests or max(_LEAST, round(each * load))
        with tqdm(total=count, disable=None, leave=False) as bar:
            note = _counting(bar)
            if settings.rate:
                arrivals = bench_load.poisson(load, count, settings.seed)
                label = f"{load:g} req/s"
                runs.append(await bench_load.at_times(target, prompts, arrivals, label, note))
            else:
                runs.append(await bench_load.by_clients(target, prompts, int(load), count, note))
    target.connections.close()
    return runs


def _run(work: Coroutine[Any, Any, list[Run]]) -> list[Run]:
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def _counting(bar: Any) -> Callable[[Outcome], None]:
    """Shows on `bar` how many requests have ended, and how many of them failed."""
    num_failed = 0

    def note(outcome: Outcome) -> None:
        nonlocal num_failed
        num_failed += outcome.answer is None
        bar.set_postfix_str(f"{num_failed} failed" if num_failed else "", refresh=False)
        bar.update()

    return note


def _write(path: str, settings: BenchSettings, model: str, rows: list[dict[str, Any]]) -> None:
    asked = {name: value for name, value in asdict(settings).items() if name != "api_key"}
    found = {"version": __version__, "model": model, "settings": asked, "runs": rows}
    try:
        Path(path).write_text(json.dumps(found, indent=1) + "\n")
    except OSError as error:
        raise InvalidInputs(f"cannot write {path}: {error}") from error


def _check(settings: BenchSettings) -> None:
    """Raises InvalidInputs naming the option that is out of range."""
    least = {
        "--concurrency": min(settings.concurrency, default=1),
        "--input-tokens": settings.input_tokens,
        "--output-tokens": settings.output_tokens,
    }
    for name, value in least.items():
        if value < 1:
            raise InvalidInputs(f"{name} {value}: expected 1 or more")
    for rate in settings.rate:
        if not 0 < rate < float("inf"):
            raise InvalidInputs(f"--rate {rate}: expected requests per second, over 0")
    if not 0 <= settings.spread <= 2:
        raise InvalidInputs(f"--spread {settings.spread}: expected 0 to 2")
    if settings.requests < 0:
        raise InvalidInputs(f"--requests {settings.requests}: expected 1 or more")
    if not 0 <= settings.shared_prefix < settings.input_tokens:
        raise InvalidInputs(
            f"--shared-prefix {settings.shared_prefix}: expected less than --input-tokens "
            f"{settings.input_tokens}"
        )


def _to_target(settings: BenchSettings) -> tuple[Target, str]:
    """Where requests go; and the model's name, "" for the protocols that have none.

    Raises ServingError: no server, or no such model; InvalidInputs: options that do not fit.
    """
    endpoint = to_endpoint(settings.url, settings)
    base, mark, method = endpoint.base.rpartition(_CLASSIC)
    if mark or settings.protocol == "classic":
        if not mark or ":" not in method or settings.body is None:
            raise InvalidInputs(
                "a classic method is measured with a URL http://IP:PORT/model/NAME:METHOD and "
                "--body FILE, a file with the JSON of one request"
            )
        dialect = bench_protocols.classic(_CLASSIC + method, _read(settings.body).encode())
        connections = Connections(replace(endpoint, base=base))
        return Target(connections, dialect, settings.timeout), ""
    connections = Connections(endpoint)
    if settings.protocol == "tgi":
        return Target(connections, bench_protocols.tgi(), settings.timeout), ""
    model = openai.choose(endpoint, settings.model, settings.timeout)
    dialects = {"chat": bench_protocols.chat, "completions": bench_protocols.completions}
    dialect = dialects[settings.protocol](model, stop_at_end=settings.stop_at_end)
    return Target(connections, dialect, settings.timeout), model


async def _to_prompts(settings: BenchSettings, target: Target) -> Iterator[Prompt]:
    """Prompts without end.  Raises ServingError if the server does not answer the first."""
    if not target.dialect.is_stream:
        prompts = [Prompt("", 1)]
    elif settings.prompts is not None:
        prompts = bench_prompts.from_lines(_read(settings.prompts), settings.output_tokens)
    else:
        lengths = (settings.input_tokens, settings.output_tokens)
        mix = Mix(*lengths, settings.spread, settings.shared_prefix)
        return bench_prompts.made_up(mix, await _lengths(settings, target), settings.seed)
    await _try(target, prompts[0])
    return itertools.cycle(prompts)


def _read(path: str) -> str:
    """Raises InvalidInputs if it is no file of text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputs(f"cannot read {path}: {error}") from error


async def _lengths(settings: BenchSettings, target: Target) -> Lengths:
    draw = random.Random(f"lengths {settings.seed}")
    samples = []
    for words in (1, max(settings.input_tokens // 2, 8)):
        outcome = await _try(target, Prompt(bench_prompts.phrase(draw, words), 1))
        samples.append((words, outcome.answer.num_prompt if outcome.answer else 0))
    if not samples[0][1]:
        return Lengths()  # the server does not count prompts: take a word for a token
    return bench_prompts.to_lengths(*samples)


async def _try(target: Target, prompt: Prompt) -> Outcome:
    outcome = await bench_load.ask(target, prompt)
    if outcome.answer is None:
        kind, text = outcome.failure
        text = openai.error_text(text.encode()) if text != kind else ""
        raise ServingError(f"{target.connections.url}{target.dialect.path}: {kind} {text}".strip())
    return outcome
