"""Settings of `chat`, and of `run` and `run-batch`, which serve a model themselves."""

from dataclasses import dataclass
from typing import Any

from mindspore_serving.cli.node_settings import url_argument
from mindspore_serving.cli.options import option, positional
from mindspore_serving.cli.settings import Access, ServableSettings
from mindspore_serving.cli.urls import SERVER_URL


@dataclass(frozen=True, kw_only=True)
class ConversationOptions:
    """Options of a conversation, or of one answer."""

    prompt: str = option("", "print the answer to this prompt, and end", metavar="TEXT")
    system: str = option("", "system prompt", metavar="TEXT")
    load: str | None = option(None, "continue a conversation saved by /save")
    history: bool = option(
        True, "keep typed lines in ~/.local/state/mindspore-serving/chat_history"
    )
    temperature: float | None = option(
        None,
        "sampling temperature; 0 for the likeliest tokens",
        default_text="the server's",
        metavar="T",
    )
    top_p: float | None = option(
        None,
        "sample from the likeliest tokens with this total probability",
        default_text="the server's",
        metavar="P",
    )
    max_tokens: int | None = option(
        None,
        "max tokens of an answer",
        default_text="what the server suggests, else 2048",
        at_least=1,
        metavar="N",
    )
    timeout: float = option(
        300.0,
        "max time without a new part of an answer",
        metavar="SECONDS",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class ChatSettings(ConversationOptions, Access):
    """Settings of `mindspore-serving chat`."""

    url: str = url_argument(f"URL of the server, or HOST:PORT (default: {SERVER_URL})")
    model: str = option("", "name of the model", default_text="the server's first", metavar="NAME")


def _model() -> Any:
    text = "GGUF file, directory of a checkpoint with config.json and *.safetensors, or a name"
    return positional(text, metavar="MODEL")


@dataclass(frozen=True, kw_only=True)
class RunSettings(ServableSettings, ConversationOptions):
    """Settings of `mindspore-serving run`."""

    model: str = _model()
    http_port: int = option(
        0,
        "port of its server on 127.0.0.1",
        default_text="a free one",
        at_least=0,
        at_most=65535,
        metavar="PORT",
    )


@dataclass(frozen=True, kw_only=True)
class RunBatchSettings(ServableSettings):
    """Settings of `mindspore-serving run-batch`."""

    requests: str = positional("file with a request as JSON in each line", metavar="IN.jsonl")
    results: str = positional("file to write, with a result in each line", metavar="OUT.jsonl")
    model: str = _model()
    concurrency: int = option(
        64, "requests that run at once", at_least=1, at_most=1024, metavar="N"
    )
