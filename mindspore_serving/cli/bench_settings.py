"""The settings of `mindspore-serving bench`."""

from dataclasses import dataclass

from mindspore_serving.cli.options import numbers, option, positional
from mindspore_serving.cli.settings import Access
from mindspore_serving.errors import InvalidInputs

PROFILES = ("synchronous", "concurrent", "throughput", "constant", "poisson", "sweep")
SCENARIOS = ("chat", "rag", "prefill", "generation")


@dataclass(frozen=True, slots=True)
class BenchSettings(Access):
    """`mindspore-serving bench`."""

    url: str = positional(
        "http://IP:PORT, or .../model/NAME:METHOD; with --engines a model", metavar="URL"
    )
    compare: str = option("", "another server: each prompt goes to both in turn", metavar="URL")
    engines: tuple[str, ...] = option(
        (),
        "serve the model by these engines in turn, as ours,vllm, and measure each",
        parse=lambda text: tuple(text.split(",")),
        metavar="NAME,NAME",
    )
    engine_python: tuple[str, ...] = option(
        (),
        "the interpreter that has the library of an engine, as vllm=/opt/vllm/bin/python; "
        "repeatable",
        metavar="NAME=PYTHON",
    )
    engine_model: tuple[str, ...] = option(
        (),
        "the model in the form that an engine reads, as llama.cpp=model.gguf; repeatable",
        metavar="NAME=PATH",
    )
    engine_serve: tuple[str, ...] = option(
        (),
        "more options of `serve` for an engine, as 'vllm=--max-model-len 4096'; repeatable",
        metavar="NAME=OPTIONS",
    )
    protocol: str = option(
        "chat",
        "how the server is asked; a URL with /model/ is classic",
        choices=("chat", "completions", "tgi", "classic"),
    )
    model: str = option("", "name of the model (default: the first)", metavar="NAME")
    profile: str = option(
        "",
        "one client; clients; all at once; at a rate: evenly, at random times; one client, all at "
        "once and rates between (default: concurrent; with --rate: poisson)",
        choices=PROFILES,
    )
    concurrency: tuple[int, ...] = option(
        (),
        "clients that send again when answered, a run for each (default: 1,4,16,32)",
        metavar="N,N",
    )
    rate: tuple[float, ...] = option(
        (),
        "instead: requests per second, a run for each",
        parse=numbers(float, "0.5,2"),
        metavar="R,R",
    )
    requests: int = option(
        0,
        "sent in a run (default: 4 per client, 30 s of a rate; at least 8; 64 at once; 50 pairs "
        "to compare)",
        at_least=0,
    )
    scenario: str = option(
        "",
        "lengths of prompts and answers: 512 and 256 tokens; 4096 and 512; 2048 and 128; "
        "512 and 2048",
        choices=SCENARIOS,
    )
    input_tokens: int | None = option(
        None, "average length of the prompts made up (default: 256)", at_least=1
    )
    output_tokens: int | None = option(
        None, "average length of the answers (default: 128)", at_least=1
    )
    spread: float | None = option(
        None,
        "sigma of log-normal lengths, as 0.5; 0: all alike (default: 0)",
        at_least=0,
        at_most=2,
        metavar="S",
    )
    shared_prefix: int = option(0, "tokens at the beginning that all prompts share")
    prompts: str | None = option(
        None, 'file with lines {"prompt": ..., "max_tokens": ...} to send instead'
    )
    body: str | None = option(None, "JSON to send to a classic method")
    stop_at_end: bool = option(False, "let the model end an answer before its length")
    seed: int = option(0, "of prompts and times; the same seed gives the same requests")
    timeout: float = option(600.0, "seconds until a request is cancelled")
    json: str | None = option(None, "write the results there too")
    chart: str = option("", "write charts there: a page, as out.html, or a picture, as out.png")


def check(settings: BenchSettings) -> None:
    """Raises InvalidInputs naming the option that is out of range, or does not fit another."""
    _check_profile(settings)
    _check_engines(settings)
    if (least := min(settings.concurrency, default=1)) < 1:
        raise InvalidInputs(f"--concurrency {least}: expected 1 or more")
    for rate in settings.rate:
        if not 0 < rate < float("inf"):
            raise InvalidInputs(f"--rate {rate}: expected requests per second, over 0")


def _check_engines(settings: BenchSettings) -> None:
    is_classic = settings.body or settings.protocol == "classic"
    if settings.engines and (settings.compare or is_classic):
        raise InvalidInputs(
            "--engines measures language models: not with --compare, --body or --protocol classic"
        )
    for name in ("engine_python", "engine_model", "engine_serve"):
        if getattr(settings, name) and not settings.engines:
            raise InvalidInputs(f"--{name.replace('_', '-')} needs --engines")


def _check_profile(settings: BenchSettings) -> None:
    name = settings.profile
    if name in ("constant", "poisson") and not settings.rate:
        raise InvalidInputs(f"--profile {name} needs --rate, requests per second")
    if name not in ("", "constant", "poisson") and settings.rate:
        raise InvalidInputs(f"--profile {name} takes no --rate")
    if settings.concurrency and (settings.rate or name not in ("", "concurrent")):
        raise InvalidInputs("--concurrency goes with --profile concurrent alone, without --rate")
    if settings.compare and (settings.rate or name not in ("", "concurrent", "synchronous")):
        raise InvalidInputs("--compare goes with --profile concurrent or synchronous")
    if settings.scenario and (settings.prompts or settings.body):
        raise InvalidInputs("--scenario is of prompts made up: not with --prompts or --body")
