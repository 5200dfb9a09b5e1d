"""Settings of `mindspore-serving bench`, and how they go together."""

from dataclasses import dataclass

from mindspore_serving.cli.node_settings import url_argument
from mindspore_serving.cli.options import numbers, option
from mindspore_serving.cli.settings import Access
from mindspore_serving.cli.urls import SERVER_URL
from mindspore_serving.errors import InvalidInputs

PROFILES = ("synchronous", "concurrent", "throughput", "constant", "poisson", "sweep")
SCENARIOS = ("chat", "rag", "prefill", "generation")


@dataclass(frozen=True, slots=True)
class BenchSettings(Access):
    """Settings of `mindspore-serving bench`."""

    url: str = url_argument(
        "URL of the server, also .../model/NAME:METHOD; with --engines the path of a model "
        f"(default: {SERVER_URL})"
    )
    compare: str = option(
        "",
        "second server: each prompt is sent to both in turn",
        metavar="URL",
        page="cli.md#two-servers",
    )
    engines: tuple[str, ...] = option(
        (),
        "serve the model with each of these engines in turn, as ours,vllm",
        parse=lambda text: tuple(text.split(",")),
        metavar="NAME,NAME",
        page="cli.md#engines",
    )
    engine_python: tuple[str, ...] = option(
        (),
        "interpreter with the library of an engine, as vllm=/opt/vllm/bin/python",
        metavar="NAME=PYTHON",
        page="cli.md#engines",
    )
    engine_model: tuple[str, ...] = option(
        (),
        "the model in a format that an engine reads, as llama.cpp=model.gguf",
        metavar="NAME=PATH",
        page="cli.md#engines",
    )
    engine_serve: tuple[str, ...] = option(
        (),
        "more options of `serve` for an engine, as 'vllm=--max-model-len 4096'",
        metavar="NAME=OPTIONS",
        page="cli.md#engines",
    )
    protocol: str = option(
        "chat",
        "protocol of the requests",
        details="A URL with /model/ is classic",
        choices=("chat", "completions", "tgi", "classic"),
    )
    model: str = option("", "name of the model", default_text="the server's first", metavar="NAME")
    profile: str = option(
        "",
        "when requests are sent",
        default_text="concurrent; with --rate poisson",
        choices=PROFILES,
        page="cli.md#profiles-and-scenarios",
    )
    concurrency: tuple[int, ...] = option(
        (),
        "number of clients, each of which sends when it is answered; a run for each number",
        default_text="1,4,16,32",
        metavar="N,N",
    )
    rate: tuple[float, ...] = option(
        (),
        "requests per second instead of clients; a run for each rate",
        parse=numbers(float, "0.5,2"),
        metavar="R,R",
    )
    requests: int = option(
        0,
        "number of requests in a run",
        default_text="4 per client, 30 s of a rate, at least 8; 64 at once; 50 pairs",
        at_least=0,
    )
    scenario: str = option(
        "",
        "lengths of prompts and answers by name",
        choices=SCENARIOS,
        page="cli.md#profiles-and-scenarios",
    )
    input_tokens: int | None = option(
        None, "average tokens of generated prompts", default_text="256", at_least=1
    )
    output_tokens: int | None = option(
        None, "average tokens of answers", default_text="128", at_least=1
    )
    spread: float | None = option(
        None,
        "sigma of log-normal lengths, as 0.5",
        default_text="0, all equal",
        at_least=0,
        at_most=2,
        metavar="S",
    )
    shared_prefix: int = option(0, "number of first tokens that all prompts share")
    prompts: str | None = option(
        None, 'file of prompts to send, with lines {"prompt": ..., "max_tokens": ...}'
    )
    body: str | None = option(None, "file with the JSON to send to a classic method")
    stop_at_end: bool = option(
        False,
        "let the model end an answer before its length",
        details="Otherwise `ignore_eos` is sent, except to TGI, which has no such field",
    )
    seed: int = option(0, "seed of prompts and times: the same seed gives the same requests")
    timeout: float = option(600.0, "time after which a request is cancelled", unit="seconds")
    json: str | None = option(None, "file to write the results to")
    chart: str = option(
        "",
        "file to write charts to: out.html is a page, out.png a picture",
        details="A picture needs matplotlib: pip install 'mindspore-serving[charts]'",
    )


def check(settings: BenchSettings) -> None:
    """Raise InvalidInputs for an option out of range, or options that exclude each other."""
    _check_profile(settings)
    _check_engines(settings)
    if (lowest := min(settings.concurrency, default=1)) < 1:
        raise InvalidInputs(f"--concurrency {lowest}: expected 1 or more")
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
        raise InvalidInputs("--scenario is for generated prompts: not with --prompts or --body")
