"""A server with every option of metrics and logs, asked in every protocol; and what it shows."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from mindspore_serving.client import Client
from tests.cli.commands import SERVING, Command
from tests.cli.conftest import write_words
from tests.llm import chatty
from tests.ports import free_port
from tests.waiting import PATIENCE, eventually

CONFIG = """
servables:
  - words
  - path: chatty
    llm_option: {dtype: f32, kv_cache_dtype: f32, kv_cache_memory: 67108864}
"""
OPTIONS = (
    *("--access-log", "--log-requests", "--log-format", "json", "--log-level", "info"),
    "--vllm-metrics",
)
SECRET = "xyzzy"  # stands in prompts and values
NUM_GENERATIONS, NUM_TOKENS = 3, 4  # of each generation
NUM_ANSWERS = NUM_GENERATIONS + 1  # one of them has two


@dataclass(frozen=True, slots=True)
class Page:
    """What GET /metrics showed, by the names of the samples."""

    families: dict[str, Metric]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples called `name` that have these labels."""
        family = self.families.get(name)
        samples = [] if family is None else family.samples
        return sum(
            sample.value
            for sample in samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@dataclass(frozen=True, slots=True)
class Observed:
    """A server that was asked; `ids` are those of requests by what was asked."""

    command: Command
    http: int
    grpc: int
    directory: Path

    def ask(self, path: str, body: Any = None, name: str = "") -> tuple[int, bytes]:
        """The answer, to a request with the id `name`."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "x-request-id": name or "some"}
        url = f"http://127.0.0.1:{self.http}{path}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data, headers), timeout=PATIENCE
            ) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def page(self) -> str:
        return self.ask("/metrics")[1].decode()

    def read(self) -> Page:
        found = text_string_to_metric_families(self.page())
        return Page({sample.name: family for family in found for sample in family.samples})

    def value(self, name: str, **labels: str) -> float:
        """That of the page as it is now."""
        return self.read().value(name, **labels)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The lines of the log with the message `kind`."""
        return [one for one in self.log() if one["message"] == kind]

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.command.lines) if line.startswith("{")]

    def event(self, kind: str, name: str) -> dict[str, Any]:
        """The line with that message of the request with the id `name`."""

        def found() -> list[dict[str, Any]]:
            return [one for one in self.events(kind) if one["request_id"] == name]

        return eventually(found, what=f"the {kind} line of {name}")[0]


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    directory = write_words(tmp_path_factory.mktemp("observed"))
    chatty.build(directory)
    (directory / "server.yaml").write_text(CONFIG)
    http, grpc = free_port(), free_port()
    ports = ["--http-port", str(http), "--grpc-port", str(grpc)]
    words = [*SERVING, "serve", "--config", "server.yaml", *OPTIONS, *ports]
    with Command(words, directory) as command:
        command.says("Ctrl-C stops")
        found = Observed(command, http, grpc, directory)
        _ask_everything(found)
        yield found


def _ask_everything(found: Observed) -> None:
    """Three instances that are right and one that is wrong to `words`, generations in three
    protocols, and paths that do not exist."""
    instances = {"instances": [{"x": 1}, {"x": 2}]}
    assert found.ask("/model/words:double", instances, "rest-1")[0] == 200
    assert found.ask("/model/words:joined", {"instances": [{"left": SECRET}]}, "wrong")[0] == 400
    with Client(f"127.0.0.1:{found.grpc}", "words", "double") as client:
        assert client.infer({"x": np.float32(3)}) == [{"y": 6}]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [4]}
    assert found.ask("/v2/models/words.double/infer", {"inputs": [tensor]}, "v2-1")[0] == 200
    plain = {"prompt": SECRET, "max_tokens": NUM_TOKENS, "ignore_eos": True, "n": 2}
    assert found.ask("/v1/completions", {"model": "chatty", **plain}, "openai-1")[0] == 200
    message = {"role": "user", "content": SECRET}
    chat = {"messages": [message], "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    assert found.ask("/v1/chat/completions", chat, "openai-2")[0] == 200
    params = {"max_new_tokens": NUM_TOKENS, "ignore_eos_token": True}
    assert found.ask("/generate", {"inputs": SECRET, "parameters": params}, "tgi-1")[0] == 200
    assert found.ask("/nowhere?secret=xyzzy", name="lost")[0] == 404
    ended = "serving_llm_request_generated_tokens_count"
    eventually(lambda: found.value(ended) == NUM_GENERATIONS, what="the engine's last numbers")
