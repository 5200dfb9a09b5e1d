"""Everything in `bench` before the first measured request: whom to ask, in what words.

The server is asked once or twice here, so that what cannot work is said at once.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from mindspore_serving.cli import bench_load, bench_prompts, bench_protocols, openai
from mindspore_serving.cli.bench_client import Connections
from mindspore_serving.cli.bench_load import Outcome, Target
from mindspore_serving.cli.bench_prompts import Lengths, Mix, Prompt
from mindspore_serving.cli.endpoint import Endpoint, to_endpoint
from mindspore_serving.cli.settings import BenchSettings
from mindspore_serving.errors import InvalidInputs, ServingError

_CLASSIC = "/model/"


def check(settings: BenchSettings) -> None:
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


def to_target(settings: BenchSettings) -> tuple[Target, str]:
    """Whom to ask and how; and the model's name, "" for the protocols that say none.

    Raises ServingError: nobody there, or no such model; InvalidInputs: options that do not fit.
    """
    endpoint = to_endpoint(settings.url, settings)
    base, mark, method = endpoint.base.rpartition(_CLASSIC)
    if mark or settings.protocol == "classic":
        if not mark or ":" not in method or settings.body is None:
            raise InvalidInputs(
                "a classic method is measured with a URL http://IP:PORT/model/NAME:METHOD and "
                "--body FILE, a file with the JSON of one request"
            )
        where = Endpoint(endpoint.host, endpoint.port, base, endpoint.context, endpoint.headers)
        dialect = bench_protocols.classic(_CLASSIC + method, read(settings.body).encode())
        return Target(Connections(where), dialect, settings.timeout), ""
    connections = Connections(endpoint)
    if settings.protocol == "tgi":
        return Target(connections, bench_protocols.tgi(), settings.timeout), ""
    model = openai.choose(endpoint, settings.model, settings.timeout)
    ask = {"chat": bench_protocols.chat, "completions": bench_protocols.completions}
    dialect = ask[settings.protocol](model, stop_at_end=settings.stop_at_end)
    return Target(connections, dialect, settings.timeout), model


async def to_prompts(settings: BenchSettings, target: Target) -> Iterator[Prompt]:
    """What is asked, without end.  Raises ServingError if the server does not answer it."""
    if not target.dialect.is_stream:
        prompts = [Prompt("", 1)]
    elif settings.prompts is not None:
        prompts = bench_prompts.from_lines(read(settings.prompts), settings.output_tokens)
    else:
        mix = Mix(
            settings.input_tokens, settings.output_tokens, settings.spread, settings.shared_prefix
        )
        return bench_prompts.made_up(mix, await _lengths(settings, target), settings.seed)
    await _try(target, prompts[0])
    return itertools.cycle(prompts)


def read(path: str) -> str:
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
