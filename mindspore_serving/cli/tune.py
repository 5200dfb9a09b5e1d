"""`mindspore-serving tune`: measure settings of a servable in turn with the defaults.

Two servers run at a time, on free ports of 127.0.0.1: one with the defaults, and one with the
settings that are measured.  The load is sent to one of them at a time.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mindspore_serving.cli import bench_png, status, tune_chart, tune_load, tune_report, tune_search
from mindspore_serving.cli.config import shown
from mindspore_serving.cli.config_file import FIELDS, PER_SERVABLE
from mindspore_serving.cli.settings import Access
from mindspore_serving.cli.tune_goals import parse, to_goal
from mindspore_serving.cli.tune_knobs import Changes, Knob, Subject, chosen, describe, entry
from mindspore_serving.cli.tune_load import TuneLoad
from mindspore_serving.cli.tune_results import Trial
from mindspore_serving.cli.tune_search import SEARCH_ROUNDS, Decision, SettingsSearch, TimePlan
from mindspore_serving.cli.tune_servers import Measurement, served
from mindspore_serving.cli.tune_settings import TuneSettings
from mindspore_serving.errors import InvalidInputs, ServingError, StartError
from mindspore_serving.hub.resolve import resolve
from mindspore_serving.servable import bare, repository
from mindspore_serving.servable.backend_choice import CHOICES
from mindspore_serving.servable.discovery import discover
from mindspore_serving.servable.loader import CONFIG_FILE

_LOADS, _LANGUAGE_LOADS = (1, 4, 16), (1, 4, 8)
_PATIENCE = 10.0  # times the start of the defaults, for which another server is waited for
_MIN_PATIENCE = 60.0  # seconds
_INTERRUPTED = 130  # exit status


def run(settings: TuneSettings) -> int:
    """Measure, print the frontier and the decision, and write the files.

    Returns 1 if the goal is impossible or nothing was measured. Raises ServingError.
    """
    tune_load.check(settings)
    if settings.chart.endswith(bench_png.SUFFIX):
        bench_png.check(settings.chart)
    path = _path(settings)
    is_language = repository.is_language_model(path)
    tune_load.check_file(settings, is_language=is_language)
    to_goal(parse(settings.goal), is_language=is_language)
    tuning = _Tuning(settings, path, is_language=is_language)
    status_of_end = 0
    try:
        tuning.run()
    except KeyboardInterrupt:
        _say("interrupted: this is what was measured so far")
        status_of_end = _INTERRUPTED
    except ServingError as error:
        if not tuning.trials:
            raise
        _say(f"{error}; this is what was measured so far")
        status_of_end = 1
    code = tuning.report() if tuning.trials else 1
    return status_of_end or code


class _Tuning:
    """Measurement of one servable; `trials` are those of the search."""

    def __init__(self, settings: TuneSettings, path: str, *, is_language: bool) -> None:
        self._settings = settings
        # An archive is unpacked again by each server; `path` is in a directory of this process.
        location = os.path.abspath(resolve(settings.servable, offline=settings.offline or None))
        self._base = _base(settings, location if os.path.isfile(location) else path)
        self._began = time.monotonic()
        self._is_language = is_language
        self._goal = to_goal(parse(settings.goal), is_language=is_language)
        loads = settings.concurrency or (_LANGUAGE_LOADS if is_language else _LOADS)
        self._loads = sorted(set(loads))
        self._subject = _subject(settings, path, max(self._loads), is_language=is_language)
        self._knobs = _knobs(settings, self._subject)
        self._plan = TimePlan(settings.time, 0.0, 0.0)
        self._search = SettingsSearch(self._subject, self._knobs, self._goal)
        self.confirmed: list[Trial] = []

    @property
    def trials(self) -> list[Trial]:
        return self._search.trials

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> None:
        """Start the defaults, then search, then measure the finalists again."""
        settings = self._settings
        names = ", ".join(knob.name for knob in self._knobs)
        _say(f"goal: {self._goal}; {settings.time:g} s; tuning {names}")
        with served(self._content({})) as url:
            start = self._elapsed
            load = self._load(url)
            _say(f"{start:6.0f} s  the defaults are ready; the load is {load.text}")
            seconds = tune_search.run_seconds(settings.time)
            measurement = Measurement(load, self._loads, seconds, settings.timeout)
            measurement.check(url)
            self._plan = TimePlan(settings.time, start, 2 * self._warm_up(measurement, url))
            for changes in self._search:
                if self.trials and not self._plan.fits_candidate(self._elapsed, len(self.trials)):
                    break
                self._search.report(self._measure(measurement, url, changes))
                _say(tune_report.progress(self.trials[-1], self._goal, self._elapsed))
            self._confirm(measurement, url)

    def _load(self, url: str) -> TuneLoad:
        servable = max(status.ask(url, Access()), key=lambda row: int(row["version"]))
        load = tune_load.to_load(servable, self._settings)
        if load.is_language != self._is_language:  # a servable_config.py declares one
            self._is_language = load.is_language
            self._goal = to_goal(parse(self._settings.goal), is_language=load.is_language)
            self._search = SettingsSearch(self._subject, self._knobs, self._goal)
        return load

    def _measure(self, measurement: Measurement, url: str, changes: Changes) -> Trial:
        """Measure settings in the rounds of a search."""
        trial = Trial(changes)
        with ExitStack() as stack:
            other = self._start(measurement, trial, stack)
            while other and len(trial.rounds) < SEARCH_ROUNDS:
                if tune_search.is_hopeless(trial, self._goal):
                    break
                self._add_round(measurement, [url, other], [trial])
        return trial

    def _start(self, measurement: Measurement, trial: Trial, stack: ExitStack) -> str:
        """Start a server with the settings of a trial; return its URL, "" if that fails."""
        limit = max(_MIN_PATIENCE, _PATIENCE * self._plan.start)
        try:
            url = stack.enter_context(served(self._content(trial.changes), limit))
            measurement.check(url)
        except ServingError as error:
            trial.failure = " ".join(str(error).split())
            return ""
        self._warm_up(measurement, url)
        return url

    def _warm_up(self, measurement: Measurement, url: str) -> float:
        """Run the load until the server gets no faster; return the seconds of the last run."""
        rates: list[float] = []
        seconds = 0.0
        while not tune_search.is_settled(rates):
            runs = measurement.warm_up(url).values()
            rates.append(sum(len(run.outcomes) / run.seconds for run in runs))
            seconds = sum(run.seconds for run in runs)
        return seconds

    def _add_round(
        self, measurement: Measurement, urls: list[str], trials: Sequence[Trial]
    ) -> None:
        defaults, *settings = measurement.round(urls)
        for run in defaults.values():
            if all(outcome.answer is None for outcome in run.outcomes):
                kind, text = run.outcomes[0].failure
                raise StartError(f"the server with the defaults answers no more: {kind} {text}")
        for trial, runs in zip(trials, settings, strict=True):
            trial.rounds.append((defaults, runs))

    def _confirm(self, measurement: Measurement, url: str) -> None:
        """Measure the finalists again, all in the same rounds, until the time ends."""
        self.confirmed = [Trial(each) for each in tune_search.finalists(self.trials, self._goal)]
        if not self.confirmed:
            return
        names = " and ".join(describe(trial.changes) for trial in self.confirmed)
        _say(f"{self._elapsed:6.0f} s  measuring again: {names}")
        with ExitStack() as stack:
            urls = {id(each): self._start(measurement, each, stack) for each in self.confirmed}
            started = [trial for trial in self.confirmed if urls[id(trial)]]
            while started and self._plan.needs_round(self._elapsed, len(started[0].rounds)):
                self._add_round(measurement, [url, *(urls[id(each)] for each in started)], started)
        for trial in self.confirmed:
            _say(tune_report.progress(trial, self._goal, self._elapsed))

    def _content(self, changes: Changes) -> dict[str, Any]:
        return entry(self._base, changes, PER_SERVABLE.__contains__)

    # --- the results ---

    def report(self) -> int:
        """Print and write what was measured; return the exit status."""
        trials = [*self.trials, *self.confirmed]
        decision = tune_search.decide(self.confirmed, self.trials, self._goal)
        every = tune_report.all_points(trials, self._goal, is_language=self._is_language)
        chart = tune_report.chart(every, self._goal, is_language=self._is_language)
        lines = tune_report.frontier_table(every, self._goal, is_language=self._is_language)
        lines = [*lines, "", *tune_chart.lines(chart), "", *tune_report.failures(trials)]
        lines += self._sureness(decision)
        if decision.changes is not None:
            text = tune_report.to_yaml(self._content(decision.changes))
            lines += ["", *text.splitlines()]
            if self._settings.output:
                _write(self._settings.output, text)
                lines.append(
                    f"Wrote {self._settings.output}: serve --config {self._settings.output}"
                )
        elif self._settings.output:
            lines.append(f"{self._settings.output} is not written")
        print("\n".join(lines), flush=True)
        self._write_files(trials, decision, chart, lines)
        return int(decision.changes is None)

    def _sureness(self, decision: Decision) -> list[str]:
        count = sum(bool(trial.rounds and trial.changes) for trial in self.trials)
        lines = [f"Measured: {count} settings beside the defaults in {self._elapsed:.0f} s"]
        if not self._search.is_complete:
            lines[0] += "; the time ended before all were tried, give more --time"
        lines += [*tune_report.error_line(self.trials, self._goal), decision.text]
        if decision.changes is None:
            lines += tune_report.best_reached(decision, self._goal)
        return lines

    def _write_files(
        self,
        trials: Sequence[Trial],
        decision: Decision,
        chart: tune_chart.FrontierChart,
        lines: Sequence[str],
    ) -> None:
        settings = self._settings
        if settings.json:
            content = tune_report.to_json(trials, self._goal, decision)
            _write(settings.json, json.dumps(content, indent=1) + "\n")
        if settings.chart.endswith(bench_png.SUFFIX):
            try:
                tune_chart.draw(chart, settings.chart)
            except OSError as error:
                raise InvalidInputs(f"cannot write {settings.chart}: {error}") from error
        elif settings.chart:
            _write(settings.chart, tune_chart.page(chart, lines))


def _path(settings: TuneSettings) -> str:
    """Return the path of the servable.  Raises ServingError unless there is one."""
    path = resolve(settings.servable, offline=settings.offline or None)
    discovered = discover(path, allow_pickle=settings.allow_pickle)
    paths = [os.path.join(*location) for location in discovered.servables]
    if len(paths) > 1:
        raise InvalidInputs(
            f"{settings.servable} has {len(paths)} servables, tune takes one: "
            f"{', '.join(map(os.path.basename, paths))}"
        )
    if not paths:
        raise StartError("; ".join(map(str, discovered.refused)))
    return paths[0]


def _base(settings: TuneSettings, path: str) -> dict[str, Any]:
    """Return the servable of the configuration file, with the options on the command line."""
    values = {name: FIELDS[name] for name in PER_SERVABLE}
    base = {
        name: shown(row, getattr(settings, row.name))
        for name, row in values.items()
        if getattr(settings, row.name) != row.default
    }
    if settings.calibrate:  # the file in int8 has another name than the model
        base.setdefault("name", bare.file_alias(*os.path.split(path)))
    return {"path": path} | base


def _subject(settings: TuneSettings, path: str, clients: int, *, is_language: bool) -> Subject:
    """Return what may be tried; a model file is quantised if there is data for it."""
    if is_language:
        model_format = "gguf" if path.endswith(repository.GGUF) else "directory"
    elif os.path.isfile(os.path.join(path, CONFIG_FILE)):
        model_format = ""
    else:
        version = max(bare.versions(path), default=1)
        model_format = repository.bare_model(path, version, allow_pickle=True).format
    names = [name for _, backends in CHOICES.values() for name in backends]
    return Subject(
        model_format,
        is_language,
        sorted(os.sched_getaffinity(0)),
        clients,
        frozenset(name for name in names if find_spec(name) is not None),
        {name: value for name, value in _base(settings, path).items() if name != "path"},
        settings.rounding,
        _quantized(settings, path, model_format),
        os.path.abspath(resolve(settings.try_draft)) if settings.try_draft else "",
    )


def _quantized(settings: TuneSettings, path: str, model_format: str) -> str:
    """Write the model in int8 beside --output, and return its path; "" without data."""
    if not settings.calibrate:
        return ""
    if model_format not in CHOICES or not os.path.isfile(path):
        raise InvalidInputs("--calibrate is for a model file .mindir or .onnx without a directory")
    from mindspore_serving.backends.quantization import quantize

    directory = Path(settings.output or ".").absolute().parent
    target = directory / f"{Path(path).stem}_int8.xml"
    if not settings.output:
        target = Path.cwd() / target.name
    if target.exists():
        raise InvalidInputs(
            f"{target} exists, perhaps of an earlier run: remove it, or leave out --calibrate"
        )
    _say(f"quantising {path} to {target}")
    with redirect_stdout(sys.stderr):
        _say(quantize(path, str(target), settings.calibrate).summary())
    return str(target)


def _knobs(settings: TuneSettings, subject: Subject) -> list[Knob]:
    fixed = [name for name in PER_SERVABLE if name in _base(settings, "")]
    engine = [text.partition("=")[0].replace("-", "_") for text in settings.llm_option]
    fixed += [f"llm_option.{name}" for name in engine]
    knobs = chosen(subject, fixed, settings.knobs)
    if not knobs:
        raise InvalidInputs("there is nothing to tune: every knob is set, or none applies here")
    return knobs


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInputs(f"cannot write {path}: {error}") from error


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
