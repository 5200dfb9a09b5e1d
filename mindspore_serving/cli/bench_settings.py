"""The settings of `mindspore-serving bench`."""

from dataclasses import dataclass

from mindspore_serving.cli.options import ids, numbers, option, positional
from mindspore_serving.cli.settings import Access


@dataclass(frozen=True, slots=True)
class BenchSettings(Access):
    """`mindspore-serving bench`."""

    url: str = positional("http://IP:PORT, or .../model/NAME:METHOD", metavar="URL")
    protocol: str = option(
        "chat",
        "how the server is asked; a URL with /model/ is classic",
        choices=("chat", "completions", "tgi", "classic"),
    )
    model: str = option("", "name of the model (default: the first)", metavar="NAME")
    concurrency: tuple[int, ...] = option(
        (1, 4, 16, 32),
        "clients that send again when answered, a run for each",
        type=ids,
        metavar="N,N",
    )
    rate: tuple[float, ...] = option(
        (),
        "instead: requests per second at random times, a run for each",
        type=numbers(float, "0.5,2"),
        metavar="R,R",
    )
    requests: int = option(0, "sent in a run (default: 4 per client, 30 s of a rate; at least 8)")
    input_tokens: int = option(256, "average length of the prompts made up")
    output_tokens: int = option(128, "average length of the answers")
    spread: float = option(0.0, "sigma of log-normal lengths, as 0.5; 0: all alike", metavar="S")
    shared_prefix: int = option(0, "tokens at the beginning that all prompts share")
    prompts: str | None = option(
        None, 'file with lines {"prompt": ..., "max_tokens": ...} to send instead'
    )
    body: str | None = option(None, "JSON to send to a classic method")
    stop_at_end: bool = option(False, "let the model end an answer before its length")
    seed: int = option(0, "of prompts and times; the same seed gives the same requests")
    timeout: float = option(600.0, "seconds until a request is cancelled")
    json: str | None = option(None, "write the results there too")
