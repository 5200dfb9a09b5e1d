"""Load of `tune`: recorded requests of a method or prompts, or synthetic ones; checks of options.

It knows rows of GET /servables, and sends nothing.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mindspore_serving.cli import bench_prompts, bench_protocols, tune_goals, tune_knobs
from mindspore_serving.cli.bench_prompts import BenchPrompt, Lengths, Mix
from mindspore_serving.cli.bench_protocols import Dialect, WholeReader
from mindspore_serving.cli.tune_settings import SYNTHETIC, TuneSettings
from mindspore_serving.errors import InvalidInputs, ServingError, StartError, did_you_mean
from mindspore_serving.servable import recorded_requests

MAX_CLIENTS = 1000


@dataclass(frozen=True, slots=True)
class TuneLoad:
    """Requests of a load: those of a run, by its number, and the protocol.

    The runs of a language model have prompts of their own, so that no cache has them.
    """

    dialect: Callable[[int], Dialect]
    prompts: Callable[[int], Iterator[BenchPrompt]]
    is_language: bool
    text: str


def check(settings: TuneSettings) -> None:
    """Raise InvalidInputs for an option out of range, or a malformed goal."""
    tune_goals.parse(settings.goal)
    for clients in settings.concurrency:
        if not 1 <= clients < MAX_CLIENTS:
            raise InvalidInputs(f"--concurrency {clients}: expected 1 to {MAX_CLIENTS - 1}")
    for path in filter(None, (settings.output, settings.chart, settings.json)):
        if not Path(path).absolute().parent.is_dir():
            raise InvalidInputs(f"cannot write {path}: there is no directory for it")
    for name in settings.knobs:
        if name not in tune_knobs.NAMES:
            near = did_you_mean(name, tune_knobs.NAMES)
            known = ", ".join(tune_knobs.NAMES)
            raise InvalidInputs(f"--knobs has {name!r}, expected some of {known}{near}")


def check_file(settings: TuneSettings, *, is_language: bool) -> None:
    """Raise InvalidInputs, naming the line, if the load is a file that cannot be read."""
    if settings.load != SYNTHETIC:
        (_prompts if is_language else _recorded)(settings)


def to_load(servable: Mapping[str, Any], settings: TuneSettings) -> TuneLoad:
    """Return the load for a servable as GET /servables describes it.  Raises InvalidInputs."""
    card = servable.get("model")
    if card is None:
        return _classic(servable, settings)
    if not card["can_generate"]:
        raise InvalidInputs(
            f"{servable['name']} does not generate: tune takes language models that do, and "
            "servables with methods"
        )
    name = servable["name"]
    can_chat = card["has_chat_template"] and card["has_tokenizer"]
    protocol = bench_protocols.chat if can_chat else bench_protocols.completions
    base = protocol(name, stop_at_end=False)
    if settings.load != SYNTHETIC:
        prompts = _prompts(settings)
        return TuneLoad(
            lambda number: _salted(base, number),
            lambda number: itertools.cycle(prompts),
            True,
            f"{len(prompts)} prompts of {settings.load}",
        )
    mix = Mix(settings.input_tokens, settings.output_tokens)
    lengths = Lengths()
    return TuneLoad(
        lambda _: base,
        lambda number: bench_prompts.generate(mix, lengths, settings.seed * 100_003 + number),
        True,
        f"synthetic prompts of {mix.input_tokens} words, answers of {mix.output_tokens} tokens",
    )


def _classic(servable: Mapping[str, Any], settings: TuneSettings) -> TuneLoad:
    methods: Mapping[str, Any] = servable["methods"]
    if settings.load != SYNTHETIC:
        method, bodies = _of_method(_recorded(settings), methods, settings)
        text = f"{len(bodies)} requests of {settings.load} to {method}"
    else:
        method = _only(methods, settings.method, "the servable has the methods")
        bodies = [_synthetic(methods[method]["input_specs"])]
        text = f"synthetic requests to {method}, made from its inputs"
    if methods[method].get("has_state"):
        raise InvalidInputs(f"method {method} has a state: tune measures methods without")
    path = f"/model/{quote(servable['name'], '')}:{quote(method, '')}"
    dialect = Dialect(path, lambda prompt: prompt.text.encode(), WholeReader, is_stream=False)
    prompts = [BenchPrompt(body, 1) for body in bodies]
    return TuneLoad(lambda _: dialect, lambda _: itertools.cycle(prompts), False, text)


def _synthetic(specs: Sequence[Mapping[str, Any]]) -> str:
    """Return the body of a request with the example of each input that is needed."""
    instance = {}
    for spec in specs:
        if spec.get("optional"):
            continue
        value = spec["example"]["value"]
        for size in reversed(spec["example"]["shape"]):
            value = [value] * size
        instance[spec["name"]] = value
    return json.dumps({"instances": [instance]})


def _of_method(
    requests: Sequence[tuple[str, str]], methods: Mapping[str, Any], settings: TuneSettings
) -> tuple[str, list[str]]:
    """Return the method of recorded requests, and the bodies of those that call it."""
    default = next(iter(methods)) if len(methods) == 1 else ""
    named = [(name or default or settings.method, body) for name, body in requests]
    recorded = dict.fromkeys(name for name, _ in named if name)
    for name in recorded:
        if name not in methods:
            near = did_you_mean(name, methods) or f"; methods are {', '.join(methods)}"
            raise InvalidInputs(f"{settings.load} calls {name!r}, which the servable has not{near}")
    method = _only(recorded or methods, settings.method, f"{settings.load} calls")
    return method, [body for name, body in named if name == method]


def _only(methods: Mapping[str, Any], chosen: str, where: str) -> str:
    names = ", ".join(methods)
    if chosen and chosen not in methods:
        raise InvalidInputs(
            f"--method is {chosen!r}; {where} {names}{did_you_mean(chosen, methods)}"
        )
    if not chosen and len(methods) != 1:
        raise InvalidInputs(f"{where} {names or 'none'}: choose one with --method")
    return chosen or next(iter(methods))


def _recorded(settings: TuneSettings) -> list[tuple[str, str]]:
    """Return method and body of each request of the file, as often as its count says."""
    requests: list[tuple[str, str]] = []
    try:
        for number, request in recorded_requests.read(settings.load):
            if not 1 <= request.count <= recorded_requests.MAX_COUNT:
                raise InvalidInputs(
                    f"{settings.load}:{number}: count is {request.count}, expected 1 to "
                    f"{recorded_requests.MAX_COUNT}"
                )
            requests += [(request.method, request.body.decode())] * request.count
    except (OSError, StartError, UnicodeDecodeError) as error:
        raise InvalidInputs(f"--load: {error}") from None
    if not requests:
        raise InvalidInputs(f"--load: {settings.load} has no request")
    return requests


def _prompts(settings: TuneSettings) -> list[BenchPrompt]:
    try:
        text = Path(settings.load).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputs(f"--load: {error}") from None
    try:
        return bench_prompts.from_lines(text, settings.output_tokens)
    except InvalidInputs as error:
        raise InvalidInputs(f"--load: {settings.load}: {error}") from None


def _salted(dialect: Dialect, number: int) -> Dialect:
    """Return a dialect whose prompts hit the prefix cache for those of the same run only."""
    salt = b'{"cache_salt":"run %d",' % number
    return replace(dialect, to_body=lambda prompt: salt + dialect.to_body(prompt)[1:])


def refused(load: TuneLoad, failure: tuple[str, str]) -> ServingError:
    """Return the error of a load whose first request fails."""
    kind, text = failure
    hint = (
        ""
        if load.is_language or "synthetic" not in load.text
        else ("; record a request that it accepts, and give it with --load FILE")
    )
    return ServingError(f"the servable refuses {load.text}: {kind} {text[:500]}{hint}")
