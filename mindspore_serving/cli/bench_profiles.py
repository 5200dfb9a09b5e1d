"""Load profiles and scenarios of `bench`, with guidellm's names.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat

from mindspore_serving.cli.bench_load import BenchRun, poisson
from mindspore_serving.cli.bench_prompts import Mix
from mindspore_serving.cli.bench_settings import BenchSettings
from mindspore_serving.errors import InvalidInputs

_CLIENTS = (1, 4, 16, 32)
_MIN_REQUESTS = 8  # of a run, if --requests is not set
_PER_CLIENT = 4
_MIN_PAIRS = 50  # of two servers; fewer show only large differences
_SECONDS = 30  # duration of a rate
_AT_ONCE = 64
_BETWEEN = 5  # rates of a sweep

_MIXES = {
    "": Mix(256, 128),
    "chat": Mix(512, 256, 0.25),
    "rag": Mix(4096, 512, 0.125),
    "prefill": Mix(2048, 128),
    "generation": Mix(512, 2048, 0.25),
}


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Run of `count` requests: by `clients`, or without clients one at each of `arrivals`."""

    label: str
    count: int
    clients: int = 0
    arrivals: tuple[float, ...] = ()


def mix(settings: BenchSettings) -> Mix:
    """Return the lengths of prompts and answers: from options, else from the scenario.

    Raises InvalidInputs.
    """
    scenario = _MIXES[settings.scenario]
    input_tokens = settings.input_tokens or scenario.input_tokens
    if not 0 <= settings.shared_prefix < input_tokens:
        raise InvalidInputs(
            f"--shared-prefix {settings.shared_prefix}: expected less than --input-tokens "
            f"{input_tokens}"
        )
    output_tokens = settings.output_tokens or scenario.output_tokens
    spread = scenario.spread if settings.spread is None else settings.spread
    return Mix(input_tokens, output_tokens, spread, settings.shared_prefix)


def loads(settings: BenchSettings) -> list[LoadProfile]:
    """Return the runs of a profile; of a sweep the first two, which `between` continues."""
    if settings.rate:
        is_even = settings.profile == "constant"
        return [_at_rate(rate, settings, is_even=is_even) for rate in settings.rate]
    count = settings.requests or _AT_ONCE
    at_once = LoadProfile(f"{count} at once", count, arrivals=(0.0,) * count)
    return {
        "synchronous": [_by_clients(1, settings)],
        "throughput": [at_once],
        "sweep": [_by_clients(1, settings), at_once],
    }.get(settings.profile) or [
        _by_clients(clients, settings) for clients in settings.concurrency or _CLIENTS
    ]


def between(runs: Sequence[BenchRun], settings: BenchSettings) -> list[LoadProfile]:
    """Return even rates between those of the first two runs of a sweep.

    The first run has one client, the second all requests at once; its rate is the last one. Returns
    nothing if the second was not faster.
    """
    slow, fast = (sum(o.answer is not None for o in run.outcomes) / run.seconds for run in runs)
    if not slow < fast:
        return []
    steps = range(1, _BETWEEN + 1)
    rates = [slow + (fast - slow) * step / _BETWEEN for step in steps]
    return [_at_rate(rate, settings, is_even=True) for rate in rates]


def _by_clients(clients: int, settings: BenchSettings) -> LoadProfile:
    min_requests = _MIN_PAIRS if settings.compare else _MIN_REQUESTS
    count = settings.requests or max(min_requests, _PER_CLIENT * clients)
    return LoadProfile(f"{clients} client{'s' * (clients > 1)}", count, clients)


def _at_rate(rate: float, settings: BenchSettings, *, is_even: bool) -> LoadProfile:
    count = settings.requests or max(_MIN_REQUESTS, round(_SECONDS * rate))
    even = list(accumulate(repeat(1 / rate, count - 1), initial=0.0))
    arrivals = even if is_even else poisson(rate, count, settings.seed)
    return LoadProfile(f"{rate:.3g} req/s", count, arrivals=tuple(arrivals))
