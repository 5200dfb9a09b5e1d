"""Settings of `mindspore-serving tune`."""

from dataclasses import dataclass

from mindspore_serving.cli import tune_knobs
from mindspore_serving.cli.options import option, positional
from mindspore_serving.cli.settings import ServableSettings

SYNTHETIC = "synthetic"


@dataclass(frozen=True, kw_only=True)
class TuneSettings(ServableSettings):
    """Settings of `mindspore-serving tune`."""

    servable: str = positional(
        "servable, model file or language model, as for serve", metavar="SERVABLE"
    )
    goal: str = option(
        "",
        "limits to keep, as 'p99<50ms' or 'first_p90<0.3s,tokens>100'",
        default_text="none: the highest rate",
        metavar="LIMITS",
        page="tuning.md#goals",
    )
    time: float = option(300.0, "time for everything", at_least=1, unit="seconds", is_common=True)
    load: str = option(
        SYNTHETIC,
        f"file of recorded requests or prompts; {SYNTHETIC}: made from the inputs",
        details="Lines are as in warmup.jsonl, of a language model as in bench --prompts",
        metavar="FILE",
        page="tuning.md#the-load",
    )
    method: str = option("", "method to call", default_text="the only one", metavar="NAME")
    concurrency: tuple[int, ...] = option(
        (),
        "number of clients, each of which sends when it is answered",
        default_text="1,4,16; of language models 1,4,8",
        metavar="N,N",
    )
    knobs: tuple[str, ...] = option(
        (),
        "tune only these, as workers,cores",
        default_text="all that apply",
        details=f"They are {', '.join(tune_knobs.NAMES)}",
        parse=lambda text: tuple(text.split(",")),
        metavar="NAME,NAME",
        page="tuning.md#what-is-tried",
    )
    rounding: bool = option(
        False, "also try what changes the numbers in answers: bfloat16, int8 and int4"
    )
    calibrate: str = option(
        "",
        "data (.npz) with which a model file is quantised to int8, to try that as well",
        page="backends.md#int8",
    )
    try_draft: str = option(
        "", "draft model to try with a language model", metavar="PATH", page="speculation.md"
    )
    input_tokens: int = option(
        128, "length of synthetic prompts, in words of about a token", at_least=1
    )
    output_tokens: int = option(64, "tokens of answers", at_least=1)
    timeout: float = option(60.0, "time after which a request fails", over=0, unit="seconds")
    seed: int = option(0, "seed of synthetic prompts")
    output: str = option("", "file to write the configuration to, for serve --config")
    chart: str = option(
        "",
        "file to write a chart to: out.html is a page, out.png a picture",
        details="A picture needs matplotlib: pip install 'mindspore-serving[charts]'",
    )
    json: str = option("", "file to write all numbers to")
