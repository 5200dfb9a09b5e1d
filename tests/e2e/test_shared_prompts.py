"""Servers that share a store: a prompt that was computed on one is a hit on another."""

import json
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("redis")
pytest.importorskip("zstandard")

from tests.cli.commands import SERVING, Command
from tests.llm import chatty
from tests.ports import free_port
from tests.stores import key_value_server
from tests.stores.key_value_server import KeyValueServer
from tests.waiting import eventually

PROMPT = "the sea and the sky " * 60
OPTIONS = ["dtype=f32", "kv_cache_dtype=f32", "kv_cache_memory=64e6", "num_speculative_tokens=0"]
HITS = "serving_llm_prefix_cache_store_hits_total"


class Server(Command):
    """A server of the model in `directory`, with the blocks of its prompts in a store."""

    def __init__(self, directory: Path, store: str, key: Path) -> None:
        self.port = free_port()
        words = ["serve", str(directory), "--http-port", str(self.port), "--no-grpc"]
        words += [word for option in OPTIONS for word in ("--llm-option", option)]
        words += ["--prefix-cache-store", store, "--prefix-cache-store-key", str(key)]
        super().__init__([*SERVING, *words], directory.parent)

    def fetch(self, path: str, body: dict[str, object] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(urllib.request.Request(url, data)) as answer:
            return answer.read().decode()

    def ask(self) -> tuple[str, int]:
        """Return the answer to the prompt, and how many of its tokens were cached."""
        body = {"model": "chatty", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        answer = json.loads(self.fetch("/v1/completions", {**body, "ignore_eos": True}))
        usage = answer["usage"]
        assert usage["prompt_tokens"] > 400
        return answer["choices"][0]["text"], usage["prompt_tokens_details"]["cached_tokens"]

    def value(self, metric: str) -> float:
        lines = self.fetch("/metrics").splitlines()
        (line,) = [line for line in lines if line.startswith(metric + "{")]
        return float(line.rpartition(" ")[2])


def test_prompts_of_a_server_are_hits_on_another(tmp_path, monkeypatch):
    model = chatty.build(tmp_path, context=2048)
    (tmp_path / "key").write_text("of both servers, and of nobody else")
    monkeypatch.setenv("REDISCLI_AUTH", key_value_server.PASSWORD)
    with (
        KeyValueServer(tmp_path) as store,
        Server(model, store.url, tmp_path / "key") as first,
        Server(model, store.url, tmp_path / "key") as second,
    ):
        first.says("Ctrl-C stops")
        second.says("Ctrl-C stops")
        text, cached = first.ask()
        assert cached == 0
        eventually(lambda: store.client.dbsize() > 400 // 32)
        other, cached = second.ask()
        assert other == text
        assert cached > 400 - 32
        eventually(lambda: second.value(HITS) == cached)
        assert first.value(HITS) == second.value(HITS.replace("hits", "errors")) == 0
