"""`mindspore-serving bench`: measure how fast a server answers under load.

Before the measurement the server gets one or two requests, so that wrong options fail at once.
"""

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mindspore_serving import __version__
from mindspore_serving.cli import (
    bench_chart,
    bench_compare,
    bench_load,
    bench_png,
    bench_profiles,
    bench_prompts,
    bench_protocols,
    bench_summary,
    openai,
)
from mindspore_serving.cli.bench_client import Connections
from mindspore_serving.cli.bench_compare import Ratio
from mindspore_serving.cli.bench_load import BenchOutcome, BenchRun, OnOutcome, Target
from mindspore_serving.cli.bench_profiles import LoadProfile
from mindspore_serving.cli.bench_prompts import BenchPrompt, Lengths, Mix
from mindspore_serving.cli.bench_report import BenchReport, BenchTable
from mindspore_serving.cli.bench_settings import BenchSettings, check
from mindspore_serving.cli.endpoint import IS_GRPC, greets_as_grpc, to_endpoint
from mindspore_serving.errors import InvalidInputs, ServingError

_CLASSIC = "/model/"
# A base model has no form for chats: what its server says, and what to write.
_NO_TEMPLATE = ("no chat template", "; to measure it write --protocol completions")
OnRuns = Callable[[Sequence[BenchRun]], None]


def run(settings: BenchSettings) -> int:
    """Measure, print a table, and return 1 if a request failed.

    Raises ServingError if the measurement cannot begin.
    """
    check(settings)
    if settings.chart.endswith(bench_png.SUFFIX):
        bench_png.check(settings.chart)
    mix = bench_profiles.mix(settings)
    report = BenchReport()
    measure = _measure_engines if settings.engines else _measure_servers
    results = measure(settings, mix, report)
    for note in (note for row in results["runs"] for note in bench_summary.notes(row)):
        print(note, file=sys.stderr)
    _write_files(settings, results, report.lines)
    return int(not results["runs"] or any(row["errors"] for row in results["runs"]))


def _measure_engines(settings: BenchSettings, mix: Mix, report: BenchReport) -> dict[str, Any]:
    """Send the same load to a server of each engine; an engine that does not start is a line."""
    from mindspore_serving.cli import bench_engines  # slow to import

    rows: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    engines = bench_engines.arguments(settings)
    loads = bench_profiles.loads(settings)
    labels = [f"{name}, {load.label}" for name in engines for load in loads]
    for name, words in engines.items():
        _say(f"{name}: starting")
        began = time.monotonic()
        try:
            with bench_engines.served(words, settings) as url:
                _say(f"{name}: ready after {time.monotonic() - began:.1f} s")
                measured = _to_rows(replace(settings, url=url), mix, f"{name}, ")
                memory = bench_engines.memory(url, settings)
        except InvalidInputs:
            raise
        except ServingError as error:
            refused[name] = str(error)
            _say(f"{name}: not measured")
            continue
        report.begin(BenchTable(labels, is_stream=True, has_memory=True))
        for row in measured:
            load = f"{name}, {row['load']}"
            rows.append({**row, "load": load, "engine": name, "memory_bytes": memory})
            report.add(rows[-1])
    report.say(*(f"{name}: not measured: {text}" for name, text in refused.items()))
    return {"model": settings.url, "runs": rows, "not_measured": refused}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _to_rows(settings: BenchSettings, mix: Mix, title: str) -> list[dict[str, Any]]:
    """Measure the server of an engine; each load is a line on the standard error."""
    rows: list[dict[str, Any]] = []
    target, _ = _to_target(settings)

    def on_runs(runs: Sequence[BenchRun]) -> None:
        run = runs[-1]
        _say(f"{title}{run.label}: {len(run.outcomes)} requests in {run.seconds:.1f} s")
        rows.extend(map(bench_summary.summarize, runs))

    _run(_measure(settings, mix, [target], on_runs=on_runs))
    return rows


def _measure_servers(settings: BenchSettings, mix: Mix, report: BenchReport) -> dict[str, Any]:
    """Measure one server, or two that are compared; each load is a line as soon as it is done."""
    urls = [settings.url, *[settings.compare] * bool(settings.compare)]
    targets = [_to_target(replace(settings, url=url)) for url in urls]
    model, loads = targets[0][1], bench_profiles.loads(settings)
    titles = [f"{name}: {url}" for name, url in zip("AB", urls, strict=False)]
    labels = [load.label + ", A" * bool(settings.compare) for load in loads]
    table = BenchTable(labels, is_stream=targets[0][0].dialect.is_stream)
    rows: list[dict[str, Any]] = []

    def on_runs(runs: Sequence[BenchRun]) -> None:
        for run in runs:
            rows.append(bench_summary.summarize(run))
            report.add(rows[-1])

    def on_start() -> None:
        report.begin(table, *titles * bool(settings.compare))

    servers = [target for target, _ in targets]
    runs = _run(_measure(settings, mix, servers, on_start=on_start, on_runs=on_runs))
    results: dict[str, Any] = {"model": model, "runs": rows}
    if settings.compare:
        ratios = _ratios(runs, settings.seed)
        report.say("", *bench_compare.lines(ratios))
        results["compared_model"] = targets[1][1]
        results["ratios"] = bench_compare.to_json(ratios)
    return results


def _ratios(runs: Sequence[BenchRun], seed: int) -> list[Ratio]:
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return [ratio for first, second in pairs for ratio in bench_compare.ratios(first, second, seed)]


async def _measure(
    settings: BenchSettings,
    mix: Mix,
    targets: Sequence[Target],
    *,
    on_start: Callable[[], None] = lambda: None,
    on_runs: OnRuns,
) -> list[BenchRun]:
    """Run each load on the target; of two targets, on both.

    `on_start` is called when the first requests have shown that the options are right, `on_runs`
    with the results of each load.
    """
    with ExitStack() as stack:  # the end of uvloop may wait for a connection that is left open
        for target in targets:
            stack.callback(target.connections.close)
        prompts = await _to_prompts(settings, mix, targets)
        on_start()
        return await _run_loads(settings, targets, prompts, on_runs)


async def _run_loads(
    settings: BenchSettings,
    targets: Sequence[Target],
    prompts: Iterator[BenchPrompt],
    on_runs: OnRuns,
) -> list[BenchRun]:
    runs: list[BenchRun] = []
    loads = bench_profiles.loads(settings)
    while loads:
        load = loads.pop(0)
        total = load.count * len(targets)
        with tqdm(desc=load.label, total=total, disable=None, leave=False) as bar:
            new = await _load(targets, prompts, load, _counting(bar))
        on_runs(new)
        runs += new
        if settings.profile == "sweep" and len(runs) == 2:
            loads = bench_profiles.between(runs, settings)
    return runs


async def _load(
    targets: Sequence[Target],
    prompts: Iterator[BenchPrompt],
    load: LoadProfile,
    on_outcome: OnOutcome,
) -> list[BenchRun]:
    if len(targets) > 1:
        return await bench_compare.alternate(targets, prompts, load, on_outcome)
    if load.clients:
        return [
            await bench_load.by_clients(targets[0], prompts, load.clients, load.count, on_outcome)
        ]
    arrivals = list(load.arrivals)
    return [await bench_load.at_times(targets[0], prompts, arrivals, load.label, on_outcome)]


def _run(work: Coroutine[Any, Any, list[BenchRun]]) -> list[BenchRun]:
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def _counting(bar: Any) -> OnOutcome:
    """Return a callback that shows on `bar` how many requests have ended and failed."""
    num_failed = 0

    def count_outcome(outcome: BenchOutcome) -> None:
        nonlocal num_failed
        num_failed += outcome.answer is None
        bar.set_postfix_str(f"{num_failed} failed" if num_failed else "", refresh=False)
        bar.update()

    return count_outcome


def _write_files(settings: BenchSettings, results: dict[str, Any], report: Sequence[str]) -> None:
    """Write the files of --json and --chart."""
    if settings.json:
        options = {name: value for name, value in asdict(settings).items() if name != "api_key"}
        content = {"version": __version__, "settings": options, **results}
        _write(settings.json, json.dumps(content, indent=1) + "\n")
    if settings.chart.endswith(bench_png.SUFFIX):
        with _writing(settings.chart):
            bench_png.draw(results["runs"], settings.chart)
    elif settings.chart:
        _write(settings.chart, bench_chart.page(results["runs"], report))


def _write(path: str, text: str) -> None:
    with _writing(path):
        Path(path).write_text(text, encoding="utf-8")


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Convert an OSError of the block to InvalidInputs that names the file."""
    try:
        yield
    except OSError as error:
        raise InvalidInputs(f"cannot write {path}: {error}") from error


def _to_target(settings: BenchSettings) -> tuple[Target, str]:
    """Return the target of the requests, and the name of its model, "" for protocols without names.

    Raises ServingError if there is no such server or model, InvalidInputs for wrong options.
    """
    endpoint = to_endpoint(settings.url, settings)
    base, mark, method = endpoint.base.rpartition(_CLASSIC)
    if mark or settings.protocol == "classic":
        if not mark or ":" not in method or settings.body is None:
            raise InvalidInputs(
                "a classic method needs a URL http://IP:PORT/model/NAME:METHOD and --body FILE, a "
                "file with the JSON of one request"
            )
        dialect = bench_protocols.classic(_CLASSIC + method, _read(settings.body).encode())
        connections = Connections(replace(endpoint, base=base))
        return Target(connections, dialect, settings.timeout), ""
    connections = Connections(endpoint)
    if settings.protocol == "tgi":
        return Target(connections, bench_protocols.tgi(), settings.timeout), ""
    model = openai.choose(endpoint, settings.model, settings.timeout).name
    dialects = {"chat": bench_protocols.chat, "completions": bench_protocols.completions}
    dialect = dialects[settings.protocol](model, stop_at_end=settings.stop_at_end)
    return Target(connections, dialect, settings.timeout), model


async def _to_prompts(
    settings: BenchSettings, mix: Mix, targets: Sequence[Target]
) -> Iterator[BenchPrompt]:
    """Return an endless iterator of prompts, with lengths in tokens of the first of `targets`.

    Raises ServingError if a target does not answer a first request.
    """
    first = targets[0]
    if not first.dialect.is_stream:
        prompts = [BenchPrompt("", 1)]
    elif settings.prompts is not None:
        prompts = bench_prompts.from_lines(_read(settings.prompts), mix.output_tokens)
    else:
        lengths = await _lengths(mix, settings.seed, first)
        for other in targets[1:]:
            await _probe(other, BenchPrompt(bench_prompts.WORDS[0], 1))
        return bench_prompts.generate(mix, lengths, settings.seed)
    for target in targets:
        await _probe(target, prompts[0])
    return itertools.cycle(prompts)


def _read(path: str) -> str:
    """Read a file.  Raises InvalidInputs if it is not a text file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputs(f"cannot read {path}: {error}") from error


async def _lengths(mix: Mix, seed: int, target: Target) -> Lengths:
    draw = random.Random(f"lengths {seed}")
    samples = []
    for words in (1, max(mix.input_tokens // 2, 8)):
        outcome = await _probe(target, BenchPrompt(bench_prompts.phrase(draw, words), 1))
        samples.append((words, outcome.answer.num_prompt if outcome.answer else 0))
    if not samples[0][1]:
        return Lengths()  # the server does not count prompts: take a word for a token
    return bench_prompts.to_lengths(*samples)


async def _probe(target: Target, prompt: BenchPrompt) -> BenchOutcome:
    outcome = await bench_load.ask(target, prompt)
    if outcome.answer is None:
        kind, text = outcome.failure
        if kind == "disconnected" and greets_as_grpc(target.connections.endpoint):
            kind, text = "bad answer", IS_GRPC
        text = openai.error_text(text.encode()) if text != kind else ""
        text += _NO_TEMPLATE[1] * (_NO_TEMPLATE[0] in text)
        raise ServingError(f"{target.connections.url}{target.dialect.path}: {kind} {text}".strip())
    return outcome
